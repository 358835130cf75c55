"""Queue: do requests wait, for how long, and are any turned away?"""

from __future__ import annotations

from harness.observe.checks.figures import lifetime, mean, missing, now, window
from harness.observe.evidence import Evidence
from harness.observe.look_report import Check, Figure

QUEUE_SHARE = 0.5  # of TTFT: from here on the wait, not the computation, decides when an answer begins


def queue_checks(evidence: Evidence) -> list[Check]:
    return [_depth(evidence), _wait(evidence), _rejections(evidence)]


def _depth(evidence: Evidence) -> Check:
    waiting, running = evidence.gauge("queue_depth"), evidence.gauge("running")
    if not waiting:
        return missing("queue.depth", evidence.now("queue_depth"))
    figures = [now("queue_depth", waiting[-1], "requests"), window("queue_depth max", max(waiting), "requests")]
    says = f"{waiting[-1]:.0f} waiting (at most {max(waiting):.0f})"
    if running:
        figures.append(now("running", running[-1], "requests"))
        slots = evidence.info.max_num_seqs
        says += f", {running[-1]:.0f} running" + (f" of {slots}" if slots else "")
    deferred = evidence.gauge("queue_deferred")
    if deferred and max(deferred) > 0:
        figures.append(now("queue_deferred", deferred[-1], "requests"))
        says += f", {deferred[-1]:.0f} held back for another reason than room"
    if len(waiting) >= 2 and min(waiting) > 0:
        why = f"a queue stood in each of {len(waiting)} scrapes: more arrives than is served, or room is short"
        return Check(id="queue.depth", state="warn", says=says, why=why, figures=figures)
    return Check(id="queue.depth", state="ok", says=says, figures=figures)


def _wait(evidence: Evidence) -> Check:
    says, figures = mean(evidence, "queue_time", "wait")
    reading = evidence.now("queue_time")
    if not says:
        return missing("queue.wait", reading)
    share, scope = _share_of_ttft(evidence)
    if share is None:
        return Check(id="queue.wait", state="info", says=says, why="; ".join(reading.traps), figures=figures)
    says += f"; {share:.0%} of TTFT"
    if share > QUEUE_SHARE:
        why = f"more than half of the time to first token is waiting ({scope})"
        return Check(id="queue.wait", state="warn", says=says, why=why, figures=figures)
    return Check(id="queue.wait", state="ok", says=says, figures=figures)


def _share_of_ttft(evidence: Evidence) -> tuple[float | None, str]:
    """Mean queue time by mean TTFT, of the window where both were observed in it, else since the start.

    Engines count the two at different moments of a request, so the ratio is taken only where about as many requests
    are in one as in the other.
    """
    wait, ttft = evidence.grew("queue_time"), evidence.grew("ttft")
    if wait and ttft and wait.mean is not None and ttft.mean and _alike(wait.count, ttft.count):
        return wait.mean / ttft.mean, "in the window"
    waited, first = evidence.now("queue_time"), evidence.now("ttft")
    if waited.value is None or not first.value or not _alike(waited.count, first.count):
        return None, ""
    return waited.value / first.value, "since the engine's start"


def _alike(one: float | None, other: float | None) -> bool:
    """Whether two numbers of requests differ by at most a tenth."""
    return bool(one and other) and abs((one or 0) - (other or 0)) <= 0.1 * max(one or 0, other or 0)


def _rejections(evidence: Evidence) -> Check:
    reading, grown = evidence.now("rejections"), evidence.grew("rejections")
    if reading.value is None and not reading.unborn:
        return missing("queue.rejections", reading)
    total = reading.value or 0.0
    figures: list[Figure] = [lifetime("rejections", total, "requests")]
    says = f"{total:.0f} refused since start"
    if grown is not None and grown.total > 0:
        figures.append(window("rejections", grown.total, "requests"))
        why = f"{grown.total:.0f} refused while we watched: the queue's limit is reached"
        return Check(id="queue.rejections", state="warn", says=says, why=why, figures=figures)
    # Refusals of the past are a figure to know, neither a fault of now nor proof that all is well.
    return Check(id="queue.rejections", state="info" if total else "ok", says=says, figures=figures)
