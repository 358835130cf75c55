"""Checkpoints: every supported type read exactly, and one line for what is no model that this core can run."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from native_core.numpy_executor import NumpyExecutor
from native_core.weights import LlamaConfig, ModelError, load_weights
from tests.native_core.checkpoints import CONFIG, random_tensors, save

DOWN = "model.layers.1.mlp.down_proj.weight"


def load(path: Path) -> Any:
    return load_weights(path, LlamaConfig.read(path))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["F32", "F16", "BF16"])
def test_every_type_is_read_exactly(tmp_path: Path, dtype: Any) -> None:
    tensors = {name: tensor.astype(dtype) for name, tensor in random_tensors(CONFIG).items()}
    found = load(save(tmp_path, CONFIG, tensors))

    def stored(name: str) -> NDArray[np.float32]:
        return np.asarray(tensors[f"model.{name}.weight"].astype(np.float32))

    np.testing.assert_array_equal(found.embedding, stored("embed_tokens"))
    np.testing.assert_array_equal(found.norm, stored("norm"))
    np.testing.assert_array_equal(found.head, tensors["lm_head.weight"].astype(np.float32))
    for number, layer in enumerate(found.layers):
        at = f"layers.{number}"
        np.testing.assert_array_equal(layer.attention_norm, stored(f"{at}.input_layernorm"))
        np.testing.assert_array_equal(layer.mlp_norm, stored(f"{at}.post_attention_layernorm"))
        np.testing.assert_array_equal(
            layer.qkv, np.concatenate([stored(f"{at}.self_attn.{name}_proj") for name in "qkv"])
        )
        np.testing.assert_array_equal(layer.output, stored(f"{at}.self_attn.o_proj"))
        np.testing.assert_array_equal(
            layer.gate_up, np.concatenate([stored(f"{at}.mlp.{name}_proj") for name in ("gate", "up")])
        )
        np.testing.assert_array_equal(layer.down, stored(f"{at}.mlp.down_proj"))
    assert {array.dtype for layer in found.layers for array in vars(layer).values()} == {np.dtype(np.float32)}


@settings(max_examples=200, deadline=None)
@given(bits=st.integers(0, 0xFFFF))
def test_a_bfloat16_is_the_upper_half_of_a_float32(bits: int) -> None:
    from native_core.weights import _float32

    found = _float32(memoryview(struct.pack("<H", bits)), "BF16")
    assert found.view(np.uint32)[0] == bits << 16


def test_tied_embeddings_are_kept_once(tmp_path: Path) -> None:
    config = {**CONFIG, "tie_word_embeddings": True}
    found = load(save(tmp_path, config, random_tensors(config)))
    assert found.head is found.embedding


def test_tensors_are_found_in_whichever_file_they_are(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = random_tensors(CONFIG)
    save(tmp_path, CONFIG, {name: tensor for name, tensor in tensors.items() if "layers.0" in name})
    rest = {name: tensor for name, tensor in tensors.items() if "layers.0" not in name}
    save_file(rest, tmp_path / "model-00002-of-00002.safetensors")
    np.testing.assert_array_equal(load(tmp_path).layers[1].down, tensors[DOWN])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "architecture MistralForCausalLM is not supported"),
        ({"architectures": []}, "architecture none is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling 'linear'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_scaling 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights are not supported"),
        ({"hidden_size": "wide"}, "has a value of the wrong kind"),
        ({"num_hidden_layers": None}, "has a value of the wrong kind"),
        ({"num_key_value_heads": 4}, "6 heads of 8 over 4 key heads do not fit"),
        ({"head_dim": 7}, "heads of 7"),
    ],
)
def test_a_config_that_would_compute_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ModelError, match=message) as caught:
        LlamaConfig.read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["hidden_size", "num_attention_heads", "vocab_size", "rms_norm_eps"])
def test_a_config_without_what_a_llama_has_says_what(tmp_path: Path, missing: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({key: CONFIG[key] for key in CONFIG if key != missing}))
    with pytest.raises(ModelError, match=f"lacks {missing}"):
        LlamaConfig.read(tmp_path)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null"])
def test_no_config_at_all(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        LlamaConfig.read(tmp_path)


def test_plain_and_llama_3_frequencies_under_old_and_new_keys(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }

    def read(**change: Any) -> LlamaConfig:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "rope_theta": None, **change}))
        return LlamaConfig.read(tmp_path)

    assert read().rope_scaling is None
    assert read(rope_scaling={"rope_type": "default"}).rope_scaling is None
    new = read(rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    assert (new.rope_theta, new.rope_scaling) == (1e5, None)
    stretched = read(rope_parameters={**llama3, "rope_theta": 5e5})
    assert (stretched.rope_theta, stretched.rope_scaling) == (5e5, read(rope_scaling=llama3).rope_scaling)
    assert stretched.rope_scaling is not None
    assert stretched.rope_scaling["factor"] == 8.0


def test_a_missing_tensor_and_one_of_another_shape_or_type_are_named(tmp_path: Path) -> None:
    tensors: dict[str, NDArray[Any]] = dict(random_tensors(CONFIG))
    down = tensors.pop(DOWN)
    with pytest.raises(ModelError, match=f"the checkpoint has no {DOWN}"):
        load(save(tmp_path, CONFIG, tensors))
    with pytest.raises(ModelError, match=r"shape \[40, 48\], config.json says \[48, 40\]"):
        load(save(tmp_path, CONFIG, {**tensors, DOWN: np.ascontiguousarray(down.T)}))
    with pytest.raises(ModelError, match="has type I8; supported are BF16, F16, F32"):
        load(save(tmp_path, CONFIG, {**tensors, DOWN: down.astype(np.int8)}))
    with pytest.raises(ModelError, match=r"no lm_head\.weight"):
        load(
            save(tmp_path, CONFIG, {name: tensors[name] for name in tensors if name != "lm_head.weight"} | {DOWN: down})
        )


def test_a_directory_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ModelError, match=r"has no \*\.safetensors"):
        load(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = save(tmp_path_factory.mktemp("whole"), CONFIG, random_tensors(CONFIG))
    return (path / "model.safetensors").read_bytes()


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_file_cut_off_anywhere_is_one_clear_error(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    path = tmp_path_factory.mktemp("cut")
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "model.safetensors").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelError, match="is no whole safetensors file"):
        load(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([], "no whole safetensors"),
        ({DOWN: {"dtype": "F32"}}, "no whole safetensors"),
        ({DOWN: {"dtype": "F32", "shape": [48, 40], "data_offsets": [0, "x"]}}, "no whole safetensors"),
        ({DOWN: {"data_offsets": [0, 8]}}, "no whole safetensors"),
    ],
)
def test_a_header_that_is_none(tmp_path: Path, header: Any, message: str) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_bytes_that_do_not_make_the_shape(tmp_path: Path, whole: bytes) -> None:
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    header[DOWN]["data_offsets"][1] -= 4
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + size :])
    with pytest.raises(ModelError, match=f"{DOWN} has 7676 bytes, which is not its shape"):
        load(tmp_path)


def test_an_executor_of_no_model_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        NumpyExecutor(tmp_path, threads=1)
