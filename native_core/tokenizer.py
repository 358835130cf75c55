"""Text to ids and back: tokenizer.json, the chat template, and text that grows without half characters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from native_core.weights import ModelError

HALF = "\ufffd"  # what decoding gives for bytes that are no whole character yet


class Tokenizer:
    """A directory's tokenizer. Raises ModelError if it has none."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Fast

        try:
            self._fast = Fast.from_file(str(directory / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception for everything
            raise ModelError(f"{directory / 'tokenizer.json'} cannot be read: {error}") from None
        self._config = _read(directory / "tokenizer_config.json")
        separate = directory / "chat_template.jinja"
        self._template = separate.read_text("utf-8") if separate.is_file() else self._config.get("chat_template")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it; empty for an id that has none."""
        return self._fast.id_to_token(token_id) or ""

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        return Detokenizer(self, skip_special_tokens)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """The text of a conversation. ValueError if there is no template or it refuses the messages."""
        if not isinstance(self._template, str):
            raise ValueError("the model has no chat template")
        return _render(
            self._template, messages=messages, add_generation_prompt=add_generation_prompt, **self._names(), **extra
        )

    def _names(self) -> dict[str, str]:
        """bos_token and the like, given as text or as an object with `content`."""
        names = {}
        for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = self._config.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                names[key] = text
        return names


class Detokenizer:
    """Turns ids into text as they come. Decoding from a few tokens back keeps the cost of a token constant; they are
    needed because some tokenizers write a token differently at the start of a text."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._begin = 0  # of the window that is decoded
        self._told = 0  # tokens whose text was given out

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty while a character is only begun."""
        self._ids.append(token_id)
        before, now = self._window()
        if now.endswith(HALF) or len(now) <= len(before):
            return ""
        self._begin, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        """What was held back, at the end: a character that never became whole is given as U+FFFD."""
        before, now = self._window()
        self._begin, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def _window(self) -> tuple[str, str]:
        decode, skip = self._tokenizer.decode, self._skip
        before = decode(self._ids[self._begin : self._told], skip_special_tokens=skip)
        return before, decode(self._ids[self._begin :], skip_special_tokens=skip)


def _render(template: str, **names: Any) -> str:
    """As transformers renders it: blocks trimmed, in a sandbox, with raise_exception for templates that refuse."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(**names)
    except TemplateError as error:
        raise ValueError(f"the chat template refuses: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from None
    return document if isinstance(document, dict) else {}
