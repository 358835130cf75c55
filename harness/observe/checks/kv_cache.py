"""KV cache: is the pool full, does it throw requests back, do prefixes hit?"""

from __future__ import annotations

from harness.observe.checks.figures import lifetime, missing, now, tokens, window
from harness.observe.evidence import Evidence
from harness.observe.look_report import Check, Figure

FULL = 0.95  # a pool held to this share has next to no room to let its requests grow


def kv_cache_checks(evidence: Evidence) -> list[Check]:
    return [_usage(evidence), _preemptions(evidence), _hits(evidence), _evictions(evidence)]


def _usage(evidence: Evidence) -> Check:
    usage, evictable = evidence.gauge("kv_usage"), evidence.gauge("kv_evictable")
    if not usage:
        return missing("kv.usage", evidence.now("kv_usage"))
    figures = [now("kv_usage", usage[-1], "1"), window("kv_usage max", max(usage), "1")]
    says = f"{usage[-1]:.1%} held by requests (at most {max(usage):.1%})"
    if evictable:
        figures.append(now("kv_evictable", evictable[-1], "1"))
        says += f", {evictable[-1]:.1%} reusable"
    if evidence.info.kv_tokens:
        says += f" of {tokens(evidence.info.kv_tokens)} tokens"
    if max(usage) >= FULL:
        why = f"at {FULL:.0%} and above a growing request can only take room from another"
        return Check(id="kv.usage", state="warn", says=says, why=why, figures=figures)
    unseen = "" if evictable else "cached but unreferenced blocks count as free here"
    return Check(id="kv.usage", state="ok", says=says, why=unseen, figures=figures)


def _preemptions(evidence: Evidence) -> Check:
    reading, grown = evidence.now("preemptions"), evidence.grew("preemptions")
    if reading.value is None and not reading.unborn:
        return missing("kv.preemptions", reading)
    total = reading.value or 0.0
    figures: list[Figure] = [lifetime("preemptions", total, "preemptions")]
    says = f"{total:.0f} preemptions since start"
    if grown is not None and grown.total > 0:
        figures.append(window("preemptions", grown.total, "preemptions"))
        why = f"{grown.total:.0f} while we watched: each is computed again and comes back through the queue"
        return Check(id="kv.preemptions", state="warn", says=says, why=why, figures=figures)
    if total > 0:
        return Check(id="kv.preemptions", state="info", says=f"{says}, none seen in window", figures=figures)
    return Check(id="kv.preemptions", state="ok", says=says, figures=figures)


def _hits(evidence: Evidence) -> Check:
    if evidence.info.prefix_caching is False:
        return Check(id="kv.hits", state="info", says="prefix caching is off: nothing can hit")
    queries, hits = evidence.now("prefix_query_tokens"), evidence.now("prefix_hit_tokens")
    if queries.value is None or hits.value is None:
        return missing("kv.hits", queries if queries.value is None else hits)
    parts, figures = [], []
    looked, found = evidence.grew("prefix_query_tokens"), evidence.grew("prefix_hit_tokens")
    if looked and found and looked.total > 0:
        rate = found.total / looked.total
        parts.append(f"{rate:.1%} of {tokens(looked.total)} prompt tokens in window")
        figures.append(window("hit rate", rate, "1"))
    if queries.value == 0:
        return Check(id="kv.hits", state="info", says="hit rate: nothing was looked up yet")
    rate = hits.value / queries.value
    parts.append(f"{rate:.1%} of {tokens(queries.value)} since start")
    figures.append(lifetime("hit rate", rate, "1"))
    return Check(
        id="kv.hits",
        state="info",
        says=f"prefix hits {', '.join(parts)}",
        why=_no_hits(evidence, rate),
        figures=figures,
    )


def _no_hits(evidence: Evidence, rate: float) -> str:
    """What can be said about a rate of nought without knowing the prompts: a hit needs a whole block."""
    block = evidence.info.block_size
    if rate > 0:
        return "which rate is right depends on the prompts; a run states the expected one"
    return f"a hit needs one whole block of {block} tokens that was sent before" if block else ""


def _evictions(evidence: Evidence) -> Check:
    reading, grown = evidence.now("evicted_tokens"), evidence.grew("evicted_tokens")
    if reading.value is None and not reading.unborn:
        return missing("kv.evictions", reading)
    total = reading.value or 0.0
    says = f"{tokens(total)} cached tokens evicted since start"
    figures = [lifetime("evicted_tokens", total, "tokens")]
    if grown is not None and grown.total > 0:
        figures.append(window("evicted_tokens", grown.total, "tokens"))
        says += f", {tokens(grown.total)} in window"
    return Check(id="kv.evictions", state="info", says=says, figures=figures)
