"""KV memory that is allocated and holds no token: what paging leaves in the last block, what reservations leave.

internal   inside an allocation: its size less the tokens that it holds
external   free memory in holes, each too small for the next reservation; paging has none, any block serves anyone
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waste:
    """Shares from 0 to 1 of allocated slots without a token: over all requests, and as the mean of each one's own."""

    aggregate: float
    per_request: float


def last_block_waste(lengths: Iterable[int], block_size: int) -> Waste:
    """Waste of requests of `lengths` tokens, once complete: allocated = block_size · ⌈n / block_size⌉."""
    tokens = allocated = count = 0
    shares = 0.0
    for length in lengths:
        slots = -(-length // block_size) * block_size
        tokens += length
        allocated += slots
        shares += (slots - length) / slots if slots else 0.0
        count += 1
    if not allocated:
        return Waste(0.0, 0.0)
    return Waste((allocated - tokens) / allocated, shares / count)


def waste_while_decoding(requests: Iterable[tuple[int, int]], block_size: int) -> float:
    """Share of allocated slots without a token, over all decode steps of (prompt, output) requests.

    A request has prompt + 1 … prompt + output tokens, one step each: Σ (allocated - n) / Σ allocated over them all.
    """
    tokens = allocated = 0
    for prompt, output in requests:
        low, high = prompt + 1, prompt + output
        tokens += (low + high) * output // 2
        allocated += block_size * (_sum_of_ceilings(high, block_size) - _sum_of_ceilings(low - 1, block_size))
    return (allocated - tokens) / allocated if allocated else 0.0


def _sum_of_ceilings(n: int, size: int) -> int:
    """Σ ⌈k / size⌉ for k = 1 … n."""
    full, rest = divmod(n, size)
    return size * full * (full + 1) // 2 + rest * (full + 1)


def next_power_of_two(tokens: int) -> int:
    return 1 << max(tokens - 1, 0).bit_length()
