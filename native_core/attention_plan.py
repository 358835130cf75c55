"""Who attends to what in one step: pieces of work of alike size, shared out among threads. The same for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Slots = NDArray[np.int64]
QUERY_TILE = 64  # rows of scores at a time: they stay in the cache, and a long prefill needs no (n, n) matrix at once
SHORT = 256  # contexts up to which decodes are computed together: beyond it the copy costs more than the calls
WORTH_SHARING = 1024  # query-key pairs below which waking a thread costs more than it saves


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


@dataclass(frozen=True)
class Alone:
    """`count` queries of one sequence, the first at position `first` and in row `row` of the batch."""

    span: Span
    row: int
    first: int
    count: int

    @property
    def pairs(self) -> int:
        return self.count * (self.first + self.count)


@dataclass(frozen=True)
class Together:
    """One query each of several sequences with short contexts."""

    rows: Slots  # (sequences,) in the batch
    slots: Slots  # (sequences, longest context)
    beyond: (
        Array | None
    )  # (sequences, 1, longest): 0 for a position of the context, -inf after it; None if all are alike

    @property
    def pairs(self) -> int:
        return int(self.slots.size)


@dataclass(frozen=True)
class Plan:
    """One list of pieces per thread that has something to do; every row of the batch is in exactly one piece."""

    shares: tuple[tuple[Alone | Together, ...], ...]


def make_plan(spans: Sequence[Span], threads: int) -> Plan:
    pieces: list[Alone | Together] = []
    short: list[tuple[int, Span]] = []
    row = 0
    for span in spans:
        count = span.stop - span.start
        if count == 1 and span.stop <= SHORT:
            short.append((row, span))
        else:
            pieces += [
                Alone(span, row + first - span.start, first, min(QUERY_TILE, span.stop - first))
                for first in range(span.start, span.stop, QUERY_TILE)
            ]
        row += count
    total = sum(piece.pairs for piece in pieces) + sum(span.stop for _, span in short)
    threads = max(min(threads, total // WORTH_SHARING), 1)
    short.sort(key=lambda item: item[1].stop)  # alike lengths together: little filling
    parts = min(threads, len(short))
    pieces += [together(short[len(short) * i // parts : len(short) * (i + 1) // parts]) for i in range(parts)]
    return Plan(_share_out(pieces, threads))


def together(short: Sequence[tuple[int, Span]]) -> Alone | Together:
    """Decodes as one piece. A context is filled up with its own first slot, which holds a number in any case: what
    lies in a slot that nobody has written is undefined, and 0 times undefined may be undefined."""
    if len(short) == 1:
        row, span = short[0]
        return Alone(span, row, span.start, 1)
    longest = max(span.stop for _, span in short)
    slots = np.empty((len(short), longest), dtype=np.int64)
    beyond = np.zeros((len(short), 1, longest), dtype=np.float32)
    for i, (_, span) in enumerate(short):
        slots[i, : span.stop], slots[i, span.stop :] = span.slots, span.slots[0]
        beyond[i, 0, span.stop :] = -np.inf
    rows = np.array([row for row, _ in short], dtype=np.int64)
    return Together(rows, slots, beyond if np.isneginf(beyond[..., -1]).any() else None)


def _share_out(pieces: Sequence[Alone | Together], threads: int) -> tuple[tuple[Alone | Together, ...], ...]:
    """Largest first, each to the thread with least to do."""
    shares: list[list[Alone | Together]] = [[] for _ in range(threads)]
    loads = [0] * threads
    for piece in sorted(pieces, key=lambda piece: piece.pairs, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(piece)
        loads[least] += piece.pairs
    return tuple(tuple(share) for share in shares if share)
