"""Tokens per event, by hand: each witness, and what happens where they disagree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.tokens import ImpossibleCount, count, merge_usage, share
from harness.engines.protocol import Delta, Usage


def _text(*texts: str) -> list[Delta]:
    return [Delta("content" if text else "other", text=text) for text in texts]


def _final(output: int) -> Delta:
    return Delta("usage", usage=Usage(7, output))


def test_ids_say_how_many_tokens_an_event_carries() -> None:
    deltas = [
        Delta("role"),
        Delta("content", token_ids=(5, 6, 7), text="abc"),
        Delta("content", token_ids=(8,)),
        _final(4),
    ]
    counted = count(deltas, merge_usage(deltas), whole=True)
    assert counted.per_event == [0, 3, 1, 0]
    assert (counted.event_source, counted.output_tokens, counted.row_source) == ("ids", 4, "usage")


def test_ids_without_usage() -> None:
    counted = count([Delta("content", token_ids=(5, 6))], Usage(), whole=True)
    assert (counted.output_tokens, counted.row_source) == (2, "ids")


def test_running_usage_sees_tokens_without_text() -> None:
    deltas = [
        Delta("role", usage=Usage(7, 0)),
        Delta("content", text="a", usage=Usage(7, 2)),
        Delta("other", usage=Usage(7, 3)),
        Delta("content", text="b", usage=Usage(7, 5)),
        _final(5),
    ]
    counted = count(deltas, merge_usage(deltas), whole=True)
    assert counted.per_event == [0, 2, 1, 2, 0]
    assert counted.event_source == "usage"


@pytest.mark.parametrize(
    ("texts", "finish", "output", "wanted"),
    [
        (("a", "b", "c"), None, 3, [1, 1, 1]),  # one each
        (("a", "", "c"), None, 3, [1, 1, 1]),  # half a character still is a token
        (("a", "b", ""), 2, 3, [1, 1, 1]),  # the end token has no text
        (("a", "b", ""), 2, 2, [1, 1, 0]),  # a finish event without a token
        (("a", "", "c", ""), 3, 3, [1, 1, 1, 0]),
    ],
)
def test_one_token_an_event(texts: tuple[str, ...], finish: int | None, output: int, wanted: list[int]) -> None:
    deltas = _text(*texts)
    if finish is not None:
        deltas[finish] = Delta("other", finish_reason="stop")
    counted = count([*deltas, _final(output)], Usage(7, output), whole=True)
    assert counted.per_event == [*wanted, 0]
    assert counted.event_source == "event"


def test_several_tokens_an_event_are_shared_by_text() -> None:
    deltas = [*_text("aaaa", "aa", "aa"), _final(8)]
    counted = count(deltas, merge_usage(deltas), whole=True)
    assert counted.per_event == [3, 2, 3, 0]  # one each, and 5 left over: 2.5, 1.25, 1.25 by cumulative floor
    assert (counted.event_source, counted.output_tokens) == ("text", 8)


def test_without_any_witness_nothing_is_counted() -> None:
    counted = count(_text("a", "b"), Usage(), whole=True)
    assert counted.per_event == [None, None]
    assert counted.output_tokens is None


def test_a_tokenizer_counts_the_whole_text() -> None:
    counted = count(_text("ab", "cd"), Usage(), whole=True, count_text=len)
    assert (counted.per_event, counted.output_tokens, counted.row_source) == ([2, 2], 4, "text")


def test_a_cut_stream_has_no_total() -> None:
    counted = count(_text("a", "b"), Usage(), whole=False, count_text=len)
    assert counted.output_tokens is None


def test_zero_tokens() -> None:
    counted = count([Delta("other", finish_reason="stop"), _final(0)], Usage(7, 0), whole=True)
    assert (counted.per_event, counted.output_tokens) == ([0, 0], 0)


@pytest.mark.parametrize(
    "deltas",
    [
        [*_text("a"), _final(0)],
        [Delta("content", text="a", usage=Usage(7, 3)), Delta("content", text="b", usage=Usage(7, 2))],
        [Delta("content", token_ids=(1,)), _final(0)],
        [Delta("usage", usage=Usage(7, 2**31))],
        [Delta("usage", usage=Usage(7, 1, cached_tokens=8))],
        [Delta("usage", usage=Usage(-1, 1))],
        [Delta("content", token_ids=(1, -2))],
        [Delta("content", token_ids=(2**31,))],
    ],
)
def test_impossible_counts(deltas: list[Delta]) -> None:
    with pytest.raises(ImpossibleCount):
        count(deltas, merge_usage(deltas), whole=True)


@given(st.integers(0, 300), st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_shares_add_up(total: int, weights: list[int]) -> None:
    parts = share(total, weights)
    assert sum(parts) == total
    assert len(parts) == len(weights)
    assert min(parts) >= (1 if total >= len(weights) else 0)
    assert parts[0] >= min(total, 1)
