"""Model config: settings that bound everything above, and whether the figures can be trusted at all."""

from __future__ import annotations

from harness.observe.checks.figures import missing, tokens, window
from harness.observe.evidence import Evidence
from harness.observe.look_report import Check
from harness.records.signals.catalogue import release


def config_checks(evidence: Evidence) -> list[Check]:
    return [
        _release(evidence),
        _pool(evidence),
        _caching(evidence),
        _names(evidence),
        _age(evidence),
        *_drafts(evidence),
    ]


def _release(evidence: Evidence) -> Check:
    version, catalogue = evidence.info.version, evidence.catalogue
    if version is None:
        return Check(id="config.release", state="not observable", says="the server does not state its version")
    if catalogue is None or evidence.info.kind == "native":
        return Check(id="config.release", state="info", says=f"version {version}")
    said = f"version {version}; signals read as in {catalogue.verified}"
    if release(version)[:2] < release(catalogue.oldest)[:2] or release(version)[:3] < release(catalogue.oldest)[:3]:
        why = f"older than {catalogue.oldest}: names and meanings were not checked"
        return Check(id="config.release", state="warn", says=said, why=why)
    if release(version)[:3] > release(catalogue.verified)[:3]:
        why = "newer than what was checked: see the drift by name"
        return Check(id="config.release", state="warn", says=said, why=why)
    return Check(id="config.release", state="ok", says=said)


def _pool(evidence: Evidence) -> Check:
    pool, context = evidence.info.kv_tokens, evidence.info.max_model_len
    if pool is None or context is None:
        what = "the size of the KV pool" if pool is None else "the context length"
        return Check(id="config.pool", state="not observable", says=f"{what} is not exported")
    says = f"pool of {tokens(pool)} tokens holds {pool / context:.1f} requests of full context ({tokens(context)})"
    if pool < context:
        why = "one request of full length does not fit: it is refused, or cut short"
        return Check(id="config.pool", state="warn", says=says, why=why)
    return Check(id="config.pool", state="ok", says=says)


def _caching(evidence: Evidence) -> Check:
    caching = evidence.info.prefix_caching
    if caching is None:
        return Check(id="config.caching", state="not observable", says="whether prefixes are cached is not exported")
    if not caching:
        return Check(
            id="config.caching",
            state="warn",
            says="prefix caching is off",
            why="every prompt is computed in full, however often its beginning was sent before",
        )
    return Check(id="config.caching", state="ok", says="prefix caching is on")


def _names(evidence: Evidence) -> Check:
    if evidence.catalogue is None or not evidence.pages:
        return Check(
            id="config.names",
            state="not observable",
            says=evidence.no_pages or "the metrics of this server are not known",
            flag=evidence.flag_for_pages,
        )
    drift = evidence.catalogue.drift(evidence.pages[-1].samples)
    if drift.lacking or drift.outdated:
        number = len(drift.lacking) + len(drift.outdated)
        says = f"{number} of the metrics expected without a flag missing or under an old name (drift, below)"
        return Check(id="config.names", state="warn", says=says, why="what they show is not observable here")
    says = "every metric expected without a flag is exported"
    more = f"{len(drift.unknown)} names are not in the catalogue" if drift.unknown else ""
    return Check(id="config.names", state="ok", says=says, why=more)


def _age(evidence: Evidence) -> Check:
    interval = evidence.settings.get("decode_log_interval")
    if evidence.info.kind != "sglang" or not isinstance(interval, int):
        return Check(id="config.freshness", state="info", says=f"figures are refreshed {_freshness(evidence)}")
    if interval > 1:
        return Check(
            id="config.freshness",
            state="warn",
            says=f"gauges are refreshed each {interval} decode steps only",
            why="queue, usage and batch may be that old",
            flag="--decode-log-interval 1",
        )
    return Check(id="config.freshness", state="ok", says="gauges are refreshed each step")


def _freshness(evidence: Evidence) -> str:
    return evidence.catalogue.freshness if evidence.catalogue else "as the server likes"


def _drafts(evidence: Evidence) -> list[Check]:
    """Speculation, only where the engine drafts: elsewhere its absence is no news."""
    drafted, accepted = evidence.grew("drafted_tokens"), evidence.grew("accepted_tokens")
    if drafted is None or accepted is None or not drafted.total:
        reading = evidence.now("drafted_tokens")
        return [missing("config.drafts", reading)] if evidence.settings.get("speculative_algorithm") else []
    rate = accepted.total / drafted.total
    says = f"{rate:.0%} of {tokens(drafted.total)} drafted tokens accepted in window"
    return [Check(id="config.drafts", state="info", says=says, figures=[window("acceptance", rate, "1")])]
