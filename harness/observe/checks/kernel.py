"""GPU kernel and host: do steps come, how long do they take, and who keeps the device waiting?"""

from __future__ import annotations

from harness.observe.checks.figures import mean, missing, seconds, window
from harness.observe.evidence import Evidence
from harness.observe.look_report import Check, Figure

HOST_SHARE = 0.25  # of the engine loop, outside the forward pass, while it is busy
CPU_FULL = 0.95  # busy share of all cores, from which threads wait for each other


def kernel_checks(evidence: Evidence) -> list[Check]:
    return [_progress(evidence), _times(evidence), _host(evidence), _graphs(evidence), _machine(evidence)]


def _progress(evidence: Evidence) -> Check:
    running, made, computed = evidence.gauge("running"), evidence.grew("output_tokens"), evidence.grew("step_tokens")
    if made is None or not running:
        reading = evidence.now("output_tokens" if made is None else "running")
        why = reading.why or "the engine restarted, or answered fewer than two scrapes"
        return Check(id="kernel.progress", state="not observable", says=why, flag=reading.flag)
    rate = made.total / made.seconds if made.seconds else 0.0
    figures = [window("output_tokens", rate, "tokens/s")]
    stuck = min(running) > 0 and made.total == 0 and (computed is None or computed.total == 0)
    if stuck:
        says = f"{running[-1]:.0f} running and not one token in {made.seconds:.1f} s"
        why = f"the engine stands, a step takes longer than we watched, or its figures are old ({_age(evidence)})"
        return Check(id="kernel.progress", state="warn", says=says, why=why, figures=figures)
    says = "idle" if evidence.idle else f"{rate:,.1f} output tokens/s"
    return Check(id="kernel.progress", state="info" if evidence.idle else "ok", says=says, figures=figures)


def _age(evidence: Evidence) -> str:
    return evidence.catalogue.freshness if evidence.catalogue else "unknown"


def _times(evidence: Evidence) -> Check:
    """Durations without a verdict: they mean something at an equal batch and context only."""
    texts: list[str] = []
    figures: list[Figure] = []
    for signal, label in (("step_time", "step"), ("itl", "ITL"), ("prefill_time", "prefill")):
        text, found = mean(evidence, signal, label)
        if text and len(texts) < 2:
            texts.append(text)
            figures += found
    if not texts:
        return missing("kernel.times", evidence.now("step_time"))
    step = evidence.now("step_time")
    # Where steps are not timed, the flag that shows them is worth saying beside the figures that stand in for them.
    more = f"steps: {step.why}" if step.value is None and step.why else "; ".join(step.traps)
    return Check(id="kernel.times", state="info", says="; ".join(texts), why=more, flag=step.flag, figures=figures)


def _host(evidence: Evidence) -> Check:
    host, steps = evidence.grew("host_time"), evidence.grew("step_time")
    if host is None or steps is None:
        reading = evidence.now("host_time")
        return missing("kernel.host", reading if not reading.value else evidence.now("step_time"))
    if evidence.info.kind == "sglang" and evidence.info.async_loop is not False:
        says = "with overlapped scheduling the time of a batch is that of its launch, so host and device do not part"
        flag = "--disable-overlap-schedule, or SGLANG_ENABLE_METRICS_DEVICE_TIMER=1"
        return Check(id="kernel.host", state="not observable", says=says, flag=flag)
    # An idle scheduler polls, and that counts as host time: only a loop that never ran dry can be judged.
    if not steps.total or min(evidence.gauge("running"), default=0) == 0:
        return Check(id="kernel.host", state="info", says="host share: the engine was not busy throughout")
    # The native core's step holds its scheduling; SGLang's run_batch stage does not.
    whole = steps.total if evidence.info.kind == "native" else steps.total + host.total
    share = min(host.total / whole, 1.0)
    says = f"host {share:.0%} of the engine loop ({seconds(host.total)} of {seconds(whole)})"
    figures = [window("host share", share, "1")]
    if share > HOST_SHARE:
        why = f"above {HOST_SHARE:.0%} scheduling and preparation, not the forward pass, set the pace"
        return Check(id="kernel.host", state="warn", says=says, why=why, figures=figures)
    return Check(id="kernel.host", state="ok", says=says, figures=figures)


def _graphs(evidence: Evidence) -> Check:
    reading, grown = evidence.now("graph_fallback_steps"), evidence.grew("graph_fallback_steps")
    if reading.value is None:
        return missing("kernel.graphs", reading)
    if evidence.settings.get("device") == "cpu":
        return Check(id="kernel.graphs", state="info", says="no graphs on a CPU, every pass is eager")
    if grown is None or grown.total == 0:
        return Check(id="kernel.graphs", state="info", says="no eager pass while we watched")
    steps = evidence.grew("step_time")
    of = f" of {steps.count:.0f}" if steps and steps.count else ""
    figures = [window("graph_fallback_steps", grown.total, "steps")]
    says = f"{grown.total:.0f}{of} passes outside a captured graph in window"
    why = "prefill passes may be eager by design; decode passes that are cost a launch per kernel"
    return Check(id="kernel.graphs", state="info", says=says, why=why, figures=figures)


def _machine(evidence: Evidence) -> Check:
    host = evidence.host
    if host is None:
        return Check(id="kernel.machine", state="not observable", says=evidence.why_no_host)
    gpus = f"{len(host.gpu_names)} GPU ({host.gpu_names[0]})" if host.gpu_names else "no GPU"
    says = f"this machine: {host.cpu:.0%} of {host.cores} cores busy, {gpus}"
    figures = [window("cpu busy", host.cpu, "1")]
    if host.cpu >= CPU_FULL:
        why = "the engine shares its cores with everything that runs here; steps wait for a core"
        return Check(id="kernel.machine", state="warn", says=says, why=why, figures=figures)
    # Free cores do not show that the engine is quick, so this passes nothing.
    return Check(id="kernel.machine", state="info", says=says, figures=figures)
