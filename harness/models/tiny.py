"""`tiny`: a seeded random Llama that loads in milliseconds, for tests and for learning. It talks nonsense, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness.models.byte_level import CHATML, write_tokenizer
from harness.models.directory import made_whole, write_json, write_weights

SEED = 20_240_501
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 2, 128, 256, 2, 1, 64, 4096
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 512  # 3 specials, 256 bytes, the rest made of pairs of letters
NEED_BYTES = 20_000_000


def make_tiny(target: Path) -> None:
    """The same bytes on every machine: Philox words through a mapping of our own, no distribution of a library."""
    with made_whole(target, NEED_BYTES) as draft:
        write_weights(draft, _tensors())
        write_json(draft / "config.json", _config())
        write_json(draft / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
        vocab, merges = _vocabulary()
        write_tokenizer(
            draft,
            vocab=vocab,
            merges=merges,
            specials=SPECIALS,
            single_digits=True,
            names={
                "bos_token": SPECIALS[1],
                "eos_token": SPECIALS[2],
                "unk_token": SPECIALS[0],
                "pad_token": SPECIALS[2],
            },
            chat_template=CHATML,
            context=CONTEXT,
        )


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "head_dim": HEAD_DIM,
        "initializer_range": 0.02,
        "intermediate_size": FFN,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def _tensors() -> dict[str, np.ndarray[Any, Any]]:
    """Weights in [-s, s], s chosen so that activations neither vanish nor explode over two layers."""
    words = np.random.Philox(key=SEED)

    def uniform(rows: int, columns: int) -> np.ndarray[Any, Any]:
        raw = words.random_raw(rows * columns)
        unit = (raw >> np.uint64(40)).astype(np.float64) / 2.0**24  # 24 bits, exact in float64
        values = (2.0 * unit - 1.0) * (3.0 / columns) ** 0.5
        return np.asarray(values.reshape(rows, columns), dtype=np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    tensors: dict[str, np.ndarray[Any, Any]] = {"model.embed_tokens.weight": uniform(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.input_layernorm.weight"] = ones
        tensors[f"{prefix}.self_attn.q_proj.weight"] = uniform(HEADS * HEAD_DIM, HIDDEN)
        tensors[f"{prefix}.self_attn.k_proj.weight"] = uniform(KV_HEADS * HEAD_DIM, HIDDEN)
        tensors[f"{prefix}.self_attn.v_proj.weight"] = uniform(KV_HEADS * HEAD_DIM, HIDDEN)
        tensors[f"{prefix}.self_attn.o_proj.weight"] = uniform(HIDDEN, HEADS * HEAD_DIM)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = ones
        tensors[f"{prefix}.mlp.gate_proj.weight"] = uniform(FFN, HIDDEN)
        tensors[f"{prefix}.mlp.up_proj.weight"] = uniform(FFN, HIDDEN)
        tensors[f"{prefix}.mlp.down_proj.weight"] = uniform(HIDDEN, FFN)
    tensors["model.norm.weight"] = ones
    return tensors


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Specials, every byte, then pairs of common letters until the vocabulary is full."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIALS, *letters])}
    merges: list[tuple[str, str]] = []
    for left in "Ġetaoinshrdlu":
        for right in "etaoinshrdlucmfwypvbgk":
            if len(vocab) == VOCABULARY:
                return vocab, merges
            vocab[left + right] = len(vocab)
            merges.append((left, right))
    raise AssertionError("the pairs do not fill the vocabulary")
