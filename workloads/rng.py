"""Random numbers that never change: Philox words, mapped to values by rules written here.

numpy keeps the raw words of its bit generators fixed for ever (NEP 19) but not what Generator makes of them, so only
the words are used. Each purpose has a stream of its own, keyed by seed and labels: a longer suffix or one more request
does not move the tokens of another.

Philox: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from workloads import exactmath

T = TypeVar("T")

_WORDS = 1 << 64


class Stream:
    """One reproducible sequence of random words."""

    def __init__(self, key: int) -> None:
        self._philox = np.random.Philox(key=key)

    @classmethod
    def of(cls, seed: int, *labels: str | int) -> Stream:
        """The stream for a seed and a purpose. The 128-bit key is the head of SHA-256 over seed and labels."""
        text = "\x1f".join(["servescope-stream-1", str(int(seed)), *(str(label) for label in labels)])
        return cls(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little"))

    def words(self, n: int) -> NDArray[np.uint64]:
        """The next n raw 64-bit words."""
        raw: NDArray[np.uint64] = self._philox.random_raw(n)
        return raw

    def integers(self, bound: int, n: int) -> list[int]:
        """n integers, uniform on 0 … bound − 1 (1 <= bound <= 2^63). Words at or above the largest multiple of
        `bound` are dropped, so that no value is likelier than another."""
        if not 1 <= bound <= 1 << 63:
            raise ValueError(f"bound {bound} is not in 1 … 2^63")
        last = np.uint64(_WORDS - _WORDS % bound - 1)
        values: list[int] = []
        while len(values) < n:
            words = self.words(n - len(values))
            values.extend((words[words <= last] % np.uint64(bound)).tolist())
        return values

    def below(self, bound: int) -> int:
        """One integer, uniform on 0 … bound − 1."""
        return self.integers(bound, 1)[0]

    def uniform(self) -> float:
        """A float on [0, 1): the top 53 bits of a word, so that every value is exact."""
        return int(self.words(1)[0] >> np.uint64(11)) * 2.0**-53

    def exponential(self) -> float:
        """Exponential with mean 1, by inversion of 1 − u, which is never 0."""
        return -exactmath.log(1.0 - self.uniform())

    def normal(self) -> float:
        """Standard normal by Marsaglia's polar method; the second value of the pair is dropped to keep no state."""
        while True:
            x, y = 2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                return x * math.sqrt(-2.0 * exactmath.log(square) / square)

    def gamma(self, shape: float) -> float:
        """Gamma with the given shape and scale 1 (Marsaglia and Tsang, 2000; a shape below 1 by their boost)."""
        if not 0.0 < shape < math.inf:
            raise ValueError(f"shape {shape!r} is not above 0")
        boost = 1.0
        if shape < 1.0:
            boost = exactmath.exp(exactmath.log(1.0 - self.uniform()) / shape)
            shape += 1.0
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            base = 1.0 + c * x
            if base <= 0.0:
                continue
            v = base * base * base
            if exactmath.log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * exactmath.log(v):
                return boost * d * v

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A random order of all items (Fisher and Yates)."""
        return [items[i] for i in self.sample(len(items), len(items))]

    def sample(self, bound: int, k: int) -> list[int]:
        """k distinct integers below `bound` in random order: Fisher and Yates on a sparse array, O(k) of memory."""
        if not 0 <= k <= bound:
            raise ValueError(f"{k} distinct values below {bound}")
        moved: dict[int, int] = {}
        picked = []
        for i in range(k):
            j = i + self.below(bound - i)
            picked.append(moved.get(j, j))
            moved[j] = moved.get(i, i)
        return picked
