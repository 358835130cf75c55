"""Second stage: was the KV cache full, did it lose what it held, and did prompts find what they could?"""

from __future__ import annotations

from harness.records.judgements import Evidence, Stage
from reports.triage.view import View, gauge, growth, shown, stage, value


def look(view: View) -> Stage:
    evidence = [
        *gauge(view, "kv_usage"),
        *gauge(view, "kv_evictable"),
        *growth(view, "prefix_query_tokens"),
        *growth(view, "prefix_hit_tokens"),
        *growth(view, "preemptions"),
        *growth(view, "evicted_tokens"),
    ]
    words = []
    peak = value(evidence, "kv_usage")
    if peak is not None:
        capacity = view.cell.manifest.engine.kv_tokens
        of = f" of {capacity:,} tokens" if capacity else ""
        words.append(f"KV usage peaked at {shown(peak, '1')}{of} (reusable blocks count as free)")
    preempted = value(evidence, "preemptions")
    if preempted is not None:
        words.append("no preemption" if preempted < 0.5 else f"{preempted:,.0f} preemptions")
    evicted = value(evidence, "evicted_tokens")
    if evicted is not None:
        words.append("nothing was evicted" if evicted < 0.5 else f"{evicted:,.0f} tokens were evicted")
    words += _hits(evidence)
    wanted = ("kv_usage", "kv_evictable", "prefix_query_tokens", "prefix_hit_tokens", "preemptions", "evicted_tokens")
    return stage(view, "kv_cache", "; ".join(words), evidence, wanted)


def _hits(evidence: list[Evidence]) -> list[str]:
    queries, hits = value(evidence, "prefix_query_tokens"), value(evidence, "prefix_hit_tokens")
    if queries is None or hits is None:
        return []
    if queries < 0.5:
        return ["no token was looked up: caching is off, or nothing was admitted"]
    return [f"{hits:,.0f} of {queries:,.0f} looked-up tokens hit ({shown(hits / queries, '1')})"]
