"""Every metric of the report, declared once: what it says in words, its unit, its weighting and where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from reports import engine_figures, intervals, rates, samples
from reports.cell import Cell
from reports.intervals import Estimate
from reports.rates import Figure
from reports.samples import Samples
from reports.series import Signals

PERCENTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Metric:
    """One declaration. Distributions have `sample`, figures of a window have `figure` or `engine_figure`."""

    id: str
    name: str
    unit: Literal["s", "1", "tokens/s", "requests/s", "tokens"]
    words: str
    formula: str
    weighting: str
    source: str
    better: Literal["lower", "higher", "neither"]
    sample: Callable[[Cell], Samples] | None = None
    figure: Callable[[Cell], Figure] | None = None
    engine_figure: Callable[[Cell, Signals], Figure] | None = None


METRICS: tuple[Metric, ...] = (
    Metric(
        id="ttft",
        name="TTFT",
        unit="s",
        words="time from sending a request to the first event with an output token of any kind",
        formula="t_first_token - t_sent",
        weighting="per request",
        source="client",
        better="lower",
        sample=samples.ttft,
    ),
    Metric(
        id="ttft_content",
        name="TTFT (content)",
        unit="s",
        words="time from sending a request to the first token that a user sees, reasoning left out",
        formula="t_first_content - t_sent",
        weighting="per request",
        source="client",
        better="lower",
        sample=samples.ttft_content,
    ),
    Metric(
        id="ttft_intended",
        name="TTFT (intended)",
        unit="s",
        words="time from when the schedule wanted the request sent, so a late client or a stalled engine cannot hide",
        formula="t_first_token - t_intended",
        weighting="per request",
        source="client",
        better="lower",
        sample=samples.ttft_intended,
    ),
    Metric(
        id="tpot",
        name="TPOT",
        unit="s",
        words="time per output token after the first, for answers of two tokens or more",
        formula="(t_last_token - t_first_token) / (output_tokens - 1)",
        weighting="per request",
        source="client",
        better="lower",
        sample=samples.tpot,
    ),
    Metric(
        id="chunk_gap",
        name="chunk gap",
        unit="s",
        words="gap between neighbouring events that carry tokens: the stall that a user sees",
        formula="t_arrival[i] - t_arrival[i - 1]",
        weighting="per gap",
        source="client",
        better="lower",
        sample=samples.chunk_gap,
    ),
    Metric(
        id="itl",
        name="ITL",
        unit="s",
        words="chunk gap shared among the tokens of its later event",
        formula="(t_arrival[i] - t_arrival[i - 1]) / n_tokens[i], n_tokens[i] times",
        weighting="per token",
        source="client",
        better="lower",
        sample=samples.itl,
    ),
    Metric(
        id="e2e",
        name="E2E",
        unit="s",
        words="time from sending a request to the end of its answer",
        formula="t_done - t_sent",
        weighting="per request",
        source="client",
        better="lower",
        sample=samples.e2e,
    ),
    Metric(
        id="e2e_intended",
        name="E2E (intended)",
        unit="s",
        words="time from when the schedule wanted the request sent to the end of its answer",
        formula="t_done - t_intended",
        weighting="per request",
        source="client",
        better="lower",
        sample=samples.e2e_intended,
    ),
    Metric(
        id="queue_time",
        name="queue time",
        unit="s",
        words="what the engine says that a request waited before it was first scheduled",
        formula="server_queue_ns",
        weighting="per request",
        source="the engine, with each answer",
        better="lower",
        sample=samples.queue_time,
    ),
    Metric(
        id="output_throughput",
        name="output tokens/s",
        unit="tokens/s",
        words="output tokens that arrived in the steady window, per second",
        formula="sum of n_tokens in the window / its length",
        weighting="whole window",
        source="client",
        better="higher",
        figure=rates.output_throughput,
    ),
    Metric(
        id="output_throughput_all",
        name="output tokens/s, whole run",
        unit="tokens/s",
        words="output tokens of all measured answers, ramps included, per second",
        formula="sum of output_tokens / (last t_done - first t_sent)",
        weighting="whole run",
        source="client",
        better="higher",
        figure=rates.output_throughput_all,
    ),
    Metric(
        id="request_rate",
        name="requests/s",
        unit="requests/s",
        words="answers that ended in the steady window, per second",
        formula="count of t_done in the window / its length",
        weighting="whole window",
        source="client",
        better="higher",
        figure=rates.request_rate,
    ),
    Metric(
        id="goodput",
        name="goodput",
        unit="requests/s",
        words="requests per second that meet every SLO, from the intended time; failed and refused ones are misses",
        formula="count of requests within every SLO / (last t_done - first t_sent)",
        weighting="whole run",
        source="client",
        better="higher",
        figure=rates.goodput,
    ),
    Metric(
        id="hit_rate",
        name="hit rate (usage)",
        unit="1",
        words="share of the measured prompt tokens that the engine says came from its cache, by the answers' usage",
        formula="sum of cached_tokens / sum of prompt_tokens",
        weighting="per token",
        source="usage of each answer",
        better="higher",
        figure=rates.hit_rate_usage,
    ),
    Metric(
        id="hit_rate_counters",
        name="hit rate (counters)",
        unit="1",
        words="share of looked-up prompt tokens that hit, by the engine's counters, the warm-up taken out",
        formula="(growth of prefix_hit_tokens - warm-up's) / (growth of prefix_query_tokens - warm-up's)",
        weighting="per token",
        source="the engine's counters",
        better="higher",
        engine_figure=engine_figures.hit_rate_counters,
    ),
    Metric(
        id="kv_usage",
        name="KV usage, mean",
        unit="1",
        words="share of the KV cache that running requests refer to; cached blocks that nobody uses count as free",
        formula="time-weighted mean of the gauge over the measured run",
        weighting="per second",
        source="the engine's gauge",
        better="neither",
        engine_figure=engine_figures.kv_usage_mean,
    ),
    Metric(
        id="kv_usage_max",
        name="KV usage, peak",
        unit="1",
        words="the highest KV usage that a scrape saw; between scrapes it may have been higher",
        formula="maximum of the gauge over the measured run",
        weighting="per scrape",
        source="the engine's gauge",
        better="neither",
        engine_figure=engine_figures.kv_usage_max,
    ),
    Metric(
        id="kv_evictable",
        name="KV evictable, mean",
        unit="1",
        words="share of the KV cache that holds reusable tokens which no running request refers to",
        formula="time-weighted mean of the gauge over the measured run",
        weighting="per second",
        source="the engine's gauge",
        better="neither",
        engine_figure=engine_figures.kv_evictable_mean,
    ),
    Metric(
        id="acceptance",
        name="acceptance",
        unit="1",
        words="share of drafted tokens that the model accepted",
        formula="growth of accepted_tokens / growth of drafted_tokens",
        weighting="per token",
        source="the engine's counters",
        better="higher",
        engine_figure=engine_figures.acceptance,
    ),
)

BY_ID = {metric.id: metric for metric in METRICS}


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles of one metric in one cell."""

    n: int
    mean: Estimate
    percentiles: dict[float, Estimate]
    low: float
    high: float
    sd: float


@dataclass(frozen=True)
class Measured:
    """A metric with what was found: a distribution, a figure, or the reason why neither."""

    metric: Metric
    distribution: Distribution | None = None
    figure: Estimate | None = None
    refused: str = ""
    note: str = ""
    samples: Samples = field(default_factory=Samples)

    def estimate(self, q: float | None = None) -> Estimate | None:
        """The percentile q of a distribution, its mean for None, or the figure."""
        if self.distribution is None:
            return self.figure
        return self.distribution.mean if q is None else self.distribution.percentiles.get(q)


def measure(cell: Cell, signals: Signals) -> dict[str, Measured]:
    """Every metric of a cell, by id."""
    return {metric.id: _measure(metric, cell, signals) for metric in METRICS}


def _measure(metric: Metric, cell: Cell, signals: Signals) -> Measured:
    if metric.sample is not None:
        found = metric.sample(cell)
        if found.refused or not len(found.values):
            return Measured(metric, refused=found.refused or "no measured request gave a value", note=found.note)
        return Measured(metric, distribution=describe(found), note=found.note, samples=found)
    if metric.figure is not None:
        figure = metric.figure(cell)
    else:
        assert metric.engine_figure is not None
        figure = metric.engine_figure(cell, signals)
    return Measured(metric, figure=figure.estimate, refused=figure.refused, note=figure.note)


def describe(found: Samples) -> Distribution:
    """Summary of at least one sample, taken in time order."""
    values = found.values
    mean = intervals.mean(values)
    assert mean is not None
    percentiles = {q: estimate for q in PERCENTILES if (estimate := intervals.percentile(values, q)) is not None}
    return Distribution(
        n=len(values),
        mean=mean,
        percentiles=percentiles,
        low=float(values.min()),
        high=float(values.max()),
        sd=float(np.std(values)),
    )
