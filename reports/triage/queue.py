"""First stage: did requests wait before the engine worked on them, and for what?"""

from __future__ import annotations

from harness.records.judgements import Stage
from reports.triage.view import View, gauge, growth, pair_mean, shown, stage, value


def look(view: View) -> Stage:
    evidence = [
        *gauge(view, "queue_depth"),
        *gauge(view, "queue_deferred"),
        *gauge(view, "running"),
        *pair_mean(view, "queue_time"),
        *growth(view, "rejections"),
    ]
    waiting, running = value(evidence, "queue_depth"), value(evidence, "running")
    words = []
    if waiting is not None:
        words.append("nothing waited in any scrape" if waiting == 0 else f"up to {waiting:.0f} requests waited")
    if running is not None:
        most = view.cell.manifest.engine.max_num_seqs
        words.append(f"up to {running:.0f} ran" + (f" of {most} that may" if most else ""))
    mean = value(evidence, "queue_time")
    if mean is not None:
        words.append(f"mean queue time {shown(mean, 's')}, re-queueing after preemption left out")
    if value(evidence, "rejections"):
        words.append(f"{value(evidence, 'rejections'):,.0f} requests were turned away")
    return stage(view, "queue", "; ".join(words), evidence, ("queue_depth", "running", "queue_time"))
