"""The client's rows against the engine's counters over the whole cell, warm-up included: they must agree exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from reports.cell import Cell
from reports.series import Signals

State = Literal["equal", "explained", "differs", "not_observable"]


@dataclass(frozen=True)
class Line:
    """One sum on both sides. `explained`: the difference lies within what unfinished requests can account for."""

    what: str
    signal: str
    client: int | None
    engine: int | None
    state: State
    why: str = ""

    @property
    def difference(self) -> int | None:
        return None if self.client is None or self.engine is None else self.engine - self.client


def reconcile(cell: Cell, signals: Signals) -> list[Line]:
    """Rows, prompt tokens, output tokens and cached tokens."""
    rows = cell.requests
    ok = rows.where(rows["status"] == "ok")
    unfinished = int((np.isfinite(rows["t_sent"]) & (rows["status"] != "ok")).sum())
    told = np.isfinite(ok["cached_tokens"])
    untold = "" if told.all() else f"{int((~told).sum())} of {len(ok)} answers carry no cached-token count"
    return [
        _line("requests", "finished", len(ok), signals, unfinished),
        _line("prompt tokens", "prompt_tokens", _sum(cell, "prompt_tokens"), signals, unfinished),
        _line("output tokens", "output_tokens", _sum(cell, "output_tokens"), signals, unfinished),
        _line(
            "cached tokens",
            "prefix_hit_tokens",
            None if untold else ok.sum("cached_tokens"),
            signals,
            unfinished,
            untold,
        ),
    ]


def _sum(cell: Cell, column: str) -> int | None:
    """Sum over ok rows; None where one of them has no count."""
    rows = cell.requests.where(cell.requests["status"] == "ok")
    return rows.sum(column) if np.isfinite(rows[column]).all() else None


def _line(what: str, signal: str, client: int | None, signals: Signals, unfinished: int, why_none: str = "") -> Line:
    series = signals.get(signal)
    if series is None:
        return Line(what, signal, client, None, "not_observable", signals.absent(signal).why)
    if len(series.t) < 2:
        return Line(what, signal, client, None, "not_observable", "fewer than two scrapes")
    growth = series.count_growth() if series.kind == "pair" else series.growth()
    engine = round(growth)
    if client is None:
        why = why_none or f"some answers carry no {what}"
        return Line(what, signal, None, engine, "not_observable", why)
    if series.resets:
        return Line(
            what, signal, client, engine, "differs", "the engine's counters were reset: it restarted in the run"
        )
    if client == engine:
        return Line(what, signal, client, engine, "equal")
    if unfinished and engine > client:
        why = f"{unfinished} requests did not finish; the engine counted what it did for them"
        return Line(what, signal, client, engine, "explained", why)
    side = "more" if engine > client else "less"
    return Line(what, signal, client, engine, "differs", f"the engine counted {abs(engine - client):,} {side}")
