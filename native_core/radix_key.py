"""Keys of the radix tree: token ids as bytes, the namespace they count in, and how far two keys agree."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

TOKEN_BYTES = 4


class Namespace(NamedTuple):
    """Prompts of different namespaces share nothing (T1). An empty salt is none; an empty extra key is one."""

    extra_key: str | None = None
    cache_salt: str | None = None


def namespace(extra_key: str | None = None, cache_salt: str | None = None) -> Namespace | None:
    """The namespace of a request; None for the one that requests without key and salt share."""
    return Namespace(extra_key, cache_salt or None) if extra_key is not None or cache_salt else None


def encode(ids: Sequence[int]) -> bytes:
    """Token ids as a key: 4 bytes each, so that comparing prefixes is one memcmp. Keep it: making it is the slow part.

    ValueError if an id does not fit into 31 bits and a sign.
    """
    try:
        return struct.pack(f"{len(ids)}i", *ids)
    except struct.error as error:
        raise ValueError(f"token ids must be integers below 2^31: {error}") from None


def common_bytes(edge: bytes, key: bytes, at: int, end: int) -> int:
    """How many of the first `end` bytes of `edge` equal key[at:]: memcmp over doubling runs, then by halves."""
    low, step = 0, 64
    while low + step < end and key.startswith(edge[low : low + step], at + low):
        low += step
        step *= 2
    high = min(low + step, end)
    if key.startswith(edge[low:high], at + low):
        return high
    while high - low > 1:  # edge[:low] is equal, edge[:high] is not
        middle = (low + high) // 2
        if key.startswith(edge[low:middle], at + low):
            low = middle
        else:
            high = middle
    return low
