"""Text to ids and back: tokenizer.json, the chat template, and text that grows without half characters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from native_core.weights import ModelError

if TYPE_CHECKING:
    from jinja2 import Template

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
        source = separate.read_text("utf-8") if separate.is_file() else _default(self._config.get("chat_template"))
        self._template = _compiled(source) if source else None

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
        """The text of a conversation. ValueError if there is no template, it refuses the messages or fails on them."""
        from jinja2 import TemplateError

        if self._template is None:
            raise ValueError("the model has no chat template")
        names = {"messages": messages, "add_generation_prompt": add_generation_prompt, **self._names(), **extra}
        try:
            return str(self._template.render(**names))
        except TemplateError as error:
            raise ValueError(f"the chat template refuses: {error}") from None
        except Exception as error:  # a template is a program, and messages of a form it does not expect make it fail
            raise ValueError(f"the chat template fails on them: {type(error).__name__}: {error}") from None

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


def _default(templates: object) -> str | None:
    """tokenizer_config.json gives one template, or a list of named ones."""
    if isinstance(templates, list):
        named = {row.get("name"): row.get("template") for row in templates if isinstance(row, dict)}
        templates = named.get("default")
    return templates if isinstance(templates, str) else None


def _compiled(source: str) -> Template:
    """As transformers does it: blocks trimmed, in a sandbox, with raise_exception for templates that refuse and the
    date for those that name it. ModelError for what is no template."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"the chat template is none: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from None
    return document if isinstance(document, dict) else {}
