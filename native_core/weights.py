"""Weights of a Llama-family checkpoint as float32 arrays, read from memory-mapped safetensors."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
ARCHITECTURES = frozenset({"LlamaForCausalLM"})


class ModelError(ValueError):
    """A directory that holds no model this core can run. One line."""


@dataclass(frozen=True)
class LlamaConfig:
    """config.json, as far as the forward pass needs it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    tied: bool

    @classmethod
    def read(cls, directory: Path) -> LlamaConfig:
        """ModelError for another architecture, or for a variation that would silently compute something else."""
        try:
            raw = json.loads((directory / "config.json").read_bytes())
        except (OSError, ValueError) as error:
            raise ModelError(f"{directory / 'config.json'} cannot be read: {error}") from None
        found = raw.get("architectures") or ["none"]
        if not ARCHITECTURES.intersection(found):
            raise ModelError(f"architecture {found[0]} is not supported; supported: {', '.join(ARCHITECTURES)}")
        for key, wanted in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
            if raw.get(key, wanted) != wanted:
                raise ModelError(f"{key} = {raw[key]!r} is not supported; supported is {wanted!r}")
        rope = raw.get("rope_parameters") or {}
        scaling = raw.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
        if scaling and scaling.get("rope_type", scaling.get("type")) != "llama3":
            raise ModelError(f"rope_scaling {scaling.get('rope_type', scaling.get('type'))!r} is not supported")
        heads = int(raw["num_attention_heads"])
        return cls(
            layers=int(raw["num_hidden_layers"]),
            hidden=int(raw["hidden_size"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
            vocab=int(raw["vocab_size"]),
            context=int(raw["max_position_embeddings"]),
            eps=float(raw["rms_norm_eps"]),
            rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
            rope_scaling=scaling,
            tied=bool(raw.get("tie_word_embeddings", False)),
        )


@dataclass(frozen=True)
class Layer:
    """One block. Matrices are (outputs, inputs), as checkpoints store them; q, k, v are stacked, gate and up too."""

    attention_norm: Array
    qkv: Array
    output: Array
    mlp_norm: Array
    gate_up: Array
    down: Array


@dataclass(frozen=True)
class Weights:
    embedding: Array  # (vocabulary, hidden)
    layers: tuple[Layer, ...]
    norm: Array
    head: Array  # the embedding itself when tied


def load_weights(directory: Path, config: LlamaConfig) -> Weights:
    """Everything as float32. ModelError for a missing tensor, a wrong shape or an unknown type."""
    tensors = _Tensors(directory)
    width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    embedding = tensors.take("model.embed_tokens.weight", config.vocab, config.hidden)

    def layer(i: int) -> Layer:
        at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        qkv = [
            tensors.take(f"{at}.{name}_proj.weight", rows, config.hidden)
            for name, rows in (("q", width), ("k", kv_width), ("v", kv_width))
        ]
        inner = tensors.rows(f"{mlp}.gate_proj.weight")
        gate_up = [tensors.take(f"{mlp}.{name}_proj.weight", inner, config.hidden) for name in ("gate", "up")]
        return Layer(
            attention_norm=tensors.take(f"model.layers.{i}.input_layernorm.weight", config.hidden),
            qkv=np.concatenate(qkv),
            output=tensors.take(f"{at}.o_proj.weight", config.hidden, width),
            mlp_norm=tensors.take(f"model.layers.{i}.post_attention_layernorm.weight", config.hidden),
            gate_up=np.concatenate(gate_up),
            down=tensors.take(f"{mlp}.down_proj.weight", config.hidden, inner),
        )

    return Weights(
        embedding=embedding,
        layers=tuple(layer(i) for i in range(config.layers)),
        norm=tensors.take("model.norm.weight", config.hidden),
        head=embedding if config.tied else tensors.take("lm_head.weight", config.vocab, config.hidden),
    )


class _Tensors:
    """The tensors of all safetensors files of a directory, by name, still on disk."""

    def __init__(self, directory: Path) -> None:
        self._found: dict[str, tuple[memoryview, dict[str, Any]]] = {}
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{directory} has no *.safetensors")
        for file in files:
            for name, entry in _entries(file):
                self._found[name] = entry

    def rows(self, name: str) -> int:
        return int(self._entry(name)[1]["shape"][0])

    def take(self, name: str, *shape: int) -> Array:
        data, entry = self._entry(name)
        if tuple(entry["shape"]) != shape:
            raise ModelError(f"{name} has shape {entry['shape']}, config.json says {list(shape)}")
        return _float32(data, entry["dtype"], name).reshape(shape)

    def _entry(self, name: str) -> tuple[memoryview, dict[str, Any]]:
        try:
            return self._found[name]
        except KeyError:
            raise ModelError(f"the checkpoint has no {name}") from None


def _entries(file: Path) -> Iterator[tuple[str, tuple[memoryview, dict[str, Any]]]]:
    """safetensors: u64 length of a JSON header, the header, then the tensors' bytes at its offsets."""
    try:
        with file.open("rb") as stream:
            whole = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(bytes(whole[8 : 8 + size]))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                if end > len(whole) - 8 - size:
                    raise ValueError("it ends before its tensors do")
                yield name, (whole[8 + size + begin : 8 + size + end], entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file.name} is no whole safetensors file: {error}") from None


def _float32(data: memoryview, dtype: str, name: str) -> Array:
    """A bfloat16 is the upper half of a float32."""
    if dtype == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
    if dtype == "F32":
        return np.frombuffer(data, dtype="<f4").astype(np.float32)
    raise ModelError(f"{name} has type {dtype}; supported are BF16, F16, F32")
