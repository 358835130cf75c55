"""Engine signals over time, and how they are read in a window: gauges, counters, and sum-and-count pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SignalKind = Literal["gauge", "counter", "pair", "info"]


@dataclass(frozen=True)
class Absent:
    """A signal that this cell cannot show, and what would show it."""

    signal: str
    why: str
    flag: str = ""


@dataclass(frozen=True)
class Series:
    """One canonical signal of one engine. `t` in seconds since the cell's zero, rising; values in SI units.

    counter: cumulative values, resets already taken out. pair: `value` is the cumulative sum of observations and
    `count` their cumulative number (a histogram's _sum and _count). gauge: the value as scraped.
    """

    signal: str
    kind: SignalKind
    unit: str
    t: Floats
    value: Floats
    query: str
    count: Floats | None = None
    resets: int = 0
    note: str = ""

    def growth(self, begin: float | None = None, end: float | None = None) -> float:
        """What a counter (or a pair's sum) grew by; between scrapes it is taken to grow evenly."""
        return _growth(self.t, self.value, begin, end)

    def count_growth(self, begin: float | None = None, end: float | None = None) -> float:
        return 0.0 if self.count is None else _growth(self.t, self.count, begin, end)

    def mean_of_pair(self, begin: float | None = None, end: float | None = None) -> float | None:
        """Mean observation in the window; None where nothing was observed."""
        number = self.count_growth(begin, end)
        return self.growth(begin, end) / number if number > 0 else None

    def at(self, times: Floats) -> Floats:
        """Value at each time: interpolated for counters, the last scrape's for gauges; NaN before the first scrape."""
        if not len(self.t):
            return np.full(len(times), np.nan)
        if self.kind in ("counter", "pair"):
            return np.where(times < self.t[0], np.nan, np.interp(times, self.t, self.value))
        place = np.searchsorted(self.t, times, side="right") - 1
        return np.where(place < 0, np.nan, self.value[np.maximum(place, 0)])

    def inside(self, begin: float, end: float) -> Floats:
        """The scraped values of a gauge in a window."""
        return self.value[(self.t >= begin) & (self.t <= end) & np.isfinite(self.value)]

    def time_mean(self, begin: float, end: float) -> float | None:
        """Time-weighted mean of a gauge, each scrape standing until the next; None without a scrape to stand on."""
        inner = self.t[(self.t > begin) & (self.t < end)]
        edges = np.concatenate([[begin], inner, [end]])
        held = self.at(edges[:-1])
        width = np.diff(edges)
        known = np.isfinite(held) & (width > 0)
        return float((held[known] * width[known]).sum() / width[known].sum()) if known.any() else None

    def maximum(self, begin: float, end: float) -> float | None:
        values = self.inside(begin, end)
        return float(values.max()) if len(values) else None


def _growth(t: Floats, value: Floats, begin: float | None, end: float | None) -> float:
    if len(t) < 2:
        return 0.0
    low = value[0] if begin is None else np.interp(begin, t, value)
    high = value[-1] if end is None else np.interp(end, t, value)
    return float(high - low)


class Signals:
    """All canonical signals of one cell."""

    def __init__(self, found: Mapping[str, Series], absent: Mapping[str, Absent], why_none: str = "") -> None:
        self._found = dict(found)
        self._absent = dict(absent)
        self._why_none = why_none

    def get(self, signal: str) -> Series | None:
        return self._found.get(signal)

    def absent(self, signal: str) -> Absent:
        """Why `get` gave nothing."""
        return self._absent.get(signal, Absent(signal, self._why_none or "this engine exports no metric for it"))

    @property
    def names(self) -> list[str]:
        return sorted(self._found)

    @property
    def resets(self) -> int:
        return max((series.resets for series in self._found.values()), default=0)

    @property
    def scrapes(self) -> int:
        return max((len(series.t) for series in self._found.values()), default=0)
