"""Rotary position embedding, the variant of safetensors checkpoints: the halves of a head rotate against each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Rope:
    """Tables of cos and sin, (positions, head_dim / 2)."""

    def __init__(self, head_dim: int, theta: float, positions: int, scaling: dict[str, Any] | None) -> None:
        frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        if scaling:
            frequencies = _llama3(frequencies, scaling)
        angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)

    def rotate(self, x: Array, positions: NDArray[np.int64]) -> Array:
        """(tokens, heads, head_dim) -> the same, each token turned by its position."""
        cos, sin = self._cos[positions][:, None, :], self._sin[positions][:, None, :]
        half = x.shape[-1] // 2
        left, right = x[..., :half], x[..., half:]
        turned = np.empty(x.shape, dtype=np.float32)
        np.subtract(left * cos, right * sin, out=turned[..., :half])
        np.add(right * cos, left * sin, out=turned[..., half:])
        return turned


def _llama3(frequencies: NDArray[np.float64], scaling: dict[str, Any]) -> NDArray[np.float64]:
    """Llama 3.1's rule: long wavelengths stretched by `factor`, short ones kept, a smooth step between."""
    factor, old = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelengths = 2.0 * math.pi / frequencies
    smooth = np.clip((old / wavelengths - low) / (high - low), 0.0, 1.0)
    return np.asarray((1.0 - smooth) * frequencies / factor + smooth * frequencies)
