"""Signals over time, out of the rows of `server.parquet`: one frame a signal, growth between two instants, resets.

For readers of whole runs. A counter that falls was reset: the engine began again from nought, so what it shows after
the fall is growth. Figures from before a cell's first scrape are never part of a growth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.records.signals.catalogue import Catalogue
from harness.records.signals.columns import Column, Columns, Shown, add_up
from harness.records.signals.witness import Witness, product

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Delta:
    """What a cumulative signal grew by. `total` in its unit; of a pair, `count` observations and their mean."""

    total: float
    count: float | None
    resets: int
    begin: int  # monotonic ns of the scrapes that the growth lies between
    end: int

    @property
    def mean(self) -> float | None:
        """Mean observation; None where nothing was observed."""
        return self.total / self.count if self.count else None

    @property
    def rate(self) -> float | None:
        """Growth per second; None for a window without length."""
        return self.total / ((self.end - self.begin) / 1e9) if self.end > self.begin else None


class SignalSeries:
    """All signals of one target in a `server` table. Times are monotonic ns, those at which a scrape was received.

    What a witness says is said for all scrapes at once, by the rules that `witness.read` has for a single one.
    """

    def __init__(self, table: pa.Table, kind: str, *, version: str | None = None, target: str | None = None) -> None:
        """UsageError for a kind without a catalogue. `target` picks one of several servers; left out, all count."""
        self.catalogue = Catalogue.load(kind)
        self._witnesses = self.catalogue.signals(version)
        self._columns = Columns(table, target)
        self._frames: dict[str, pd.DataFrame] = {}

    @property
    def scrapes(self) -> list[int]:
        return [int(t) for t in self._columns.times]

    def series(self, signal: str) -> pd.DataFrame:
        """Index: t_end. Columns: value, or for a pair total and count. Resets are taken out; empty if not exported."""
        if signal not in self._frames:
            self._frames[signal] = self._frame(signal)
        return self._frames[signal].copy()

    def delta(self, signal: str, begin: int | None = None, end: int | None = None) -> Delta | None:
        """Growth of a counter or pair from the last scrape at or before `begin` to the first at or after `end`.

        Left out, or beyond the scrapes: the first and the last of them. None where the signal is not exported or only
        one scrape is there. A lazy series that comes later counts from nought.
        """
        witness = self._witness(signal)
        if witness is None or not witness.counters:
            return None
        times = self.scrapes
        if not times:
            return None
        first = max((t for t in times if begin is not None and t <= begin), default=times[0])
        last = min((t for t in times if end is not None and t >= end), default=times[-1])
        if last <= first:
            return None
        frame = self.series(signal).reindex(times).ffill().fillna(0.0)
        grown = {str(name): float(frame[name].loc[last] - frame[name].loc[first]) for name in frame.columns}
        between = times.index(first), times.index(last)
        resets = max(self._columns.resets(name, witness, *between) for name in witness.counters)
        pair = witness.signal.kind == "pair"
        total = grown["total" if pair else "value"]
        return Delta(total, grown["count"] if pair else None, resets, first, last)

    def _witness(self, signal: str) -> Witness | None:
        """The first witness whose series are in the table."""
        for witness in self._witnesses.get(signal, ()):
            if all(name in self._columns.metrics for name in witness.counters or (witness.metric,)):
                return witness
        return None

    def _frame(self, signal: str) -> pd.DataFrame:
        import pandas as pd

        witness = self._witness(signal)
        if witness is None:
            return pd.DataFrame({"value": pd.Series(dtype=float)})
        if witness.signal.kind == "pair":
            shown = self._pair(witness)
        elif witness.signal.kind == "info" or witness.label:
            shown = {"value": self._info(witness)}
        else:
            shown = {"value": self._value(witness)}
        there = np.logical_and.reduce([one.there for one in shown.values()])
        index = pd.Index(self._columns.times[there], name="t_end")
        return pd.DataFrame({name: one.value[there] for name, one in shown.items()}, index=index)

    def _pair(self, witness: Witness) -> dict[str, Shown]:
        sums = [self._put_together(name, witness) for name in witness.counters[:-1]]
        there = np.logical_and.reduce([one.there for one in sums])
        total = np.add.reduce([one.value for one in sums]) * witness.scale
        if witness.count:  # a counter of its own, with labels of its own
            count = add_up(self._columns.continued(witness.count_name), "sum", len(there))
        else:
            count = self._put_together(witness.count_name, witness)
        return {"total": Shown(total, there), "count": count}

    def _value(self, witness: Witness) -> Shown:
        shown = self._put_together(witness.metric, witness)
        if not witness.share_of:
            return Shown(shown.value * witness.scale, shown.there)
        whole = self._put_together(witness.share_of, witness)
        there = shown.there & whole.there & (whole.value != 0)
        value = np.divide(shown.value, whole.value, out=np.zeros(len(there)), where=there)
        return Shown(value * witness.scale, there)

    def _info(self, witness: Witness) -> Shown:
        """An info series has its number in a label; where one of them cannot be read, the scrape says nothing."""
        column = self._columns.picked(self._columns.column(witness.metric), witness)
        column = column.where(column.value != 0)
        size = len(self._columns.times)
        if not witness.label:
            shown = add_up(column, "first", size)
            return Shown(np.ones(size), shown.there)
        number = self._columns.by_labels(column, lambda labels: product(witness, labels))
        read = ~np.isnan(number)
        shown = add_up(Column(column.scrape[read], column.labels[read], number[read]), witness.aggregate, size)
        unread = np.bincount(column.scrape[~read], minlength=size) > 0
        return Shown(shown.value * witness.scale, shown.there & ~unread)

    def _put_together(self, metric: str, witness: Witness) -> Shown:
        columns = self._columns
        column = columns.continued(metric) if witness.counters else columns.column(metric)
        return add_up(columns.picked(column, witness), witness.aggregate, len(columns.times))
