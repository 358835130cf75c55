"""Signals written down by hand, for tests that need no scrape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.series import Series, Signals


def gauge(name: str, points: Sequence[tuple[float, float]], unit: str = "1") -> Series:
    t, value = (np.asarray(part, dtype=np.float64) for part in zip(*points, strict=True))
    return Series(name, "gauge", unit, t, value, f"gauge {name}")


def counter(name: str, points: Sequence[tuple[float, float]], unit: str = "tokens", resets: int = 0) -> Series:
    t, value = (np.asarray(part, dtype=np.float64) for part in zip(*points, strict=True))
    return Series(name, "counter", unit, t, value, f"counter {name}", resets=resets)


def pair(name: str, points: Sequence[tuple[float, float, float]], unit: str = "s") -> Series:
    """(time, cumulative sum, cumulative count)."""
    t, value, count = (np.asarray(part, dtype=np.float64) for part in zip(*points, strict=True))
    return Series(name, "pair", unit, t, value, f"pair {name}", count=count)


def signals(*series: Series) -> Signals:
    return Signals({one.signal: one for one in series}, {})
