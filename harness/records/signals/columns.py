"""The rows of a `server` table as arrays by metric: what makes reading a whole run a matter of milliseconds.

A scrape is a place in `times`, a label set a number; label sets are numbered in the order of their text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.records.signals.witness import Aggregate, Witness

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Column:
    """Rows of one metric without NaN, in the order of the table. Three arrays of one length."""

    scrape: Ints
    labels: Ints
    value: Floats

    def where(self, kept: Bools) -> Column:
        return Column(self.scrape[kept], self.labels[kept], self.value[kept])


@dataclass(frozen=True)
class Shown:
    """What is said at each scrape; `value` means nothing where not `there`. Shape of both: (scrapes,)."""

    value: Floats
    there: Bools


class Columns:
    """All metrics of a table. `target` picks the rows of one of several servers; left out, all count."""

    def __init__(self, table: pa.Table, target: str | None = None) -> None:
        import pyarrow.compute as pc

        if target is not None:
            table = table.filter(pc.equal(table["target"], target))
        self.times, scrape = np.unique(np.asarray(table["t_end"].to_numpy(), np.int64), return_inverse=True)
        value = np.asarray(table["value"].to_numpy(), np.float64)
        self._texts, labels = _numbered(table, "labels")
        names, metric = _numbered(table, "metric")
        rows = np.flatnonzero(~np.isnan(value))  # NaN is how an exporter says that it has no value yet
        rows = rows[np.argsort(metric[rows], kind="stable")]
        ends = np.searchsorted(metric[rows], np.arange(len(names) + 1))
        self._columns = {
            name: Column(scrape[part], labels[part], value[part])
            for name, part in zip(names, (rows[a:b] for a, b in pairwise(ends)), strict=True)
        }
        self.metrics = frozenset(names)
        self._parsed: dict[int, Mapping[str, str]] = {}
        self._continued: dict[str, tuple[Column, Ints, Ints, Bools]] = {}

    def column(self, metric: str) -> Column:
        """The rows of a metric as they stand; none for a metric that the table lacks."""
        none = np.empty(0, np.int64)
        return self._columns.get(metric) or Column(none, none, np.empty(0))

    def continued(self, metric: str) -> Column:
        """Of a cumulative metric, each label set continued over its resets and over scrapes that lack it."""
        return self._continue(metric)[0]

    def resets(self, metric: str, witness: Witness, first: int, last: int) -> int:
        """How often one of the witness's label sets fell after the scrape `first` and up to `last`; the most of any."""
        _, scrapes, sets, fell = self._continue(metric)
        within = (scrapes > first) & (scrapes <= last)
        picked = np.array([witness.matches(self._labels(one)) for one in sets], dtype=bool)
        return int(fell[within][:, picked].sum(axis=0).max(initial=0))

    def picked(self, column: Column, witness: Witness) -> Column:
        """The rows whose labels the witness asks for."""
        if not witness.where:
            return column
        return column.where(self.by_labels(column, lambda labels: float(witness.matches(labels))) > 0)

    def by_labels(self, column: Column, number: Callable[[Mapping[str, str]], float | None]) -> Floats:
        """A number for each row by its labels; NaN for None."""
        sets, place = np.unique(column.labels, return_inverse=True)
        numbers = [number(self._labels(one)) for one in sets]
        return np.array([np.nan if one is None else one for one in numbers], dtype=np.float64)[place]

    def _labels(self, number: int) -> Mapping[str, str]:
        if number not in self._parsed:
            self._parsed[number] = json.loads(self._texts[number] or "{}")
        return self._parsed[number]

    def _continue(self, metric: str) -> tuple[Column, Ints, Ints, Bools]:
        """(rows, scrapes that show the metric, its label sets, whether a set fell at a scrape: (scrapes, sets))."""
        if metric not in self._continued:
            column = self.column(metric)
            scrapes, row = np.unique(column.scrape, return_inverse=True)
            sets, place = np.unique(column.labels, return_inverse=True)
            wide = np.full((len(scrapes), len(sets)), np.nan)
            wide[row, place] = column.value
            last_seen = np.where(np.isnan(wide), 0, np.arange(len(scrapes))[:, None])
            wide = np.take_along_axis(wide, np.maximum.accumulate(last_seen, axis=0), axis=0)
            fell = np.zeros(wide.shape, dtype=bool)
            fell[1:] = wide[1:] < wide[:-1]
            lost = np.zeros(wide.shape)
            lost[1:] = np.where(fell[1:], wide[:-1], 0.0)
            wide = wide + lost.cumsum(axis=0)
            row, place = np.nonzero(~np.isnan(wide))
            rows = Column(scrapes[row], sets[place], wide[row, place])
            self._continued[metric] = (rows, scrapes, sets, fell)
        return self._continued[metric]


def add_up(column: Column, aggregate: Aggregate, size: int) -> Shown:
    """The rows of each of `size` scrapes as one number, added in their order."""
    there = np.bincount(column.scrape, minlength=size) > 0
    if aggregate == "sum":
        added = np.bincount(column.scrape, weights=column.value, minlength=size)
        return Shown(added.astype(np.float64, copy=False), there)  # without rows bincount counts in integers
    value = np.full(size, -np.inf)
    if aggregate == "max":
        np.maximum.at(value, column.scrape, column.value)
    else:  # of several assignments to one place the last stands
        value[column.scrape[::-1]] = column.value[::-1]
    return Shown(value, there)


def _numbered(table: pa.Table, name: str) -> tuple[list[str], Ints]:
    """The texts of a column in their order, and for each row the place of its text."""
    import pyarrow as pa

    column = pa.array(table[name].cast(pa.string()).combine_chunks()).dictionary_encode()
    texts: list[str] = column.dictionary.to_pylist()
    order = sorted(range(len(texts)), key=texts.__getitem__)
    rank = np.empty(len(texts), np.int64)
    rank[order] = np.arange(len(texts))
    return [texts[at] for at in order], rank[column.indices.to_numpy()]
