"""Bounds on reuse against a brute-force reading of the same rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.sharing import Ids, Sent, in_blocks, parting_token, shared_prefixes


def sent(
    name: str,
    prompt: list[int],
    at: float,
    first: float,
    done: float,
    answer: list[int] | None = None,
    *,
    ok: bool = True,
    tokens: int | None = None,
    namespace: str = "",
) -> Sent:
    ids = [] if answer is None and tokens is None else answer
    return Sent(
        request_id=name,
        prompt=np.asarray(prompt, dtype=np.int64),
        answer=None if ids is None else np.asarray(ids, dtype=np.int64),
        output_tokens=tokens if tokens is not None else len(ids or []),
        t_sent=at,
        t_first=first,
        t_done=done,
        ok=ok,
        namespace=namespace,
    )


@pytest.mark.parametrize(
    ("shared", "prompt", "block", "hit"),
    [
        (48, 48, 16, 32),  # wholly cached: the last token must be computed, and with it its block
        (48, 49, 16, 48),
        (47, 100, 16, 32),
        (15, 100, 16, 0),
        (48, 48, 1, 47),
        (0, 0, 16, 0),
        (1, 1, 1, 0),
    ],
)
def test_blocks(shared: int, prompt: int, block: int, hit: int) -> None:
    assert in_blocks(shared, prompt, block) == hit


def test_a_finished_request_is_certain_but_for_its_last_token() -> None:
    first = sent("a", [1, 2, 3], 0.0, 1.0, 2.0, [4, 5])
    then = sent("b", [1, 2, 3, 4, 5, 6], 3.0, 4.0, 5.0)
    assert [(s.low, s.high) for s in shared_prefixes([first, then])] == [(0, 0), (4, 4)]


def test_a_prompt_is_certain_once_its_first_token_was_seen() -> None:
    first = sent("a", [1, 2, 3], 0.0, 1.0, 9.0, [4, 5, 6])
    then = sent("b", [1, 2, 3, 4, 5, 6], 2.0, 3.0, 4.0)
    bounds = shared_prefixes([first, then])[1]
    assert (bounds.low, bounds.high) == (3, 5)  # of the answer, anything or nothing was there


def test_concurrent_requests_are_possible_sources_of_each_other() -> None:
    one = sent("a", [1, 2, 3, 4], 0.0, 2.0, 3.0)
    other = sent("b", [1, 2, 3, 9], 0.5, 2.0, 3.0)
    assert [(s.low, s.high) for s in shared_prefixes([one, other])] == [(0, 3), (0, 3)]


def test_what_came_later_is_no_source() -> None:
    one = sent("a", [1, 2, 3], 0.0, 1.0, 2.0)
    later = sent("b", [1, 2, 3], 5.0, 6.0, 7.0)
    assert shared_prefixes([one, later])[0].high == 0


def test_a_failed_request_is_only_a_possible_source() -> None:
    cut = sent("a", [1, 2, 3], 0.0, math.nan, 1.0, ok=False)
    then = sent("b", [1, 2, 3], 2.0, 3.0, 4.0)
    bounds = shared_prefixes([cut, then])[1]
    assert (bounds.low, bounds.high) == (0, 3)


def test_an_unknown_answer_may_be_repeated_by_the_next_prompt() -> None:
    turn = sent("a", [1, 2], 0.0, 1.0, 2.0, tokens=4)
    following = sent("b", [1, 2, 7, 7, 7, 7, 8], 3.0, 4.0, 5.0)
    bounds = shared_prefixes([turn, following])[1]
    assert (bounds.low, bounds.high) == (2, 5)  # 2 + 4 - 1


def test_adapters_share_nothing() -> None:
    one = sent("a", [1, 2, 3], 0.0, 1.0, 2.0, namespace="x")
    other = sent("b", [1, 2, 3], 3.0, 4.0, 5.0, namespace="y")
    assert shared_prefixes([one, other])[1].high == 0


@st.composite
def loads(draw: st.DrawFn) -> list[Sent]:
    """Small alphabets and short prompts, so that prefixes meet; times that overlap or not."""
    made = []
    for number in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, 6))
        first = at + draw(st.integers(1, 3))
        done = first + draw(st.integers(0, 3))
        made.append(
            sent(
                f"r{number}",
                draw(st.lists(st.integers(0, 1), min_size=1, max_size=5)),
                float(at),
                float(first),
                float(done),
                draw(st.lists(st.integers(0, 1), min_size=1, max_size=4)),
                ok=draw(st.booleans()),
            )
        )
    return made


@given(loads())
def test_bounds_equal_brute_force(load: list[Sent]) -> None:
    for request, bounds in zip(load, shared_prefixes(load), strict=True):
        low = high = 0
        for other in load:
            if other is request:
                continue
            whole = [*other.prompt, *(other.answer if other.answer is not None else [])]
            finished = common(whole[: other.offered], request.prompt)
            if other.ok and other.t_done < request.t_sent:
                low = max(low, finished)
            if other.t_first < request.t_sent:
                low = max(low, common(list(other.prompt), request.prompt))
            if other.t_sent <= request.t_first:
                high = max(high, finished)
        assert (bounds.low, bounds.high) == (low, max(low, high))


def common(left: list[int], right: Ids) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def test_where_alike_prompts_part() -> None:
    body = list(range(100, 200))
    alike = [np.asarray([number, *body]) for number in range(6)]
    assert parting_token(alike, 16) == 0
    deep = [np.asarray([*body[:5], number, *body[6:]]) for number in range(6)]
    assert parting_token(deep, 16) == 5
    assert parting_token(deep, 4) is None  # they share a block, so nothing is lost
    unlike = [np.asarray(range(number * 1000, number * 1000 + 100)) for number in range(6)]
    assert parting_token(unlike, 16) is None
    assert parting_token([np.asarray(body)] * 3, 16) is None
    assert parting_token([], 16) is None
