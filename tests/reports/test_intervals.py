"""Percentiles and their intervals against published ranks; the bootstrap against series with known properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import intervals

# n -> ranks of the 95 % interval for p50, p90, p95, p99; n + 1 is unbounded. Exact binomial arithmetic.
RANKS = {
    200: [(86, 115), (171, 189), (184, 197), (195, 201)],
    368: [(165, 204), (320, 343), (341, 358), (360, 368)],
    1000: [(469, 532), (881, 919), (936, 964), (983, 997)],
    10000: [(4902, 5099), (8941, 9059), (9457, 9543), (9880, 9920)],
}


@pytest.mark.parametrize("n", RANKS)
def test_ranks_of_the_interval(n: int) -> None:
    assert [intervals.interval_ranks(n, q) for q in (0.5, 0.9, 0.95, 0.99)] == RANKS[n]


@pytest.mark.parametrize(("q", "smallest"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368)])
def test_smallest_sample_that_bounds_a_quantile(q: float, smallest: int) -> None:
    def bounded(n: int) -> bool:
        low, high = intervals.interval_ranks(n, q)
        return low >= 1 and high <= n

    assert bounded(smallest)
    assert not bounded(smallest - 1)


def test_nearest_rank_is_exact_where_floats_are_not() -> None:
    assert intervals.rank_of(100, 0.07) == 7  # 0.07 * 100 is 7.000000000000001 in floats
    assert intervals.rank_of(100, 0.99) == 99
    assert intervals.rank_of(101, 0.99) == 100
    assert intervals.rank_of(1, 0.01) == 1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_percentile_is_a_value_with_the_right_share_below(values: list[float], q: float) -> None:
    found = intervals.percentile(np.asarray(values), q)
    assert found is not None
    assert found.value in values
    assert sum(value <= found.value for value in values) >= math.ceil(round(q * len(values), 9))
    if found.interval is not None:
        assert found.interval[0] <= found.value <= found.interval[1]


def test_a_small_sample_has_no_p99_interval() -> None:
    found = intervals.percentile(np.arange(200.0), 0.99)
    assert found is not None
    assert found.value == 197.0
    assert found.low == 194.0
    assert found.high is None
    assert not found.supported


def test_nothing_gives_nothing() -> None:
    assert intervals.percentile(np.empty(0), 0.5) is None
    assert intervals.mean(np.empty(0)) is None


def test_too_few_values_for_the_interval_of_a_mean() -> None:
    found = intervals.mean(np.arange(9.0))
    assert found is not None
    assert (found.value, found.interval) == (4.0, None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    found = intervals.mean(np.full(50, 3.0))
    assert found is not None
    assert found.interval == pytest.approx((3.0, 3.0))


def test_blocks_grow_with_autocorrelation() -> None:
    noise = np.random.Generator(np.random.Philox(1)).normal(size=1000)
    walk = np.zeros(1000)
    for at in range(1, 1000):
        walk[at] = 0.9 * walk[at - 1] + noise[at]
    # (2 * .9 / (1 - .81)) ** (2/3) * 10 = 44.8 for r = 0.9 exactly
    assert 30 <= intervals.block_length(walk) <= 60
    assert intervals.block_length(noise) <= 5
    wide, narrow = intervals.mean(walk), intervals.mean(noise * walk.std())
    assert wide is not None
    assert wide.interval is not None
    assert narrow is not None
    assert narrow.interval is not None
    assert wide.interval[1] - wide.interval[0] > 2 * (narrow.interval[1] - narrow.interval[0])


def test_the_interval_of_a_mean_covers_it_about_as_often_as_it_says() -> None:
    generator = np.random.Generator(np.random.Philox(2))
    hits = 0
    for _ in range(120):
        found = intervals.mean(generator.exponential(size=60))
        assert found is not None
        assert found.interval is not None
        hits += found.interval[0] <= 1.0 <= found.interval[1]
    assert 100 <= hits <= 120  # nominal 114; bootstrap intervals of skewed samples run a little short


def test_the_same_rows_give_the_same_interval() -> None:
    values = np.random.Generator(np.random.Philox(3)).normal(size=100)
    assert intervals.mean(values) == intervals.mean(values)
