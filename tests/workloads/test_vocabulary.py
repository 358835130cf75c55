"""Which ids are safe to send."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from workloads.model import WorkloadError
from workloads.vocabulary import MIN_WORDS, Vocabulary


def model_dir(tmp_path: Path, vocab: Any, added: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    document = {"added_tokens": added, "model": {"type": "BPE", "vocab": vocab}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_added_tokens_and_ids_beyond_the_embedding_are_left_out(tmp_path: Path) -> None:
    vocab = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "beyond": 7}
    added = [{"id": 0, "content": "<s>", "special": True}, {"id": 3, "content": "b", "special": False}]
    found = Vocabulary.of(model_dir(tmp_path, vocab, added, {"vocab_size": 6}))
    assert found.ids == (1, 2, 4)
    assert found.size == 6
    assert found.tokenizer_sha256 == hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()


def test_whole_words_are_taken_where_there_are_enough(tmp_path: Path) -> None:
    words = {f"Ġ{chr(97 + i % 26)}{'xyz'[i // 26 % 3] * (1 + i // 78)}": i for i in range(MIN_WORDS)}
    assert len(words) == MIN_WORDS
    pieces = {"ing": 2000, "Ġ12": 2001, "é": 2002, "Ġ": 2003}
    found = Vocabulary.of(model_dir(tmp_path, words | pieces, [], {"vocab_size": 3000}))
    assert found.ids == tuple(range(MIN_WORDS))
    words.popitem()
    found = Vocabulary.of(model_dir(tmp_path, words | pieces, [], {"vocab_size": 3000}))
    assert set(found.ids) == set(words.values()) | set(pieces.values())


def test_unigram_vocabularies_are_lists(tmp_path: Path) -> None:
    vocab = [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0]]
    found = Vocabulary.of(
        model_dir(tmp_path, vocab, [{"id": 0, "content": "<unk>"}], {"text_config": {"vocab_size": 3}})
    )
    assert found.ids == (1, 2)


def test_a_prompt_of_words_is_the_same_tokens_as_text(tmp_path: Path) -> None:
    """Through the real library: decode, encode, compare. This is why whole words are taken."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    text = [f" {a}{b}{c}" for a in "abcdefghijklm" for b in "aeiou" for c in "nopqrstuvwxyzabcd"] * 3
    trainer = trainers.BpeTrainer(vocab_size=5000, special_tokens=["<s>"], show_progress=False)
    made.train_from_iterator(text, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": made.get_vocab_size()}))
    vocabulary = Vocabulary.of(tmp_path)
    assert len(vocabulary.ids) >= MIN_WORDS
    for at in range(0, len(vocabulary.ids) - 50, 50):
        prompt = list(vocabulary.ids[at : at + 50])
        assert made.encode(made.decode(prompt), add_special_tokens=False).ids == prompt


def test_what_is_no_model_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="name a model directory"):
        Vocabulary.of(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    for text, says in [("{", "no JSON"), ("[]", "no JSON object"), ("{}", "no model.vocab"), ('{"model": 1}', "vocab")]:
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(WorkloadError, match=says):
            Vocabulary.of(tmp_path)
    with pytest.raises(WorkloadError, match="at least 2"):
        Vocabulary.of(model_dir(tmp_path, {"a": 0}, [], {"vocab_size": 9}))
