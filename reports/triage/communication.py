"""Fourth stage: time between ranks and between instances. No engine exports its collectives."""

from __future__ import annotations

from typing import Any

from harness.records.judgements import Evidence, Stage
from reports.triage.view import View, growth, pair_mean, shown, stage, value

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "tp_size", "pp_size")
TRACE = "collectives: no engine exports them; a profiler trace, or the same load on one rank, would show them"


def look(view: View) -> Stage:
    evidence = [
        *growth(view, "kv_transfer_bytes"),
        *pair_mean(view, "kv_transfer_time"),
        *growth(view, "kv_transfer_failures"),
        *pair_mean(view, "collective_wait"),
    ]
    ranks = _ranks(view.cell.manifest.engine.resolved)
    if evidence:
        words = []
        for signal, text in (("kv_transfer_time", "a KV transfer took {}"), ("collective_wait", "ranks waited {}")):
            found = value(evidence, signal)
            if found is not None:
                words.append(text.format(shown(found, "s")) + " on average")
        if value(evidence, "kv_transfer_failures"):
            words.append(f"{value(evidence, 'kv_transfer_failures'):,.0f} KV transfers failed")
        found_stage = stage(view, "communication", "; ".join(words) or "no transfer in this run", evidence, ())
        return found_stage.model_copy(update={"to_see_more": [TRACE]})
    if ranks == 1:
        seen = [Evidence(signal="config_info", now=1.0, unit="ranks", note="tensor and pipeline parallel sizes")]
        return stage(view, "communication", "one rank: there are no collectives to wait for", seen, ())
    said = f"{ranks} ranks" if ranks else "the number of ranks is not known"
    return Stage(
        stage="communication",
        state="not_observable",
        headline=f"not observable: {said}, and no engine exports its collectives",
        to_see_more=[TRACE],
    )


def _ranks(resolved: dict[str, Any]) -> int | None:
    """Product of the parallel sizes that the engine reports; None if it reports none."""
    sizes = [int(str(found)) for key, found in resolved.items() if key.split(".")[-1] in SIZES and str(found).isdigit()]
    product = 1
    for size in sizes:
        product *= size
    return product if sizes else None
