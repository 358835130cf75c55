"""Communication: ranks that wait for each other, KV cache that moves between instances."""

from __future__ import annotations

from harness.observe.checks.figures import mean, missing, window
from harness.observe.evidence import Evidence
from harness.observe.look_report import Check

PARALLEL = {
    "vllm": ("parallel_config.tensor_parallel_size", "parallel_config.pipeline_parallel_size"),
    "sglang": ("tp_size", "pp_size"),
}


def communication_checks(evidence: Evidence) -> list[Check]:
    return [_collectives(evidence), _transfers(evidence)]


def _collectives(evidence: Evidence) -> Check:
    ranks = _ranks(evidence)
    if ranks == 1:
        return Check(id="communication.collectives", state="ok", says="one rank computes the model: no collectives")
    says, figures = mean(evidence, "collective_wait", "wait for other ranks")
    if says:
        return Check(id="communication.collectives", state="info", says=says, figures=figures)
    known = f"{ranks} ranks; " if ranks else "the number of ranks is not exported; "
    reading = evidence.now("collective_wait")
    flag = reading.flag
    if ranks is None and evidence.info.kind == "vllm":
        flag = f"VLLM_SERVER_DEV_MODE=1 shows the ranks; {flag}" if flag else "VLLM_SERVER_DEV_MODE=1 shows the ranks"
    return Check(id="communication.collectives", state="not observable", says=known + reading.why, flag=flag)


def _ranks(evidence: Evidence) -> int | None:
    if evidence.info.kind == "native":
        return 1
    sizes = [evidence.settings.get(name) for name in PARALLEL.get(evidence.info.kind, ())]
    numbers = [size for size in sizes if isinstance(size, int)]
    return numbers[0] * numbers[1] if len(numbers) == 2 else None


def _transfers(evidence: Evidence) -> Check:
    failed = evidence.grew("kv_transfer_failures")
    says, figures = mean(evidence, "kv_transfer_time", "KV transfer")
    if failed is not None and failed.total > 0:
        figures.append(window("kv_transfer_failures", failed.total, "transfers"))
        text = f"{failed.total:.0f} KV transfers failed while we watched" + (f"; {says}" if says else "")
        why = "a failed transfer is computed again, or its request fails"
        return Check(id="communication.transfers", state="warn", says=text, why=why, figures=figures)
    if says:
        return Check(id="communication.transfers", state="ok", says=f"{says}, none failed", figures=figures)
    return missing("communication.transfers", evidence.now("kv_transfer_time"))
