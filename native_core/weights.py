"""Weights of a Llama-family checkpoint as float32 arrays, read from memory-mapped safetensors."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
ARCHITECTURES = frozenset({"LlamaForCausalLM"})
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


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
        file = directory / "config.json"
        try:
            raw = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from None
        if not isinstance(raw, dict):
            raise ModelError(f"{file} is no object")
        _check_supported(raw)
        try:
            config = cls._of(raw)
        except KeyError as error:
            raise ModelError(f"{file} lacks {error.args[0]}") from None
        except (TypeError, ValueError) as error:
            raise ModelError(f"{file} has a value of the wrong kind: {error}") from None
        if config.heads % config.kv_heads or config.head_dim % 2:
            raise ModelError(f"{config.heads} heads of {config.head_dim} over {config.kv_heads} key heads do not fit")
        return config

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> LlamaConfig:
        rope = raw.get("rope_parameters") or {}
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
            rope_scaling=_rope_scaling(raw),
            tied=bool(raw.get("tie_word_embeddings", False)),
        )


def _check_supported(raw: dict[str, Any]) -> None:
    found = raw.get("architectures") or ["none"]
    if not ARCHITECTURES.intersection(found):
        raise ModelError(f"architecture {found[0]} is not supported; supported: {', '.join(ARCHITECTURES)}")
    for key, wanted in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if raw.get(key, wanted) != wanted:
            raise ModelError(f"{key} = {raw[key]!r} is not supported; supported is {wanted!r}")
    if raw.get("quantization_config"):
        raise ModelError("quantised weights are not supported; name a checkpoint in BF16, F16 or F32")


def _rope_scaling(raw: dict[str, Any]) -> dict[str, Any] | None:
    """Llama 3's stretching, or None for plain frequencies. Older files say rope_scaling, newer ones rope_parameters."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"rope_scaling {kind!r} is not supported; supported are 'default' and 'llama3'")
    needed = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return {key: float(scaling[key]) for key in needed}


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
        if entry["dtype"] not in ITEM_BYTES:
            raise ModelError(f"{name} has type {entry['dtype']}; supported are {', '.join(ITEM_BYTES)}")
        if len(data) != math.prod(shape) * ITEM_BYTES[entry["dtype"]]:
            raise ModelError(f"{name} has {len(data)} bytes, which is not its shape {list(shape)}")
        return _float32(data, entry["dtype"]).reshape(shape)

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
                yield name, (whole[8 + size + begin : 8 + size + end], {key: entry[key] for key in ("shape", "dtype")})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file.name} is no whole safetensors file: {error}") from None


def _float32(data: memoryview, dtype: str) -> Array:
    """A bfloat16 is the upper half of a float32."""
    if dtype == "BF16":
        wide = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return np.frombuffer(data, dtype="<f2" if dtype == "F16" else "<f4").astype(np.float32)
