"""A few canonical signals read off a metrics page by looking at their lines alone, cheap enough for a live view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.observe.exposition import ExpositionError, parse

# signal -> (metric, label, values taken); figures for the eye while a run goes on, never for a report
_LINES: Mapping[str, Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "vllm": {
        "kv_usage": ("vllm:kv_cache_usage_perc", "", ()),
        "prefix_hit_tokens": ("vllm:prefix_cache_hits_total", "", ()),
        "prefix_query_tokens": ("vllm:prefix_cache_queries_total", "", ()),
    },
    "sglang": {
        "kv_usage": ("sglang:token_usage", "", ()),
        "prefix_hit_tokens": ("sglang:prefill_effective_tokens_total", "mode", ("device_hit",)),
        "prefix_query_tokens": ("sglang:prefill_effective_tokens_total", "mode", ("input", "device_hit")),
    },
    "native": {
        "kv_usage": ("native:kv_usage_ratio", "", ()),
        "prefix_hit_tokens": ("native:prefix_hit_tokens_total", "", ()),
        "prefix_query_tokens": ("native:prefix_query_tokens_total", "", ()),
    },
}


def read_live(kind: str, body: bytes, signals: Sequence[str]) -> dict[str, float]:
    """Values of `signals` on a page, added up over label sets; those that are not there are left out."""
    wanted = {name: line for name, line in _LINES.get(kind, {}).items() if name in signals}
    starts = tuple({metric.encode() for metric, _, _ in wanted.values()})
    try:
        samples = parse(b"\n".join(line for line in body.splitlines() if line.startswith(starts)) + b"\n")
    except ExpositionError:
        return {}
    found: dict[str, float] = {}
    for name, (metric, label, values) in wanted.items():
        taken = [s.value for s in samples if s.metric == metric and (not label or s.labels.get(label) in values)]
        if taken:
            found[name] = sum(taken)
    return found
