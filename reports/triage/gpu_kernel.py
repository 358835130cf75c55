"""Third stage: how long a step took, and how much of that was the device and how much its host."""

from __future__ import annotations

from harness.records.judgements import Evidence, Stage
from reports.triage.view import View, growth, pair_mean, shown, stage, value


def look(view: View) -> Stage:
    evidence = [
        *pair_mean(view, "step_time"),
        *pair_mean(view, "prefill_time"),
        *pair_mean(view, "decode_time"),
        *growth(view, "host_time"),
        *growth(view, "engine_cpu"),
        *growth(view, "graph_fallback_steps"),
        *_prefill_per_token(view),
    ]
    words = []
    for signal, text in (
        ("step_time", "a step took {} on average"),
        ("prefill_time", "a prefill took {}"),
        ("prefill_per_token", "{} per computed prompt token"),
        ("decode_time", "decoding an answer took {}"),
    ):
        found = value(evidence, signal)
        if found is not None:
            words.append(text.format(shown(found, "s")))
    cpu = value(evidence, "engine_cpu")
    if cpu is not None and view.end > view.begin:
        words.append(f"the engine used {cpu / (view.end - view.begin):.2f} cores")
    if not view.cell.manifest.gpu.get("present"):
        words.append("no GPU on this host")
    wanted = ("step_time", "prefill_time", "decode_time", "host_time", "engine_cpu")
    return stage(view, "gpu_kernel", "; ".join(words), evidence, wanted)


def _prefill_per_token(view: View) -> list[Evidence]:
    """Prefill seconds over prompt tokens that were computed: what stays equal when only the load changes."""
    prefill, computed = view.series("prefill_time"), view.series("prefill_computed_tokens")
    if prefill is None or computed is None:
        return []
    tokens = computed.growth(view.begin, view.end)
    if tokens <= 0:
        return []
    return [
        Evidence(
            signal="prefill_per_token",
            now=prefill.growth(view.begin, view.end) / tokens,
            unit="s",
            query=f"growth of {prefill.query} / growth of {computed.query}",
            note=f"over {tokens:,.0f} computed prompt tokens",
        )
    ]
