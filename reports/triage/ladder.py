"""The evidence ladder: the six stages in their fixed order, each with what was seen or why it could not be."""

from __future__ import annotations

from harness.records.judgements import STAGES, Stage, StageName
from reports.cell import Cell
from reports.metrics import Measured
from reports.series import Signals
from reports.triage import batch_shape, communication, gpu_kernel, kv_cache, model_config, queue
from reports.triage.view import View

LOOK = {
    "queue": queue.look,
    "kv_cache": kv_cache.look,
    "gpu_kernel": gpu_kernel.look,
    "communication": communication.look,
    "batch_shape": batch_shape.look,
    "model_config": model_config.look,
}

TITLES: dict[StageName, str] = {
    "queue": "queue",
    "kv_cache": "KV cache",
    "gpu_kernel": "GPU kernel and host",
    "communication": "communication",
    "batch_shape": "batch shape",
    "model_config": "model config",
}


def ladder(cell: Cell, signals: Signals, measured: dict[str, Measured]) -> list[Stage]:
    """One entry per stage. Nothing is ruled out or implicated here: that takes a baseline to compare with."""
    begin, end = cell.span or (0.0, 0.0)
    view = View(cell, signals, measured, begin, end)
    return [LOOK[name](view) for name in STAGES]
