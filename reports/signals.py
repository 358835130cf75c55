"""The engine's signals of one cell under the names that every engine shares, from the scrapes as they were kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reports.cell import Cell, Floats
from reports.readings import READINGS, Reading
from reports.series import Absent, Series, Signals


@dataclass(frozen=True)
class _Scrapes:
    """All samples of a cell: per series (metric, labels) one value a scrape, NaN where the scrape lacks it."""

    t: Floats
    series: Mapping[str, list[tuple[Mapping[str, str], Floats]]]  # metric -> label sets with their values


def signals_of(cell: Cell) -> Signals:
    """Every signal that the cell's scrapes hold, and for the others the reason why they do not."""
    kind = cell.manifest.engine.kind
    if not len(cell.tables["server"]):
        return Signals({}, {}, "the engine was not scraped in this run")
    readings = READINGS.get(kind)
    if readings is None:
        return Signals({}, {}, f"the metrics of a {kind} server are not known here")
    scrapes = _scrapes(cell.tables["server"], cell.zero)
    found: dict[str, Series] = {}
    absent: dict[str, Absent] = {}
    for signal, reading in readings.items():
        series = _read(signal, reading, scrapes)
        if series is None:
            absent[signal] = Absent(signal, f"no scrape holds {reading.metric}", reading.flag)
        else:
            found[signal] = series
    return Signals(found, absent, f"{kind} exports no metric for it")


def _scrapes(table: pa.Table, zero: int) -> _Scrapes:
    """A scrape is what was received at one instant from one target; its time is the middle of sending and receiving."""
    sent, received = (np.asarray(table[name].to_numpy(), dtype=np.int64) for name in ("t_start", "t_end"))
    instants, place = np.unique(received, return_inverse=True)
    begin = np.zeros(len(instants), dtype=np.int64)
    begin[place] = sent
    t = ((begin + instants) / 2.0 - zero) / 1e9
    metric, labels, target = (_codes(table[name]) for name in ("metric", "labels", "target"))
    value = np.asarray(table["value"].to_numpy(zero_copy_only=False), dtype=np.float64)
    key = (metric[0].astype(np.int64) * len(labels[1]) + labels[0]) * len(target[1]) + target[0]
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    series: dict[str, list[tuple[Mapping[str, str], Floats]]] = {}
    for rows in np.split(order, bounds):
        values = np.full(len(instants), np.nan)
        values[place[rows]] = value[rows]
        name, text = metric[1][metric[0][rows[0]]], labels[1][labels[0][rows[0]]]
        series.setdefault(name, []).append((json.loads(text or "{}"), values))
    return _Scrapes(t, series)


def _codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """(code per row, texts) of a text column, null as ""."""
    texts = pc.fill_null(pc.cast(column, pa.string()), "").combine_chunks().dictionary_encode()
    return np.asarray(texts.indices.to_numpy(), dtype=np.int64), texts.dictionary.to_pylist()


def _read(signal: str, reading: Reading, scrapes: _Scrapes) -> Series | None:
    """The series of one signal; None where no scrape holds its metric."""
    if reading.kind == "gauge":
        return _gauge(signal, reading, scrapes)
    name = f"{reading.metric}_sum" if reading.kind == "pair" else reading.metric
    found = _counter(name, reading, scrapes)
    if found is None:
        return None
    value, resets = found
    count = None
    if reading.kind == "pair":
        counted = _counter(f"{reading.metric}_count", reading, scrapes)
        if counted is None:
            return None
        count, resets = counted[0], max(resets, counted[1])
    if reading.plus:
        more = _counter(f"{reading.plus}_sum", reading, scrapes)
        if more is None:
            return None
        value = value + more[0]
    return Series(
        signal=signal,
        kind=reading.kind,
        unit=reading.unit,
        t=scrapes.t,
        value=value * reading.scale,
        query=reading.query,
        count=count,
        resets=resets,
        note=reading.note,
    )


def _counter(metric: str, reading: Reading, scrapes: _Scrapes) -> tuple[Floats, int] | None:
    """Sum over label sets of what each grew by, resets taken out, and how many there were.

    A series that is not there yet has not moved; one that is missing later stands where it was.
    """
    series = scrapes.series.get(metric)
    if series is None:
        return (np.zeros(len(scrapes.t)), 0) if reading.lazy else None
    total, resets = np.zeros(len(scrapes.t)), 0
    for labels, values in series:
        if not _matches(labels, reading):
            continue
        held = np.nan_to_num(_held(values))
        fall = np.diff(held) < 0
        resets += int(fall.sum())
        # After a reset the counter starts from zero: what it shows then is growth.
        total += np.concatenate([[held[0]], held[0] + np.cumsum(np.where(fall, held[1:], np.diff(held)))])
    return total, resets


def _held(values: Floats) -> Floats:
    """Each missing value replaced by the last one before it; NaN before the first."""
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    return np.where(last < 0, np.nan, values[np.maximum(last, 0)])


def _gauge(signal: str, reading: Reading, scrapes: _Scrapes) -> Series | None:
    values = _combined(reading.metric, reading, scrapes)
    if values is None:
        return None
    if reading.share_of:
        whole = _combined(reading.share_of, reading, scrapes)
        if whole is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values / whole
    known = np.isfinite(values)
    if not known.any():
        return None
    return Series(
        signal=signal,
        kind="gauge",
        unit=reading.unit,
        t=scrapes.t[known],
        value=values[known] * reading.scale,
        query=reading.query,
        note=reading.note,
    )


def _combined(metric: str, reading: Reading, scrapes: _Scrapes) -> Floats | None:
    """Sum (or the largest) over the label sets that match, NaN where a scrape has none of them."""
    rows = [values for labels, values in scrapes.series.get(metric, ()) if _matches(labels, reading)]
    if not rows:
        return None
    table = np.vstack(rows)
    known = np.isfinite(table).any(axis=0)
    filled = np.where(np.isfinite(table), table, -np.inf if reading.largest else 0.0)
    return np.where(known, filled.max(axis=0) if reading.largest else filled.sum(axis=0), np.nan)


def _matches(labels: Mapping[str, str], reading: Reading) -> bool:
    return all(labels.get(name) in values for name, values in reading.where.items())
