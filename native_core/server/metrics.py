"""Prometheus metrics under `native:`, a fold over the runner's reports.

Everything here runs on the event loop's thread. Counters that the engine keeps itself are read from its latest
statistics when somebody scrapes; the rest is counted from what was delivered to clients, so that
`native:prompt_tokens_total` and `native:generation_tokens_total` are what answers state as usage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from native_core.engine_config import EngineStats
from native_core.server.metered import Meter
from native_core.server.runner import Report, Update
from native_core.server.served import Served

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def grid(low: int, high: int) -> tuple[float, ...]:
    """Bounds 1, 1.5, 2, 3, 5, 7 times each power of ten from 10**low up to 10**high: no two more than 1.7 x apart."""
    return (*(float(f"{m}e{power}") for power in range(low, high) for m in (1, 1.5, 2, 3, 5, 7)), float(f"1e{high}"))


STEP_SECONDS = grid(-4, 1)
TOKEN_SECONDS = grid(-4, 1)
REQUEST_SECONDS = grid(-4, 3)
TOKENS = (0.0, *(float(1 << power) for power in range(15)))
SEQUENCES = (*map(float, range(1, 9)), 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0)


class Metrics:
    """The registry of one server. `pending` tells how many sequences wait to be seen by the engine."""

    def __init__(self, served: Served, pending: Callable[[], int]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._engine = _EngineCollector(pending)
        self.registry.register(self._engine)
        self._declare_counters()
        self._declare_histograms()
        settings = served.settings
        labels = {
            "block_size": settings.options.block_size,
            "kv_tokens": settings.kv_tokens,
            "max_model_len": settings.max_model_len,
            "profile": settings.options.profile,
            "prefix_caching": str(settings.options.prefix_caching).lower(),
            "threads": settings.options.threads,
            "dtype": served.dtype,
            "version": served.version,
        }
        info = Gauge("native:config_info", "Resolved configuration, as labels", list(labels), registry=self.registry)
        info.labels(*map(str, labels.values())).set(1)

    def _declare_counters(self) -> None:
        def counter(name: str, words: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"native:{name}", words, list(labels), registry=self.registry)

        self._prompt = counter("prompt_tokens", "Prompt tokens billed, at the first token of the answer")
        self._generated = counter("generation_tokens", "Output tokens handed to clients")
        self._finished = counter("requests_finished", "Answers that ended, one per choice", ["reason"])
        self._rejected = counter("request_rejections", "Requests refused before they ran", ["reason"])
        self._host = counter("host_seconds", "Engine thread, busy, outside the executor")
        for reason in ("stop", "length", "abort"):
            self._finished.labels(reason)
        self._rejected.labels("queue_full")

    def _declare_histograms(self) -> None:
        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"native:{name}", words, buckets=buckets, registry=self.registry)

        self._step = histogram("step_seconds", "Wall time of an engine step, scheduling included", STEP_SECONDS)
        self._step_prefill = histogram("step_prefill_tokens", "Prompt tokens computed in a step", TOKENS)
        self._step_decode = histogram("step_decode_tokens", "Decode tokens computed in a step", TOKENS)
        self._step_batch = histogram("step_batch_size", "Sequences in a step", SEQUENCES)
        self._queue = histogram("queue_seconds", "Arrival to first scheduling", REQUEST_SECONDS)
        self._prefill = histogram("prefill_seconds", "First scheduling to first token", REQUEST_SECONDS)
        self._decode = histogram("decode_seconds", "First to last token", REQUEST_SECONDS)
        self._ttft = histogram("ttft_seconds", "Hand-over to the engine thread until the first token", REQUEST_SECONDS)
        self._between = histogram("inter_token_seconds", "Gap between tokens of a sequence", TOKEN_SECONDS)
        self._e2e = histogram("e2e_seconds", "Hand-over to the engine thread until the end", REQUEST_SECONDS)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def observe(self, report: Report) -> None:
        """Takes in one report of the engine thread."""
        stats = report.stats
        in_model = report.meter.wall_s - self._engine.meter.wall_s
        self._engine.stats, self._engine.meter = stats, report.meter
        self._host.inc(max(0.0, report.busy_s - in_model))
        if report.step_s is not None and stats.last_batch:
            self._step.observe(report.step_s)
            self._step_prefill.observe(stats.last_prefill_tokens)
            self._step_decode.observe(stats.last_decode_tokens)
            self._step_batch.observe(stats.last_batch)
        self._generated.inc(sum(update.output.token is not None for update in report.updates))
        for update in report.updates:
            self._follow(update, report.at)

    def _follow(self, update: Update, at: float) -> None:
        answer, output = update.answer, update.output
        if output.token is not None:
            if answer.last_token is None:
                self._ttft.observe(at - answer.submitted)
                if answer.billed_prompt:
                    self._prompt.inc(output.num_prompt_tokens)
            else:
                self._between.observe(at - answer.last_token)
            answer.last_token = at
        if output.finished:
            self._finished.labels(output.finish_reason or "error").inc()
            if output.finish_reason != "abort":
                self._end(update, at)

    def _end(self, update: Update, at: float) -> None:
        """Durations of answers that ran to their end; those of an aborted one say nothing about the engine."""
        self._e2e.observe(at - update.answer.submitted)
        request = update.answer.request
        for histogram, seconds in (
            (self._queue, request.queue_seconds),
            (self._prefill, request.prefill_seconds),
            (self._decode, request.decode_seconds),
        ):
            if seconds is not None:
                histogram.observe(seconds)


class _EngineCollector(Collector):
    """What the engine counts itself, read at scrape time from its latest statistics."""

    def __init__(self, pending: Callable[[], int]) -> None:
        self._pending = pending
        self.stats: EngineStats | None = None
        self.meter = Meter()

    def collect(self) -> Iterable[Metric]:
        stats = self.stats
        if stats is None:
            return
        yield from _gauges(stats, self._pending())
        yield from _counters(stats)
        model = CounterMetricFamily("native:model_seconds", "Time in the executor by part", labels=["part"])
        for part, seconds in sorted(self.meter.parts_s.items()):
            model.add_metric([part], seconds)
        yield model


def _gauges(stats: EngineStats, pending: int) -> Iterable[Metric]:
    block, total = stats.block_size, stats.blocks_total
    rows = {
        "num_requests_running": ("Sequences being computed", stats.running),
        "num_requests_waiting": ("Sequences in the queue", stats.waiting + pending),
        "kv_used_tokens": ("Tokens of blocks that requests hold", stats.blocks_used * block),
        "kv_evictable_tokens": ("Tokens of cached blocks that nobody holds", stats.blocks_evictable * block),
        "kv_free_tokens": ("Tokens of blocks without content", stats.blocks_free * block),
        "kv_capacity_tokens": ("Tokens that the pool holds", total * block),
        "kv_usage_ratio": ("Held share of the pool", stats.blocks_used / total),
        "kv_evictable_ratio": ("Reusable share of the pool", stats.blocks_evictable / total),
        "step_context_tokens": ("Tokens attended to in the latest step", stats.last_context_tokens),
    }
    for name, (words, value) in rows.items():
        yield GaugeMetricFamily(f"native:{name}", words, value=value)


def _counters(stats: EngineStats) -> Iterable[Metric]:
    rows = {
        "prefix_query_tokens": ("Tokens looked up in the prefix cache", stats.prefix_query_tokens),
        "prefix_hit_tokens": ("Tokens found in the prefix cache", stats.prefix_hit_tokens),
        "prefill_computed_tokens": ("Tokens computed in prefill", stats.prefill_computed_tokens),
        "preemptions": ("Requests thrown back to the queue for want of blocks", stats.preemptions),
        "evicted_tokens": ("Cached tokens lost to reuse of their block", stats.evicted_tokens),
    }
    for name, (words, value) in rows.items():
        yield CounterMetricFamily(f"native:{name}", words, value=value)
