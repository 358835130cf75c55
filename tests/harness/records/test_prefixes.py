"""Longest common prefixes, against the obvious quadratic definition."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from harness.records.prefixes import common_tokens, encode_ids, longest_prefixes

ids = st.lists(st.integers(0, 3) | st.sampled_from([255, 256, 65_536]), max_size=8)


def shared(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


@given(ids, ids)
def test_common_tokens_counts_from_the_start(left: list[int], right: list[int]) -> None:
    assert common_tokens(encode_ids(left), encode_ids(right)) == shared(left, right)


@given(st.lists(st.tuples(ids, ids), max_size=12))
def test_longest_prefix_is_the_best_over_all_earlier(sequences: list[tuple[list[int], list[int]]]) -> None:
    named = [(str(i), prompt, answer) for i, (prompt, answer) in enumerate(sequences)]
    for i, (owner, length) in enumerate(longest_prefixes(named)):
        prompt = sequences[i][0]
        best = max((shared(p + a, prompt) for p, a in sequences[:i]), default=0)
        assert length == best
        if best:
            assert owner is not None
            source = sequences[int(owner)]
            assert shared(source[0] + source[1], prompt) == best
        else:
            assert owner is None
