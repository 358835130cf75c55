"""Ids against a byte-level BPE written from its definition; text that grows token by token; chat templates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.models.store import find_model, get_model
from harness.records.errors import UsageError
from native_core.tokenizer import HALF, Tokenizer
from native_core.weights import ModelError
from tests.native_core.bytelevel import Reference, words

# rich in what pre-tokenizers disagree about: digits after blanks, underscores, apostrophes, scripts, odd blanks
CHARACTERS = (
    list("  \n\t\r\u00a0\u2003\u3000\x1c" + "0123456789" * 2 + "²½٣Ⅷ" + "abcdefghijklmnopqrstuvwxyz" + "AEIOSTR")
    + list("éüßñçøжЯдשلكमा한日本語ไทย" + "'''\"_-.,:;!?()[]{}<>|/\\@#$%^&*+=~`" + "…—“”€\u0301\u200d")
    + ["\U0001f40c", "\U0001f469", "\ufe0f", "\x00", "\x7f"]
)
PIECES = ["'s", "'re", "'ll", " the", "ing", " 12", "\n\n", "    ", "def ", "<|im_start|>", "<|im_end|>", "<|im", "|>"]
TEXT = st.lists(st.one_of(st.sampled_from(CHARACTERS), st.sampled_from(PIECES)), max_size=40).map("".join)


@pytest.fixture(scope="module")
def tiny_path() -> Path:
    return get_model("tiny").path


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Tokenizer:
    return Tokenizer(tiny_path)


@pytest.fixture(scope="module", params=["tiny", "smollm2-135m"])
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, Reference]:
    try:
        path = get_model("tiny").path if request.param == "tiny" else find_model(request.param).path
    except UsageError as error:
        pytest.skip(str(error))
    return Tokenizer(path), Reference(path)


def test_the_reference_splits_words_as_the_pattern_says() -> None:
    assert words("we're  here, at_last\n\n now 12") == [
        "we", "'re", " ", " here", ",", " at", "_", "last", "\n\n", " now", " 12",
    ]  # fmt: skip
    assert words("x  ") == ["x", "  "]


def test_thousands_of_random_strings_get_the_reference_s_ids(both: tuple[Tokenizer, Reference]) -> None:
    tokenizer, reference = both
    rng = random.Random(5)
    texts = ["".join(rng.choices(CHARACTERS + PIECES, k=rng.randrange(30))) for _ in range(3000)]
    wrong = [text for text in texts if tokenizer.encode(text) != reference.encode(text)]
    assert not wrong
    assert all(tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text for text in texts)


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_ids_are_the_reference_s_and_spell_the_text(both: tuple[Tokenizer, Reference], text: str) -> None:
    tokenizer, reference = both
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_digits_are_cut_out_one_by_one_also_after_blanks(both: tuple[Tokenizer, Reference]) -> None:
    """A conversion through other tools loses this: there two blanks and a digit give a blank, then ' 1'."""
    tokenizer, reference = both
    digits = [reference.vocab[digit] for digit in "1234"]
    assert tokenizer.encode("1234") == digits
    assert tokenizer.encode("  1")[-1] == digits[0]
    assert tokenizer.encode("  1")[:-1] == tokenizer.encode("  ")


@settings(max_examples=200, deadline=None)
@given(text=TEXT, noise=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 511)), max_size=6))
def test_pieces_make_the_whole_text_and_hold_half_characters_back(
    tiny: Tokenizer, text: str, noise: list[tuple[int, int]]
) -> None:
    """Also for ids that spell no text: a model may stop, or go on, in the middle of a character."""
    ids = tiny.encode(text)
    for at, token in noise:
        ids.insert(at, token)
    growing = tiny.detokenizer()
    pieces = [growing.push(token) for token in ids]
    assert not any(piece.endswith(HALF) for piece in pieces)
    assert "".join(pieces) + growing.flush() == tiny.decode(ids)
    assert growing.flush() == ""


def test_a_character_of_four_bytes_comes_out_with_its_last(tiny: Tokenizer) -> None:
    ids = tiny.encode("a\U0001f40c")
    growing = tiny.detokenizer()
    assert [growing.push(token) for token in ids] == ["a", "", "", "", "\U0001f40c"]
    growing = tiny.detokenizer()
    assert "".join(growing.push(token) for token in ids[:-1]) + growing.flush() == "a" + HALF


def test_special_tokens_are_left_out_unless_asked_for(tiny: Tokenizer) -> None:
    ids = tiny.encode("<|im_start|>hi<|im_end|>")
    assert tiny.decode(ids) == "hi"
    growing = tiny.detokenizer(skip_special_tokens=False)
    assert "".join(growing.push(token) for token in ids) == "<|im_start|>hi<|im_end|>"
    assert tiny.token(ids[0]) == "<|im_start|>"
    assert tiny.token(99_999) == ""


def with_template(tmp_path: Path, tiny_path: Path, template: Any, **names: Any) -> Tokenizer:
    (tmp_path / "tokenizer.json").write_bytes((tiny_path / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **names}))
    return Tokenizer(tmp_path)


MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]


def test_chatml(tiny: Tokenizer) -> None:
    turns = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    assert tiny.apply_chat_template(MESSAGES) == turns + "<|im_start|>assistant\n"
    assert tiny.apply_chat_template(MESSAGES, add_generation_prompt=False) == turns


def test_blocks_are_trimmed_and_names_are_known(tmp_path: Path, tiny_path: Path) -> None:
    template = "{{ bos_token }}\n  {% for m in messages %}\n{{ m | tojson }}{% if loop.first %}{% break %}{% endif %}\n"
    template += "  {% endfor %}\n{{ eos_token }}{{ tools }}"
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    tokenizer = with_template(tmp_path, tiny_path, template, **names)
    found = tokenizer.apply_chat_template([{"role": "user", "content": "é<"}], tools="T")
    assert found == '<s>\n{"role": "user", "content": "é<"}</s>T'


def test_a_file_of_its_own_beats_the_configuration_and_a_list_has_a_default(tmp_path: Path, tiny_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "listed"}]
    assert with_template(tmp_path, tiny_path, named).apply_chat_template([]) == "listed"
    (tmp_path / "chat_template.jinja").write_text("filed")
    assert Tokenizer(tmp_path).apply_chat_template([]) == "filed"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses: roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses: .*unsafe"),
        ("{{ messages.append(1) }}", "refuses: .*'append'"),
        ("{{ 'a' + messages[0]['content'] }}", "fails on them: TypeError"),
        (None, "no chat template"),
    ],
)
def test_a_template_that_refuses_fails_or_reaches_out(
    tmp_path: Path, tiny_path: Path, template: str | None, message: str
) -> None:
    tokenizer = with_template(tmp_path, tiny_path, template)
    with pytest.raises(ValueError, match=message):
        tokenizer.apply_chat_template([{"role": "user", "content": None}])


def test_what_is_no_tokenizer_is_one_line(tmp_path: Path, tiny_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer(tmp_path)
    with pytest.raises(ModelError, match="the chat template is none"):
        with_template(tmp_path, tiny_path, "{% for %}")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        Tokenizer(tmp_path)
