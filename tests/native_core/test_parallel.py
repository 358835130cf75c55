"""Products on a team of threads: the product itself, whatever the shapes and the number of threads."""

from __future__ import annotations

import gc
import time
import weakref
from threading import active_count, current_thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from native_core import parallel
from native_core.parallel import Team

TEAMS = {threads: Team(threads) for threads in (1, 2, 3, 5)}


@settings(max_examples=80, deadline=None)
@given(
    threads=st.sampled_from(sorted(TEAMS)),
    tokens=st.integers(0, 9),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 70),
    share=st.sampled_from([1, 64, 1 << 19]),
    seed=st.integers(0, 99),
)
def test_the_product_of_any_shape(threads: int, tokens: int, inputs: int, outputs: int, share: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, inputs)).astype(np.float32)
    weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "MIN_SHARE", share)
        found = TEAMS[threads].linear(x, weight)
    assert found.shape == (tokens, outputs)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, x.astype(float) @ weight.astype(float).T, rtol=0, atol=1e-4)


def test_a_slice_of_a_larger_array_is_multiplied_as_it_looks() -> None:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((8, 900)).astype(np.float32)
    weight = rng.standard_normal((1024, 400)).astype(np.float32)
    for x in (wide[:, 100:500], wide[::2, 100:500], wide[:, 100:900:2]):
        np.testing.assert_allclose(TEAMS[3].linear(x, weight), x @ weight.T, rtol=0, atol=1e-3)


def test_results_are_independent_arrays() -> None:
    """A second product must not overwrite what the first one returned."""
    weight = np.ones((16384, 64), np.float32)
    first = TEAMS[2].linear(np.ones((1, 64), np.float32), weight)
    TEAMS[2].linear(np.zeros((1, 64), np.float32), weight)
    assert np.all(first == 64.0)


def test_blas_itself_is_left_with_one_thread() -> None:
    Team(2)
    assert {row["num_threads"] for row in threadpool_info() if row["user_api"] == "blas"} == {1}


def test_idle_helpers_use_no_processor_and_hold_no_arrays() -> None:
    team = Team(3)
    weight = np.ones((32768, 64), np.float32)
    gone = weakref.ref(weight)
    team.linear(np.ones((1, 64), np.float32), weight)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    del weight
    gc.collect()
    assert gone() is None


def test_a_product_that_fails_is_an_error_and_leaves_a_team_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a wait for ever on a thread that ended, nor the end of one product taken for that of the next."""
    team = Team(3)
    real: Any = np.matmul
    weight, x = np.ones((15000, 128), np.float32), np.ones((1, 128), np.float32)
    for failing in ("MainThread", "native-matmul"):

        def matmul(*arrays: np.ndarray[Any, Any], out: np.ndarray[Any, Any], name: str = failing) -> None:
            if current_thread().name == name:
                raise MemoryError(name)
            real(*arrays, out=out)

        with monkeypatch.context() as patch:
            patch.setattr(np, "matmul", matmul)
            with pytest.raises(MemoryError, match=failing):
                team.linear(x, weight)
        for factor in (1, 2, 3):
            assert np.all(team.linear(factor * x, weight) == factor * 128)


def test_a_team_of_one_starts_no_thread_and_none_is_refused() -> None:
    before = active_count()
    Team(1)
    assert active_count() == before
    with pytest.raises(ValueError, match="threads = 0"):
        Team(0)
