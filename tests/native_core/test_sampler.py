"""Sampling against brute force over definitions written out, and what a draw may and may not depend on."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_core.executor import SamplingParams
from native_core.sampler import log_softmax, sample

LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=12)
DRAWS = 4000


def array(logits: list[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(logits, dtype=np.float32)


def allowed(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Probabilities of the tokens that may come out, by the definitions, one token at a time.

    min-p: at least that share of the best one's probability. top-k: fewer than k tokens are better. top-p: the tokens
    ranked above it have less than p of what is left; equal ones rank by id.
    """
    weights = {i: math.exp((x - max(logits)) / params.temperature) for i, x in enumerate(logits)}
    weights = {i: w for i, w in weights.items() if w >= params.min_p}
    if params.top_k:
        weights = {i: w for i, w in weights.items() if sum(o > w for o in weights.values()) < params.top_k}
    total = sum(weights.values())

    def above(token: int) -> float:
        return sum(w for i, w in weights.items() if (w, -i) > (weights[token], -token))

    if params.top_p < 1.0:
        weights = {i: w for i, w in weights.items() if above(i) / total < params.top_p or above(i) == 0}
    total = sum(weights.values())
    return {i: w / total for i, w in weights.items()}


@settings(max_examples=60, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(0, 13),
    # not at a sum that rounding decides
    top_p=st.sampled_from([1e-6, 0.3141, 0.7183, 0.9577, 1.0]),
    min_p=st.sampled_from([0.0, 0.0513, 0.3377]),
)
def test_only_allowed_tokens_are_drawn_and_all_of_them(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=1)
    expected = allowed(logits, params)
    drawn = Counter(sample(array(logits), params, stream=0, step=step).token_id for step in range(300))
    assert set(drawn) <= set(expected)
    assert {token for token, share in expected.items() if share > 0.08} <= set(drawn)  # 0.92 ** 300 is 1e-11


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.7, top_k=4, seed=4),
        SamplingParams(temperature=1.5, top_p=0.8, min_p=0.1, seed=5),
    ],
)
def test_frequencies_are_the_probabilities(params: SamplingParams) -> None:
    """Each within 4.5 standard deviations of its binomial; seeds are fixed, so this passes or fails for good."""
    logits = [0.0, 1.0, 2.0, -1.0, 1.5, 0.5]
    drawn = Counter(sample(array(logits), params, stream=0, step=step).token_id for step in range(DRAWS))
    expected = allowed(logits, params)
    assert set(drawn) == set(expected)
    for token, share in expected.items():
        assert abs(drawn[token] - DRAWS * share) < 4.5 * math.sqrt(DRAWS * share * (1 - share))


def test_min_p_comes_before_top_p() -> None:
    """0.5, 0.3, 0.1, 0.1: min-p leaves the first two, of which the first has 0.625 and reaches top-p alone; the other
    way round 0.5 would not reach 0.6 and both would stay."""
    logits = [math.log(share) for share in (0.5, 0.3, 0.1, 0.1)]
    params = SamplingParams(temperature=1.0, min_p=0.4, top_p=0.6, seed=0)
    assert {sample(array(logits), params, stream=0, step=step).token_id for step in range(100)} == {0}


def test_greedy_takes_the_first_of_equals_and_no_temperature_overflows() -> None:
    for temperature in (0.0, 1e-300, 1e-6):
        params = SamplingParams(temperature=temperature)
        assert sample(array([1.0, 5.0, 5.0, 2.0]), params, stream=0, step=0).token_id == 1
    with np.errstate(all="raise", under="ignore"):
        assert sample(array([1.0, 5.0, 4.0]), SamplingParams(temperature=2e-5), stream=0, step=0).token_id == 1


def test_a_seed_fixes_the_draws_whatever_the_request_is_called() -> None:
    logits, params = array([0.0] * 50), SamplingParams(temperature=1.0, seed=11)

    def draws(params: SamplingParams, stream: int) -> list[int]:
        return [sample(logits, params, stream=stream, step=step).token_id for step in range(20)]

    assert draws(params, 1) == draws(params, 2)
    assert draws(params, 1) != draws(SamplingParams(temperature=1.0, seed=12), 1)
    unseeded = SamplingParams(temperature=1.0)
    assert draws(unseeded, 1) == draws(unseeded, 1)
    assert draws(unseeded, 1) != draws(unseeded, 2)
    assert draws(unseeded, 11) != draws(params, 0)  # a stream is no seed
    assert len(set(draws(params, 1))) > 10
    assert draws(SamplingParams(temperature=1.0, seed=-1), 0)  # any integer will do


def test_draws_of_a_seed_are_the_same_in_every_release_of_numpy() -> None:
    logits = array([0.0] * 1000)
    params = SamplingParams(temperature=1.0, seed=7)
    drawn = [sample(logits, params, stream=0, step=step).token_id for step in range(4)]
    words = [int(np.random.Philox(key=7, counter=step).random_raw()) for step in range(4)]
    assert drawn == [word * 1000 >> 64 for word in words]


def test_banned_ids_never_come_out_and_the_caller_keeps_its_logits() -> None:
    logits = array([1.0, 9.0, 8.0, 0.0])
    before = logits.copy()
    banned = frozenset({1, 2})
    assert sample(logits, SamplingParams(), stream=0, step=0, banned=banned).token_id == 0
    params = SamplingParams(temperature=5.0, seed=1, logprobs=4)
    found = [sample(logits, params, stream=0, step=step, banned=banned) for step in range(200)]
    assert {token.token_id for token in found} == {0, 3}
    np.testing.assert_array_equal(logits, before)
    # the model's own probabilities, as if nothing were banned
    assert [token for token, _ in found[0].top] == [1, 2, 0, 3]
    assert found[0].logprob == pytest.approx(log_softmax(logits)[found[0].token_id])


@settings(max_examples=60, deadline=None)
@given(logits=LOGITS, count=st.integers(0, 15))
def test_log_probabilities_are_sorted_and_sum_to_one(logits: list[float], count: int) -> None:
    params = SamplingParams(temperature=0.7, seed=2, logprobs=count)
    found = sample(array(logits), params, stream=0, step=0)
    total = math.log(sum(math.exp(x) for x in logits))
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:count]
    assert [token for token, _ in found.top] == order
    assert [score for _, score in found.top] == pytest.approx([logits[i] - total for i in order], abs=1e-6)
    assert found.logprob == pytest.approx(logits[found.token_id] - total, abs=1e-6)
    everything = sample(array(logits), SamplingParams(logprobs=len(logits)), stream=0, step=0)
    assert sum(math.exp(score) for _, score in everything.top) == pytest.approx(1.0)
    assert sample(array(logits), SamplingParams(), stream=0, step=0).logprob is None


def test_huge_logits_do_not_overflow() -> None:
    logits = array([3e38, -3e38, 0.0])
    with np.errstate(all="raise", under="ignore"):
        found = sample(logits, SamplingParams(temperature=1.0, seed=1, logprobs=1), stream=0, step=0)
    assert (found.token_id, found.logprob) == (0, 0.0)
