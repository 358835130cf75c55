"""Percentiles and means with intervals that hold within one run.

Requests of one run share batches, caches and clocks, so these intervals say how well *this run* is known. They do not
say what another run would give: that takes repeats on fresh servers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 20240229  # resampling is part of the arithmetic: the same rows give the same interval
MIN_FOR_MEAN = 10  # fewer values resample to an interval that is far too narrow
_BATCH = 2_000_000  # block draws held at once


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval. `supported` is False where the sample cannot bound it on both sides."""

    value: float
    low: float | None
    high: float | None
    n: int
    method: str

    @property
    def supported(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def interval(self) -> tuple[float, float] | None:
        return (self.low, self.high) if self.low is not None and self.high is not None else None


def rank_of(n: int, q: float) -> int:
    """Nearest rank: the smallest r with r / n >= q, counted from 1 (Hyndman & Fan 1996, definition 1)."""
    return max(1, math.ceil(Fraction(repr(q)) * n))


def interval_ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Ranks (l, u) whose order statistics bound the q-quantile, each tail with at most half of 1 - confidence.

    With X ~ Bin(n, q): l is the largest rank with P(X <= l - 1) <= tail, u the smallest with P(X >= u) <= tail
    (David & Nagaraja, Order Statistics, section 7.1). l = 0 and u = n + 1 are unbounded.
    """
    from scipy.special import bdtr  # scipy.stats would take two seconds to import

    tail = (1.0 - confidence) / 2.0
    below = bdtr(np.arange(n + 1), n, q)  # P(X <= k), k = 0 … n
    low = int(np.searchsorted(below, tail, side="right"))
    above = 1.0 - below  # P(X >= k + 1)
    high = int(np.argmax(above <= tail)) + 1 if (above <= tail).any() else n + 1
    return low, high


def percentile(values: NDArray[np.float64], q: float) -> Estimate | None:
    """Nearest-rank percentile with its order-statistic interval; None without values."""
    ordered = np.sort(values)
    n = len(ordered)
    if n == 0:
        return None
    low, high = interval_ranks(n, q)
    return Estimate(
        value=float(ordered[rank_of(n, q) - 1]),
        low=float(ordered[low - 1]) if low >= 1 else None,
        high=float(ordered[high - 1]) if high <= n else None,
        n=n,
        method="order statistics, within this run",
    )


def mean(values: NDArray[np.float64]) -> Estimate | None:
    """Mean of values in time order, with a circular moving-block bootstrap interval; None without values."""
    n = len(values)
    if n == 0:
        return None
    value = float(values.mean())
    if n < MIN_FOR_MEAN:
        return Estimate(value, None, None, n, f"no interval from {n} values")
    length = block_length(values)
    means = _resampled_means(values, length)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high), n, f"moving-block bootstrap, blocks of {length}, within this run")


def block_length(values: NDArray[np.float64]) -> int:
    """Block length for a series that is about AR(1): (2 r / (1 - r^2))^(2/3) n^(1/3), r the lag-1 autocorrelation.

    Carlstein (1986). At least 1, at most a third of the series.
    """
    n = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if n < 3 or power <= 0.0:
        return 1
    r = min(abs(float(centred[:-1] @ centred[1:]) / power), 0.99)
    return int(min(max(1, math.ceil((2.0 * r / (1.0 - r * r)) ** (2.0 / 3.0) * n ** (1.0 / 3.0))), max(1, n // 3)))


def _resampled_means(values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Means of RESAMPLES series made of randomly placed blocks; the series is closed to a ring, so ends count too."""
    n = len(values)
    blocks = math.ceil(n / length)
    ring = np.concatenate([values, values[:length]])
    sums = np.concatenate([[0.0], np.cumsum(ring)])
    block_sums = sums[length : length + n] - sums[:n]
    generator = np.random.Generator(np.random.Philox(SEED))
    means: list[NDArray[np.float64]] = []
    left = RESAMPLES
    while left:
        size = max(1, min(left, _BATCH // blocks))
        starts = generator.integers(0, n, size=(size, blocks))
        means.append(block_sums[starts].sum(axis=1) / (blocks * length))
        left -= size
    return np.concatenate(means)
