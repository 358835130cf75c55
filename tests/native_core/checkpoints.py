"""Small random checkpoints on disk, and a Llama in float64 that is as naive as can be to compare with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "vocab_size": 61,
}


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Every weight random, the norms too: one that is left out or used twice changes the answer."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim") or hidden // config["num_attention_heads"]
    width, kv_width = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return np.asarray(rng.standard_normal((rows, columns)) / columns**0.5, dtype=np.float32)

    def norm() -> NDArray[np.float32]:
        return np.asarray(rng.uniform(0.5, 1.5, hidden), dtype=np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": norm()}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        tensors[f"{at}.input_layernorm.weight"] = norm()
        tensors[f"{at}.post_attention_layernorm.weight"] = norm()
        shapes = {
            "self_attn.q_proj": (width, hidden),
            "self_attn.k_proj": (kv_width, hidden),
            "self_attn.v_proj": (kv_width, hidden),
            "self_attn.o_proj": (hidden, width),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        tensors |= {f"{at}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    return tensors


def save(path: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    """A model directory, written with the library that the code under test does without."""
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), path / "model.safetensors")
    return path


def naive_logits(
    config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], ids: Sequence[int]
) -> NDArray[np.float64]:
    """Logits (tokens, vocabulary) in float64: one position, one head at a time, no cache, no batch."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    x = [weights["model.embed_tokens.weight"][i] for i in ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        normed = [_norm(row, weights[f"{at}.input_layernorm.weight"], eps) for row in x]
        q, k, v = ([weights[f"{at}.self_attn.{name}_proj.weight"] @ row for row in normed] for name in ("q", "k", "v"))
        for i in range(len(ids)):
            mixed = []
            for head in range(heads):
                own, shared = slice(head * size, (head + 1) * size), head * kv_heads // heads
                other = slice(shared * size, (shared + 1) * size)
                query = turn(q[i][own], i, config["rope_theta"])
                scores = [query @ turn(k[j][other], j, config["rope_theta"]) / math.sqrt(size) for j in range(i + 1)]
                shares = np.exp(np.array(scores) - max(scores))
                mixed.append(sum(share * v[j][other] for j, share in enumerate(shares / shares.sum())))
            x[i] = x[i] + weights[f"{at}.self_attn.o_proj.weight"] @ np.concatenate(mixed)
        for i, row in enumerate(x):
            normed_row = _norm(row, weights[f"{at}.post_attention_layernorm.weight"], eps)
            gate = weights[f"{at}.mlp.gate_proj.weight"] @ normed_row
            up = weights[f"{at}.mlp.up_proj.weight"] @ normed_row
            x[i] = row + weights[f"{at}.mlp.down_proj.weight"] @ (gate * (1 + np.tanh(gate / 2)) / 2 * up)
    output = weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return np.array([output @ _norm(row, weights["model.norm.weight"], eps) for row in x])


def turn(vector: NDArray[np.float64], position: int, theta: float) -> NDArray[np.float64]:
    """Rotary embedding in its complex form: coordinate i and its partner half a head later are one complex number."""
    half = len(vector) // 2
    frequencies = np.array([theta ** (-2 * i / len(vector)) for i in range(half)])
    turned = (vector[:half] + 1j * vector[half:]) * np.exp(1j * position * frequencies)
    return np.concatenate([turned.real, turned.imag])


def _norm(row: NDArray[np.float64], weight: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    return row / math.sqrt(float(np.mean(row**2)) + eps) * weight
