"""Paged attention: K and V live in blocks, a sequence finds them through its block table.

    position p of a sequence -> slot block_table[p // block_size] x block_size + p % block_size

The scheduler owns the tables; here they are only read. Each work's table covers its whole context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Slots = NDArray[np.int64]
QUERY_TILE = 256  # rows of scores at a time: a long prefill needs no (n, n) matrix at once


@dataclass(frozen=True)
class Span:
    """Where one work's context lies. `run` is the first slot if the slots ascend without a gap: then no copy is
    needed to read them."""

    start: int  # first new position
    stop: int  # context length after this step
    slots: Slots  # of positions 0 .. stop
    run: int | None

    @property
    def new_slots(self) -> Slots:
        return self.slots[self.start :]


class KVPool:
    """K (kv_heads, slots, head_dim) and V alike, per layer, float32."""

    def __init__(self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> None:
        shape = (layers, kv_heads, num_blocks * block_size, head_dim)
        self.block_size = block_size
        self.keys = np.zeros(shape, dtype=np.float32)
        self.values = np.zeros(shape, dtype=np.float32)

    def span(self, table: Sequence[int], start: int, count: int) -> Span:
        stop, size = start + count, self.block_size
        blocks = np.asarray(table[: -(-stop // size)], dtype=np.int64)
        slots = (blocks[:, None] * size + np.arange(size)).reshape(-1)[:stop]
        run = int(slots[0]) if len(blocks) < 2 or bool(np.all(np.diff(blocks) == 1)) else None
        return Span(start, stop, slots, run)

    def store(self, layer: int, slots: Slots, keys: Array, values: Array) -> None:
        """(tokens, kv_heads, head_dim) into their slots."""
        self.keys[layer][:, slots] = keys.swapaxes(0, 1)
        self.values[layer][:, slots] = values.swapaxes(0, 1)

    def read(self, layer: int, span: Span) -> tuple[Array, Array]:
        """(kv_heads, context, head_dim) of one sequence."""
        where = span.slots if span.run is None else slice(span.run, span.run + span.stop)
        return self.keys[layer][:, where], self.values[layer][:, where]


def attend(queries: Array, pool: KVPool, layer: int, spans: Sequence[Span]) -> Array:
    """Causal attention of queries (tokens, heads, head_dim) over each span's context -> (tokens, heads x head_dim)."""
    tokens, heads, size = queries.shape
    scaled = queries * np.float32(size**-0.5)
    out = np.empty((tokens, heads, size), dtype=np.float32)
    at = 0
    for span in spans:
        keys, values = pool.read(layer, span)
        for first in range(span.start, span.stop, QUERY_TILE):
            count = min(QUERY_TILE, span.stop - first)
            out[at : at + count] = _tile(scaled[at : at + count], keys, values, first)
            at += count
    return out.reshape(tokens, heads * size)


def _tile(queries: Array, keys: Array, values: Array, first: int) -> Array:
    """Queries (n, heads, d) at positions first, first + 1, … over keys and values (kv_heads, context, d).

    Query heads h x group … belong to key head h; they are rows of one product per key head.
    """
    count, heads, size = queries.shape
    kv_heads = keys.shape[0]
    seen = first + count  # later positions are masked for all rows: leave them out
    rows = queries.reshape(count, kv_heads, heads // kv_heads, size).transpose(1, 2, 0, 3).reshape(kv_heads, -1, size)
    scores = rows @ keys[:, :seen].swapaxes(1, 2)
    if count > 1:
        future = np.arange(first, seen)[None, :] > np.arange(first, seen)[:, None]
        scores.reshape(kv_heads, -1, count, seen)[..., first:][..., future] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed = scores @ values[:, :seen]
    return np.asarray(
        mixed.reshape(kv_heads, heads // kv_heads, count, size).transpose(2, 0, 1, 3).reshape(count, heads, size)
    )
