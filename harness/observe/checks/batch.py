"""Batch shape: how much goes into a step, and whether the limits on it bind."""

from __future__ import annotations

from harness.observe.checks.figures import mean, missing, now, tokens, window
from harness.observe.evidence import Evidence
from harness.observe.look_report import Check

NEAR_BUDGET = 0.9  # mean step by budget: from here on most steps are cut by it


def batch_checks(evidence: Evidence) -> list[Check]:
    return [_slots(evidence), _steps(evidence), _mix(evidence)]


def _slots(evidence: Evidence) -> Check:
    running, waiting, slots = evidence.gauge("running"), evidence.gauge("queue_depth"), evidence.info.max_num_seqs
    if not running:
        return missing("batch.slots", evidence.now("running"))
    if not slots:
        says = f"{running[-1]:.0f} running; the limit on running requests is not exported"
        flag = "VLLM_SERVER_DEV_MODE=1" if evidence.info.kind == "vllm" else ""
        return Check(id="batch.slots", state="not observable", says=says, flag=flag)
    says = f"{running[-1]:.0f} of {slots} slots taken (at most {max(running):.0f})"
    figures = [now("running", running[-1], "requests"), window("running max", max(running), "requests")]
    if min(running) >= slots and waiting and min(waiting) > 0:
        why = "every slot is taken while requests wait: the limit on running requests binds"
        return Check(id="batch.slots", state="warn", says=says, why=why, figures=figures)
    return Check(id="batch.slots", state="ok", says=says, figures=figures)


def _steps(evidence: Evidence) -> Check:
    says, figures = mean(evidence, "step_tokens", "step")
    if not says:
        return missing("batch.steps", evidence.now("step_tokens"))
    budget, grown = evidence.info.max_batched_tokens, evidence.grew("step_tokens")
    if budget is None or budget <= 0 or grown is None or grown.mean is None:
        why = "" if budget else "the budget of a step is not exported"
        return Check(id="batch.steps", state="info", says=says, why=why, figures=figures)
    says += f" of a budget of {tokens(budget)}"
    if grown.mean >= NEAR_BUDGET * budget:
        why = "most steps are cut by the token budget: prefills are spread, and decodes ride along in long steps"
        return Check(id="batch.steps", state="warn", says=says, why=why, figures=figures)
    return Check(id="batch.steps", state="ok", says=says, figures=figures)


def _mix(evidence: Evidence) -> Check:
    """Prefill beside decode: no limit, but the first thing to know about a step's length."""
    computed, made = evidence.grew("prefill_computed_tokens"), evidence.grew("output_tokens")
    if computed is None or made is None:
        return missing("batch.mix", evidence.now("prefill_computed_tokens"))
    if not computed.total and not made.total:
        return Check(id="batch.mix", state="info", says="no token computed while we watched")
    figures = [
        window("prefill_computed_tokens", computed.total, "tokens"),
        window("output_tokens", made.total, "tokens"),
    ]
    says = f"{tokens(computed.total)} prefill and {tokens(made.total)} decode tokens in window"
    return Check(id="batch.mix", state="info", says=says, figures=figures)
