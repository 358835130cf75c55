"""The plan of a step: each row once, no piece beyond a tile, loads alike, filled-up contexts masked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from native_core.attention_plan import QUERY_TILE, SHORT, Alone, Span, Together, make_plan, together

# (context before, new tokens) of each sequence
SEQUENCES = st.lists(
    st.one_of(st.tuples(st.integers(0, 2 * SHORT), st.just(1)), st.tuples(st.integers(0, 300), st.integers(1, 200))),
    min_size=1,
    max_size=12,
)


def spans_of(sequences: list[tuple[int, int]]) -> list[Span]:
    """Sequence i lies in slots from 1000 i on, so that a slot tells whose it is."""
    return [
        Span(start, start + count, 1000 * i + np.arange(start + count), None)
        for i, (start, count) in enumerate(sequences)
    ]


def queries(piece: Alone | Together) -> Iterator[tuple[int, list[int]]]:
    """(row, slots that it may see) of each query of a piece."""
    if isinstance(piece, Alone):
        for i in range(piece.count):
            yield piece.row + i, piece.span.slots[: piece.first + i + 1].tolist()
        return
    for i, row in enumerate(piece.rows):
        seen = np.ones(piece.slots.shape[1], bool) if piece.beyond is None else piece.beyond[i, 0] == 0
        yield int(row), piece.slots[i][seen].tolist()


@settings(max_examples=150, deadline=None)
@given(sequences=SEQUENCES, threads=st.integers(1, 5))
def test_each_query_is_computed_once_over_its_own_context(sequences: list[tuple[int, int]], threads: int) -> None:
    spans = spans_of(sequences)
    expected = [span.slots[: position + 1].tolist() for span in spans for position in range(span.start, span.stop)]
    plan = make_plan(spans, threads)
    assert 1 <= len(plan.shares) <= threads
    found = sorted(query for share in plan.shares for piece in share for query in queries(piece))
    assert found == list(enumerate(expected))


@settings(max_examples=100, deadline=None)
@given(sequences=SEQUENCES, threads=st.integers(2, 5))
def test_pieces_are_small_and_no_thread_has_more_than_one_piece_too_many(
    sequences: list[tuple[int, int]], threads: int
) -> None:
    plan = make_plan(spans_of(sequences), threads)
    pieces = [piece for share in plan.shares for piece in share]
    assert all(piece.count <= QUERY_TILE for piece in pieces if isinstance(piece, Alone))
    loads = [sum(piece.pairs for piece in share) for share in plan.shares]
    if len(loads) == threads:
        assert max(loads) - min(loads) <= max(piece.pairs for piece in pieces)


def test_slots_that_fill_a_short_context_up_are_its_own_and_masked() -> None:
    short, long = spans_of([(2, 1), (4, 1)])
    piece = together([(7, short), (9, long)])
    assert isinstance(piece, Together)
    assert piece.beyond is not None
    assert piece.slots.tolist() == [[0, 1, 2, 0, 0], [1000, 1001, 1002, 1003, 1004]]
    assert np.isneginf(piece.beyond[:, 0]).tolist() == [[False] * 3 + [True] * 2, [False] * 5]
    alike = together([(0, long), (1, long)])
    assert isinstance(alike, Together)
    assert alike.beyond is None


def test_a_small_step_wakes_no_thread_and_a_large_one_all() -> None:
    assert len(make_plan(spans_of([(30, 1), (40, 1)]), 4).shares) == 1
    assert len(make_plan(spans_of([(200, 1)] * 30), 4).shares) == 4
    assert len(make_plan(spans_of([(0, 2000)]), 4).shares) == 4
