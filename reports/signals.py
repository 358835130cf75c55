"""The engine's signals of one cell, by the names that every engine shares."""

from __future__ import annotations

from reports.cell import Cell
from reports.series import Signals


def signals_of(cell: Cell) -> Signals:
    if not len(cell.tables["server"]):
        return Signals({}, {}, "the engine was not scraped in this run")
    return Signals({}, {}, f"no catalogue of signals for engine kind {cell.manifest.engine.kind!r}")
