"""The engine's signals of one cell under the names that every engine shares: the catalogue applied to the scrapes."""

from __future__ import annotations

import numpy as np

from harness.records.signals.catalogue import KINDS, Catalogue, canonical
from harness.records.signals.series import SignalSeries
from harness.records.signals.witness import Canonical, Reading, Witness
from reports.cell import Cell, Floats
from reports.series import Absent, Series, Signals


def signals_of(cell: Cell) -> Signals:
    """Every signal that the cell's scrapes hold, and for the others the reason why they do not."""
    table, info = cell.tables["server"], cell.manifest.engine
    if not len(table):
        return Signals({}, {}, "the engine was not scraped in this run")
    if info.kind not in KINDS:
        return Signals({}, {}, f"the metrics of a {info.kind} server are not known here")
    kept = SignalSeries(table, info.kind, version=info.version)
    catalogue = Catalogue.load(info.kind)
    exported = set(table["metric"].unique().to_pylist())
    missing = catalogue.resolve((), info.version)  # of an empty scrape: why each signal would be absent
    found: dict[str, Series] = {}
    absent: dict[str, Absent] = {}
    for name, witnesses in catalogue.signals(info.version).items():
        signal = canonical()[name]
        if signal.kind == "info":
            continue
        series = _series(cell, kept, signal, _speaking(witnesses, exported)) or _unborn(
            cell, kept, signal, missing[name]
        )
        if series is None:
            absent[name] = Absent(name, missing[name].why, missing[name].flag)
        else:
            found[name] = series
    return Signals(found, absent)


def _speaking(witnesses: tuple[Witness, ...], exported: set[str]) -> Witness | None:
    """The first witness whose series are in the table."""
    for witness in witnesses:
        if all(metric in exported for metric in witness.counters or (witness.metric,)):
            return witness
    return None


def _series(cell: Cell, kept: SignalSeries, signal: Canonical, witness: Witness | None) -> Series | None:
    frame = kept.series(signal.name)
    if witness is None or not len(frame):
        return None
    if witness.counters:  # a series that comes late began at nought, one that is missing later stands where it was
        frame = frame.reindex(kept.scrapes).ffill().fillna(0.0)
    grown = kept.delta(signal.name) if witness.counters else None
    return Series(
        signal=signal.name,
        kind=signal.kind,
        unit=signal.unit,
        t=_seconds(cell, frame.index.to_numpy(dtype=np.int64)),
        value=frame["total" if signal.kind == "pair" else "value"].to_numpy(dtype=np.float64),
        query=witness.query,
        count=frame["count"].to_numpy(dtype=np.float64) if signal.kind == "pair" else None,
        resets=grown.resets if grown is not None else 0,
        note="; ".join(witness.traps),
    )


def _unborn(cell: Cell, kept: SignalSeries, signal: Canonical, reading: Reading) -> Series | None:
    """A counter that is exported from its first event on, and had none: it stood at nought all the time."""
    if not reading.unborn or signal.kind != "counter":
        return None
    t = _seconds(cell, np.asarray(kept.scrapes, dtype=np.int64))
    return Series(signal.name, "counter", signal.unit, t, np.zeros(len(t)), query="", note=reading.why)


def _seconds(cell: Cell, t: np.typing.NDArray[np.int64]) -> Floats:
    return np.asarray((t - cell.zero) / 1e9, dtype=np.float64)
