"""Rotary embedding against its complex form, and Llama 3's stretched frequencies against the rule case by case."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_core.rope import Rope
from tests.native_core.checkpoints import turn

LLAMA_3_1: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@settings(max_examples=50, deadline=None)
@given(
    half=st.integers(1, 32),
    theta=st.sampled_from([100.0, 10_000.0, 500_000.0]),
    positions=st.lists(st.integers(0, 4095), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_rotation_equals_its_complex_form(half: int, theta: float, positions: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((len(positions), 3, 2 * half)).astype(np.float32)
    found = Rope(2 * half, theta, 4096, None).rotate(x, np.array(positions))
    expected = [[turn(head.astype(float), at, theta) for head in row] for row, at in zip(x, positions, strict=True)]
    np.testing.assert_allclose(found, np.array(expected), rtol=0, atol=2e-6)


def test_position_zero_changes_nothing_and_lengths_are_kept() -> None:
    x = np.random.default_rng(0).standard_normal((4, 2, 64)).astype(np.float32)
    turned = Rope(64, 10_000.0, 4096, None).rotate(x, np.array([0, 1, 1000, 4095]))
    np.testing.assert_array_equal(turned[0], x[0])
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    assert not np.allclose(turned[1:], x[1:], atol=0.1)


def test_a_score_depends_on_the_distance_alone() -> None:
    rope, rng = Rope(64, 10_000.0, 4096, None), np.random.default_rng(1)
    query, key = rng.standard_normal((2, 1, 1, 64)).astype(np.float32)

    def score(at: int, other: int) -> float:
        return float(np.sum(rope.rotate(query, np.array([at])) * rope.rotate(key, np.array([other]))))

    assert score(17, 5) == pytest.approx(score(3012, 3000), abs=2e-3)
    assert abs(score(17, 5) - score(18, 5)) > 0.1


def frequencies(head_dim: int, theta: float, scaling: dict[str, Any] | None) -> np.ndarray[Any, Any]:
    """Angles of position 1: what a vector with ones in its first half turns by."""
    x = np.concatenate([np.ones(head_dim // 2), np.zeros(head_dim // 2)]).astype(np.float32)
    turned = Rope(head_dim, theta, 2, scaling).rotate(x[None, None], np.array([1]))[0, 0]
    return np.asarray(np.arctan2(turned[head_dim // 2 :], turned[: head_dim // 2]))


def llama3(frequency: float) -> float:
    """The rule as Llama 3.1's own code has it, one frequency at a time."""
    wavelength = 2 * math.pi / frequency
    if wavelength < 8192 / 4.0:
        return frequency
    if wavelength > 8192 / 1.0:
        return frequency / 8.0
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * frequency / 8.0 + smooth * frequency


def test_llama_3_stretches_long_wavelengths_only() -> None:
    plain = [500_000.0 ** (-2 * i / 128) for i in range(64)]
    expected = [llama3(frequency) for frequency in plain]
    found = frequencies(128, 500_000.0, LLAMA_3_1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # 500,000 ** (-i / 64) x 8192 / (2 pi): i = 28 has 4.19 turns in the old context and is kept, 29 has 3.41 and is
    # stretched a little, 34 has 1.22 and a lot, 35 has 0.997 and wholly, as are all above.
    ratio = found / np.array(plain)
    assert ratio[:29] == pytest.approx(np.ones(29), rel=1e-5)
    assert 0.125 < ratio[34] < ratio[29] < 1.0
    assert ratio[29] == pytest.approx(0.8282, abs=1e-3)
    assert ratio[35:] == pytest.approx(np.full(29, 0.125), rel=1e-5)
