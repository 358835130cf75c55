"""Signals over time, out of the rows of `server.parquet`: one frame a signal, growth between two instants, resets.

For readers of whole runs. A counter that falls was reset: the engine began again from nought, so what it shows after
the fall is growth. Figures from before a cell's first scrape are never part of a growth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records.signals.catalogue import Catalogue
from harness.records.signals.witness import Reading, Witness, read

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
    """All signals of one target in a `server` table. Times are monotonic ns, those at which a scrape was received."""

    def __init__(self, table: pa.Table, kind: str, *, version: str | None = None, target: str | None = None) -> None:
        """UsageError for a kind without a catalogue. `target` picks one of several servers; left out, all count."""
        frame = table.select(["t_end", "target", "metric", "labels", "value"]).to_pandas()
        if target is not None:
            frame = frame[frame["target"] == target]
        self.catalogue = Catalogue.load(kind)
        self._version = version
        self._frame: pd.DataFrame = frame.astype({"metric": str, "labels": str})
        self._labels = {text: json.loads(text or "{}") for text in self._frame["labels"].unique()}
        self._continued: dict[str, tuple[pd.DataFrame, int]] = {}

    @property
    def scrapes(self) -> list[int]:
        return sorted(int(t) for t in self._frame["t_end"].unique())

    def series(self, signal: str) -> pd.DataFrame:
        """Index: t_end. Columns: value, or for a pair total and count. Resets are taken out; empty if not exported."""
        import pandas as pd

        witness = self._witness(signal)
        if witness is None:
            return pd.DataFrame({"value": pd.Series(dtype=float)})
        rows = [self._reading(witness, t, group) for t, group in self._groups(witness)]
        return pd.DataFrame([row for row in rows if row is not None]).set_index("t_end")

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
        resets = max(self._resets(name, witness, first, last) for name in witness.counters)
        pair = witness.signal.kind == "pair"
        total = grown["total" if pair else "value"]
        return Delta(total, grown["count"] if pair else None, resets, first, last)

    def _witness(self, signal: str) -> Witness | None:
        """The first witness whose series are in the table."""
        names = set(self._frame["metric"].unique())
        for witness in self.catalogue.signals(self._version).get(signal, ()):
            needed = witness.counters or (witness.metric,)
            if all(name in names for name in needed):
                return witness
        return None

    def _groups(self, witness: Witness) -> Any:
        """The witness's rows scrape by scrape, cumulative ones without their resets."""
        import pandas as pd

        names = witness.counters or tuple(name for name in (witness.metric, witness.share_of) if name)
        parts = [self._without_resets(name)[0] if witness.counters else self._rows(name) for name in names]
        return pd.concat(parts).groupby("t_end", sort=True)

    def _rows(self, metric: str) -> pd.DataFrame:
        return self._frame[self._frame["metric"] == metric]

    def _without_resets(self, metric: str) -> tuple[pd.DataFrame, int]:
        """Rows of one cumulative metric, each label set continued over its resets, and how often one fell."""
        if metric not in self._continued:
            wide = self._rows(metric).pivot_table(index="t_end", columns="labels", values="value", aggfunc="last")
            wide = wide.ffill()
            fallen = wide.diff() < 0
            lost = wide.shift().where(fallen, 0.0).fillna(0.0).cumsum()
            long = (wide + lost).reset_index().melt(id_vars="t_end", var_name="labels", value_name="value")
            self._continued[metric] = (long.assign(metric=metric), int(fallen.sum().max()))
        return self._continued[metric]

    def _resets(self, metric: str, witness: Witness, first: int, last: int) -> int:
        rows = self._rows(metric)
        picked = rows["labels"].map(lambda text: witness.matches(self._labels[text]))
        wide = rows[picked & rows["t_end"].between(first, last)].pivot_table(
            index="t_end", columns="labels", values="value", aggfunc="last"
        )
        return int((wide.diff() < 0).sum().max()) if len(wide) else 0

    def _reading(self, witness: Witness, t: int, group: pd.DataFrame) -> dict[str, float] | None:
        index: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for metric, labels, value in zip(group["metric"], group["labels"], group["value"], strict=True):
            if value == value:  # NaN: the exporter has no value yet
                index.setdefault(metric, []).append((self._labels[labels], float(value)))
        reading: Reading | None = read(witness, index)
        if reading is None:
            return None
        if witness.signal.kind == "pair":
            return {"t_end": t, "total": float(reading.total or 0.0), "count": float(reading.count or 0.0)}
        return None if reading.value is None else {"t_end": t, "value": reading.value}
