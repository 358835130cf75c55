"""Figures of a whole window: throughput, request rate, goodput, and hit rate by the requests' own usage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports import intervals
from reports.cell import FAILED, Cell, Floats
from reports.intervals import Estimate
from reports.samples import token_events
from reports.windows import Window, steady_window

BINS = 60  # of the steady window, for the interval of a rate
MIN_BIN_S = 0.1


@dataclass(frozen=True)
class Figure:
    """One number of a window, or the reason why there is none."""

    estimate: Estimate | None = None
    refused: str = ""
    note: str = ""

    @classmethod
    def refuse(cls, why: str) -> Figure:
        return cls(refused=why)

    @classmethod
    def plain(cls, value: float, n: int, method: str, note: str = "") -> Figure:
        """A figure without an interval: a count, or a ratio of counts."""
        return cls(Estimate(value, None, None, n, method), note=note)


def _rate(times: Floats, weights: Floats, window: Window) -> Estimate:
    """Sum of weights per second over the window, with an interval from the rates of its bins in time order."""
    bins = int(max(1, min(BINS, window.seconds / MIN_BIN_S)))
    sums, edges = np.histogram(times, bins=bins, range=(window.begin, window.end), weights=weights)
    per_second = sums / (edges[1] - edges[0])
    found = intervals.mean(per_second)
    assert found is not None  # there is at least one bin
    # np.histogram closes the last bin only; the total is taken from the sums, so both agree.
    return Estimate(float(sums.sum() / window.seconds), found.low, found.high, len(times), found.method)


def output_throughput(cell: Cell) -> Figure:
    """Output tokens that arrived in the steady window, of all requests that were ok, per second."""
    window = steady_window(cell)
    events = token_events(cell)
    if window is None or not len(events):
        return Figure.refuse("no output tokens in a measured window")
    tokens = events["n_tokens"]
    if not np.isfinite(tokens).all():
        return Figure.refuse("tokens per event are unknown; the rate over the whole run stands below")
    inside = (events["t_arrival"] >= window.begin) & (events["t_arrival"] <= window.end)
    return Figure(_rate(events["t_arrival"][inside], tokens[inside], window), note=f"steady window: {window.why}")


def output_throughput_all(cell: Cell) -> Figure:
    """Output tokens of ok requests over the time from the first measured send to the last answer's end."""
    span = cell.span
    if span is None or span[1] <= span[0] or not len(cell.ok):
        return Figure.refuse("no measured request was answered")
    return Figure.plain(cell.ok.sum("output_tokens") / (span[1] - span[0]), len(cell.ok), "total over the whole run")


def request_rate(cell: Cell) -> Figure:
    """ok requests that ended in the steady window, per second."""
    window = steady_window(cell)
    done = cell.ok["t_done"]
    if window is None or not len(done):
        return Figure.refuse("no measured request was answered")
    inside = done[(done >= window.begin) & (done <= window.end)]
    return Figure(_rate(inside, np.ones(len(inside)), window), note=f"steady window: {window.why}")


def goodput(cell: Cell) -> Figure:
    """ok requests per second that meet every SLO, over the whole run; failed and refused ones are misses.

    TTFT and E2E count from the intended time. An answer of fewer than two tokens has no TPOT and cannot miss it.
    """
    slo = cell.manifest.slo
    if not slo:
        return Figure.refuse("the plan names no SLO")
    if cell.closed_loop:
        return Figure.refuse(
            "not defined for a closed loop: late requests delay the next, so the load hides the misses"
        )
    unknown = sorted(set(slo) - {"ttft_s", "tpot_s", "e2e_s"})
    if unknown:
        return Figure.refuse(f"unknown SLO {unknown[0]!r}; known are ttft_s, tpot_s and e2e_s")
    span = cell.span
    if span is None or span[1] <= span[0]:
        return Figure.refuse("no measured request was answered")
    rows = cell.ok
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = (rows["t_last_token"] - rows["t_first_token"]) / (rows["output_tokens"] - 1.0)
    per_token = np.where(rows["output_tokens"] >= 2, per_token, 0.0)
    met = np.ones(len(rows), dtype=bool)
    for key, seconds in (
        ("ttft_s", rows["t_first_token"] - rows["t_intended"]),
        ("tpot_s", per_token),
        ("e2e_s", rows["t_done"] - rows["t_intended"]),
    ):
        if key in slo:  # an answer without a token has no TTFT, and so misses an SLO for it
            met &= seconds <= slo[key]
    judged = len(rows) + int(np.isin(cell.measured["status"], FAILED).sum())
    note = f"{int(met.sum())} of {judged} requests meet " + ", ".join(f"{k} {v:g} s" for k, v in sorted(slo.items()))
    return Figure.plain(float(met.sum()) / (span[1] - span[0]), judged, "count over the whole run", note)


def hit_rate_usage(cell: Cell) -> Figure:
    """Cached over prompt tokens of the measured ok requests, as the engine reported them with each answer."""
    rows = cell.ok
    known = np.isfinite(rows["cached_tokens"]) & np.isfinite(rows["prompt_tokens"])
    if not known.any():
        return Figure.refuse("the answers carry no cached-token count")
    prompt = float(rows["prompt_tokens"][known].sum())
    if prompt <= 0:
        return Figure.refuse("no prompt tokens")
    missing = int((~known).sum())
    note = f"{missing} answers carry no cached-token count and are left out" if missing else ""
    return Figure.plain(float(rows["cached_tokens"][known].sum()) / prompt, int(known.sum()), "ratio of counts", note)
