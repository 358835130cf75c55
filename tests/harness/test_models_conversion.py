"""From a GGUF file to a Hugging Face directory: a small one made here, and SmolLM2 itself where it has been got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.models.smollm2 import convert, halves
from harness.models.store import find_model
from harness.records.errors import UsageError
from native_core.executor import SamplingParams, Work
from native_core.llama import Llama
from native_core.numpy_executor import NumpyExecutor
from native_core.parallel import Team
from native_core.tokenizer import Tokenizer
from native_core.weights import LlamaConfig, load_weights
from tests.native_core.bytelevel import byte_letters
from tests.native_core.checkpoints import naive_logits, random_tensors

CONFIG: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50_000.0,
    "tie_word_embeddings": True,
    "vocab_size": 262,
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def gguf_name(name: str) -> str:
    for long, short in GGUF_NAMES.items():
        name = name.replace(long, short)
    return name.replace("model.layers.", "blk.")


def neighbours(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """What a GGUF file holds of q and k, row by row: coordinate i of a head and its partner half a head later become
    rows 2i and 2i + 1."""
    size = len(weight) // heads
    rows = [head * size + j * (size // 2) + i for head in range(heads) for i in range(size // 2) for j in (0, 1)]
    return weight[rows]


def rounded(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Values that bfloat16 holds exactly, so that nothing is lost on the way."""
    return {name: (array.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, array in tensors.items()}


def write_gguf(path: Path, tensors: dict[str, NDArray[np.float32]], *, architecture: str = "llama") -> Path:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_vocab_size(CONFIG["vocab_size"])
    tokens = ["<unk>", "<s>", "</s>", *sorted(byte_letters().values()), "ab", "Ġab", "12"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "Ġ ab", "1 2"])
    for add, value in (
        (writer.add_unk_token_id, 0),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_pad_token_id, 2),
    ):
        add(value)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in tensors.items():
        for part, heads in (("q_proj", CONFIG["num_attention_heads"]), ("k_proj", CONFIG["num_key_value_heads"])):
            tensor = neighbours(tensor, heads) if part in name else tensor
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tensors() -> dict[str, NDArray[np.float32]]:
    return rounded(random_tensors(CONFIG))


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, NDArray[np.float32]]) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    convert(write_gguf(folder / "small.gguf", tensors), folder)
    return folder


def test_rows_of_a_head_go_back_to_halves() -> None:
    weight = np.arange(24, dtype=np.float32).reshape(12, 2)
    for heads in (1, 2, 3):
        np.testing.assert_array_equal(halves(neighbours(weight, heads), heads), weight)
    # one head of four rows: pairs (0, 1), (2, 3) were coordinates (0, 2), (1, 3)
    assert halves(np.arange(4, dtype=np.float32)[:, None], 1).ravel().tolist() == [0, 2, 1, 3]


def test_every_tensor_arrives_unchanged(converted: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    from safetensors import safe_open

    with safe_open(converted / "model.safetensors", "np") as file:
        assert set(file.keys()) == set(tensors)
        assert file.metadata() == {"format": "pt"}
        assert {file.get_slice(name).get_dtype() for name in tensors} == {"BF16"}
    weights = load_weights(converted, LlamaConfig.read(converted))
    np.testing.assert_array_equal(weights.embedding, tensors["model.embed_tokens.weight"])
    for number, layer in enumerate(weights.layers):
        at = f"model.layers.{number}"
        qkv = [tensors[f"{at}.self_attn.{name}_proj.weight"] for name in ("q", "k", "v")]
        np.testing.assert_array_equal(layer.qkv, np.concatenate(qkv))
        np.testing.assert_array_equal(layer.down, tensors[f"{at}.mlp.down_proj.weight"])


def test_the_converted_model_computes_what_the_original_does(
    converted: Path, tensors: dict[str, NDArray[np.float32]]
) -> None:
    model = Llama(converted, Team(1))
    model.allocate(8, 4)
    ids = np.random.default_rng(4).integers(0, CONFIG["vocab_size"], 20).tolist()
    logits, _ = model.forward([Work("a", ids, 0, range(5), SamplingParams())], [0])
    np.testing.assert_allclose(logits[0], naive_logits(CONFIG, tensors, ids)[-1], rtol=0, atol=2e-5)


def test_configuration_and_tokenizer_say_what_the_file_says(converted: Path) -> None:
    config = LlamaConfig.read(converted)
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (2, 48, 6, 2, 8)
    assert (config.vocab, config.context, config.eps, config.rope_theta, config.tied) == (262, 128, 1e-5, 5e4, True)
    tokenizer = Tokenizer(converted)
    spelled = [[tokenizer.token(i) for i in tokenizer.encode(text)] for text in ("ab ab", "112", "</s>a")]
    assert spelled == [["ab", "Ġab"], ["1", "1", "2"], ["</s>", "a"]]  # the merge "1 2" never sees two digits
    assert tokenizer.apply_chat_template([{"content": "x"}]) == "x"


def test_another_architecture_is_refused(tmp_path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    file = write_gguf(tmp_path / "other.gguf", tensors, architecture="gpt2")
    with pytest.raises(UsageError, match=r"other\.gguf is a gpt2 model, only llama is converted"):
        convert(file, tmp_path)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        return find_model("smollm2-135m").path
    except UsageError as error:
        pytest.skip(str(error))


def test_smollm2_is_what_was_published(smollm2: Path) -> None:
    config = LlamaConfig.read(smollm2)
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.vocab, config.context, config.rope_theta, config.eps, config.tied) == (49_152, 8192, 1e5, 1e-5, True)


def test_smollm2_knows_the_capital_of_france(smollm2: Path) -> None:
    """Whole, in chunks, and from a prefix that is cached: the same ids."""
    tokenizer = Tokenizer(smollm2)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = tokenizer.encode(tokenizer.apply_chat_template(question))
    executor = NumpyExecutor(smollm2, threads=2)
    executor.allocate(40, 16)

    def answer(table: list[int], *edges: int) -> list[int]:
        ids, at = list(prompt), edges[0]
        for stop in edges[1:]:
            executor.execute([Work("chunk", ids[at:stop], at, table, None)])
            at = stop
        for step in range(20):
            (token,) = executor.execute([Work("a", ids[at:], at, table, SamplingParams(), step)]).sampled
            assert token is not None
            at = len(ids)
            ids.append(token.token_id)
            if tokenizer.token(token.token_id) == "<|im_end|>":
                break
        return ids[len(prompt) :]

    whole = answer([0, 1, 2, 3, 4], 0)
    assert tokenizer.decode(whole) == "The capital of France is Paris."
    assert answer([30, 11, 25, 6, 19], 0, 7, 8, 33) == whole
    assert answer([0, 1, 20, 8, 39], 32) == whole  # two blocks as the first answer left them
