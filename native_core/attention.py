"""Paged attention: K and V live in blocks, a sequence finds them through its block table.

    position p of a sequence -> slot block_table[p // block_size] x block_size + p % block_size

The scheduler owns the tables; here they are only read. Each work's table covers its whole context. What is to be
computed is planned once per step (attention_plan.py) and then done alike in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from native_core.attention_plan import Alone, Plan, Span, Together
from native_core.parallel import Team

Array = NDArray[np.float32]
Slots = NDArray[np.int64]
FEW_ROWS = 16  # query rows per key head up to which BLAS is faster with the keys on the left, read as they lie


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

    def read(self, layer: int, span: Span, seen: int) -> tuple[Array, Array]:
        """(kv_heads, seen, head_dim): the first `seen` positions of one sequence."""
        if span.run is None:
            return self.gather(layer, span.slots[:seen])
        where = slice(span.run, span.run + seen)
        return self.keys[layer][:, where], self.values[layer][:, where]

    def gather(self, layer: int, slots: Slots) -> tuple[Array, Array]:
        """(kv_heads, *slots.shape, head_dim), copied: take() is several times as fast as an index here."""
        return self.keys[layer].take(slots, axis=1), self.values[layer].take(slots, axis=1)


@dataclass(frozen=True)
class Operands:
    """What every piece of one layer's attention reads, and where it writes its own rows."""

    queries: Array  # (tokens, heads, head_dim), scaled
    out: Array  # alike
    pool: KVPool
    layer: int


def attend(queries: Array, pool: KVPool, layer: int, plan: Plan, team: Team) -> Array:
    """Causal attention of queries (tokens, heads, head_dim), each over its context -> (tokens, heads x head_dim)."""
    scaled = queries * np.float32(queries.shape[-1] ** -0.5)
    operands = Operands(scaled, np.empty(queries.shape, dtype=np.float32), pool, layer)
    team.run([partial(_share, operands, share) for share in plan.shares])
    return operands.out.reshape(len(queries), -1)


def _share(operands: Operands, share: Sequence[Alone | Together]) -> None:
    for piece in share:
        if isinstance(piece, Together):
            _together(operands, piece)
        else:
            _alone(operands, piece)


def _alone(operands: Operands, piece: Alone) -> None:
    """Rows of one sequence: queries at positions first, first + 1, … over all that comes before.

    Query heads h x group … belong to key head h; they are rows of one product per key head.
    """
    count, seen = piece.count, piece.first + piece.count  # later positions are masked for all rows: leave them out
    queries = operands.queries[piece.row : piece.row + count]
    keys, values = operands.pool.read(operands.layer, piece.span, seen)
    kv_heads, _, size = keys.shape
    rows = queries.reshape(count, kv_heads, -1, size).transpose(1, 2, 0, 3).reshape(kv_heads, -1, size)
    scores = _scores(keys, rows)
    if count > 1:
        scores.reshape(kv_heads, -1, count, seen)[..., piece.first :] += _future(count)
    mixed = _mix(scores, values)
    operands.out[piece.row : piece.row + count].reshape(count, kv_heads, -1, size)[...] = mixed.reshape(
        kv_heads, -1, count, size
    ).transpose(2, 0, 1, 3)


def _together(operands: Operands, piece: Together) -> None:
    """One query each of several sequences. Shorter contexts are filled up with a slot of their own, then masked."""
    keys, values = operands.pool.gather(operands.layer, piece.slots)  # (kv_heads, sequences, longest, head_dim)
    kv_heads, sequences, _, size = keys.shape
    queries = operands.queries[piece.rows].reshape(sequences, kv_heads, -1, size).swapaxes(0, 1)
    scores = _scores(keys, queries)
    if piece.beyond is not None:
        scores += piece.beyond
    operands.out[piece.rows] = _mix(scores, values).swapaxes(0, 1).reshape(sequences, -1, size)


def _scores(keys: Array, rows: Array) -> Array:
    """keys (…, context, d), rows (…, n, d) -> (…, n, context), contiguous."""
    if rows.shape[-2] > FEW_ROWS:
        return np.asarray(rows @ keys.swapaxes(-1, -2))
    return np.ascontiguousarray((keys @ np.ascontiguousarray(rows.swapaxes(-1, -2))).swapaxes(-1, -2))


def _mix(scores: Array, values: Array) -> Array:
    """Softmax of scores (…, n, context), in place, times values (…, context, d) -> (…, n, d).

    The sum is divided out of the result, which is smaller than the scores.
    """
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed = scores @ values
    mixed /= scores.sum(axis=-1, keepdims=True)
    return np.asarray(mixed)


def _future(count: int) -> Array:
    """(count, count): -inf where the key comes after the query."""
    return np.triu(np.full((count, count), -np.inf, dtype=np.float32), 1)
