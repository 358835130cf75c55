"""Kinds of engine and their adapters."""

from __future__ import annotations

from harness.engines.native import NativeEngine
from harness.engines.openai import OpenAIEngine
from harness.engines.protocol import Engine
from harness.engines.sglang import SGLangEngine
from harness.engines.vllm import VLLMEngine
from harness.records.errors import UsageError

_ADAPTERS: dict[str, Engine] = {
    "native": NativeEngine(),
    "vllm": VLLMEngine(),
    "sglang": SGLangEngine(),
    "openai": OpenAIEngine(),
}
KINDS = tuple(_ADAPTERS)


def adapter(kind: str) -> Engine:
    """The adapter of a kind; UsageError for a kind there is none for."""
    try:
        return _ADAPTERS[kind]
    except KeyError:
        raise UsageError(f"unknown engine kind {kind!r}", mend=f"known are {', '.join(KINDS)}") from None
