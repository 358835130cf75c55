"""Last stage: what was configured, which explains a change of default before any profiler is started."""

from __future__ import annotations

from harness.records.judgements import Evidence, Stage
from reports.triage.view import View, growth, shown, stage, value


def look(view: View) -> Stage:
    manifest = view.cell.manifest
    info = manifest.engine
    facts: dict[str, float | str | None] = {
        "version": info.version,
        "fingerprint": info.fingerprint,
        "block_size": info.block_size,
        "kv_tokens": info.kv_tokens,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
        "max_batched_tokens": info.max_batched_tokens,
        "prefix_caching": None if info.prefix_caching is None else "on" if info.prefix_caching else "off",
        "scheduler": info.scheduler,
        **info.log_facts,
    }
    evidence = [
        Evidence(signal=name, now=found, note="as the engine reports it")
        for name, found in facts.items()
        if found is not None
    ]
    evidence += [*growth(view, "drafted_tokens"), *growth(view, "accepted_tokens")]
    words = [f"{info.kind} {info.version or 'of unknown version'}"]
    if info.fingerprint:
        words.append(f"configuration {info.fingerprint}")
    drafted, accepted = value(evidence, "drafted_tokens"), value(evidence, "accepted_tokens")
    if drafted and accepted is not None:
        words.append(f"{shown(accepted / drafted, '1')} of drafted tokens accepted")
    unknown = [name for name, found in facts.items() if found is None]
    found_stage = stage(view, "model_config", "; ".join(words), evidence, ())
    more = [f"{', '.join(unknown)}: the engine does not say"] if unknown else []
    return found_stage.model_copy(update={"to_see_more": more})
