"""The Llama forward pass in numpy over a paged KV pool: one flat batch of any mix of prefill chunks and decodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from native_core.attention import KVPool, attend
from native_core.attention_plan import Plan, make_plan
from native_core.executor import Work
from native_core.parallel import Team
from native_core.rope import Rope
from native_core.weights import Layer, LlamaConfig, Weights, load_weights

Array = NDArray[np.float32]
ACTIVATIONS_WORTH_SHARING = 1 << 16


@dataclass
class Parts:
    """Seconds of the last step by what they were spent on."""

    attention: float = 0.0
    mlp: float = 0.0
    logits: float = 0.0


class Llama:
    """Weights, rotary tables and, once allocated, the K and V of every block."""

    def __init__(self, directory: Path, team: Team) -> None:
        """Raises ModelError for a directory that holds no supported model."""
        self.config = LlamaConfig.read(directory)
        self._team, self._linear = team, team.linear
        self.weights: Weights = load_weights(directory, self.config)
        config = self.config
        self.rope = Rope(config.head_dim, config.rope_theta, config.context, config.rope_scaling)
        self.pool: KVPool | None = None

    def allocate(self, num_blocks: int, block_size: int) -> None:
        config = self.config
        self.pool = KVPool(config.layers, num_blocks, block_size, config.kv_heads, config.head_dim)

    def forward(self, work: Sequence[Work], wanted: Sequence[int]) -> tuple[Array, Parts]:
        """Compute every token of `work`, keep its K and V, return logits (len(wanted), vocabulary) for the last
        token of each work named by index in `wanted`."""
        assert self.pool is not None, "allocate() comes first"
        parts = Parts()
        ids = np.concatenate([np.asarray(item.token_ids, dtype=np.int64) for item in work])
        spans = [self.pool.span(item.block_table, item.start, len(item.token_ids)) for item in work]
        positions = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        slots = np.concatenate([span.new_slots for span in spans])
        plan = make_plan(spans, self._team.threads)
        x = self.weights.embedding[ids]
        for number, layer in enumerate(self.weights.layers):
            began = time.perf_counter()
            x = x + self._attention(number, layer, x, positions, slots, plan)
            middle = time.perf_counter()
            x = x + self._mlp(layer, x)
            parts.attention += middle - began
            parts.mlp += time.perf_counter() - middle
        began = time.perf_counter()
        last = np.cumsum([len(item.token_ids) for item in work]) - 1
        picked = rms_norm(x[last[list(wanted)]], self.weights.norm, self.config.eps)
        logits = self._linear(picked, self.weights.head)
        parts.logits = time.perf_counter() - began
        return logits, parts

    def _attention(
        self,
        number: int,
        layer: Layer,
        x: Array,
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        plan: Plan,
    ) -> Array:
        assert self.pool is not None
        config = self.config
        mixed = self._linear(rms_norm(x, layer.attention_norm, config.eps), layer.qkv)
        heads = mixed.reshape(len(x), config.heads + 2 * config.kv_heads, config.head_dim)
        turned = self.rope.rotate(heads[:, : config.heads + config.kv_heads], positions)
        queries, keys = turned[:, : config.heads], turned[:, config.heads :]
        self.pool.store(number, slots, keys, heads[:, config.heads + config.kv_heads :])
        return self._linear(attend(queries, self.pool, number, plan, self._team), layer.output)

    def _mlp(self, layer: Layer, x: Array) -> Array:
        both = self._linear(rms_norm(x, layer.mlp_norm, self.config.eps), layer.gate_up)
        inner = both.shape[1] // 2
        gate, up = both[:, :inner], both[:, inner:]
        shares = self._team.threads if gate.size > ACTIVATIONS_WORTH_SHARING else 1
        edges = [inner * i // shares for i in range(shares + 1)]
        self._team.run([partial(_silu_times, gate[:, i:j], up[:, i:j]) for i, j in pairwise(edges)])
        return self._linear(gate, layer.down)


def _silu_times(gate: Array, up: Array) -> None:
    """gate = silu(gate) * up. exp overflows to inf for gates below -88, and x / inf is the 0 that silu has there."""
    with np.errstate(over="ignore"):
        gate /= np.float32(1.0) + np.exp(-gate)
    gate *= up


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    mean = np.einsum("td,td->t", x, x) / np.float32(x.shape[1])
    return np.asarray(x * (1.0 / np.sqrt(mean + np.float32(eps)))[:, None] * weight, dtype=np.float32)
