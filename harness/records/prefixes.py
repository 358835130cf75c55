"""Longest common prefix of each prompt with what was sent before: the raw material of every cache expectation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np


def encode_ids(ids: Sequence[int]) -> bytes:
    """Token ids as big-endian uint32, so that byte order is list order and prefixes stay prefixes."""
    return np.asarray(ids, dtype=">u4").tobytes()


def common_tokens(left: bytes, right: bytes) -> int:
    """Tokens that two encoded id lists share from the start."""
    size = min(len(left), len(right))
    a = np.frombuffer(left[:size], dtype=">u4")
    b = np.frombuffer(right[:size], dtype=">u4")
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if len(differ) else size // 4


def longest_prefixes(
    sequences: Iterable[tuple[str, Sequence[int], Sequence[int]]],
) -> list[tuple[str | None, int]]:
    """For each (id, prompt, answer) in sending order: the earlier request that shares most of the prompt, and how much.

    The earlier side is prompt + answer, since engines keep both. In a sorted list the best match of a key is one of
    its two neighbours, so a run of n requests costs O(n log n) comparisons.
    """
    keys: list[bytes] = []
    owners: list[str] = []
    found: list[tuple[str | None, int]] = []
    for name, prompt, answer in sequences:
        key = encode_ids(prompt)
        at = bisect_left(keys, key)
        best: tuple[str | None, int] = (None, 0)
        for neighbour in (at, at - 1):
            if 0 <= neighbour < len(keys):
                shared = common_tokens(keys[neighbour], key)
                if shared > best[1]:
                    best = (owners[neighbour], shared)
        found.append(best)
        whole = key + encode_ids(answer)
        at = bisect_left(keys, whole)
        keys.insert(at, whole)
        owners.insert(at, name)
    return found
