"""The OpenAI dialect that all engines speak: a request into bytes before timing, a stream event into a Delta after it.

What an event tells about tokens, best witness first: `token_ids` of the choice (exact), `usage` (cumulative, exact),
text (says that something came, not how much: `n_tokens` stays None). The decoder keeps no state between events, so
turning cumulative usage into tokens per event is the reader's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from harness.engines.protocol import Delta, DeltaKind, Encoded, GenerationRequest, Usage
from harness.records.errors import UsageError

COMPLETIONS = "/v1/completions"


def completion_body(request: GenerationRequest, model: str) -> dict[str, Any]:
    """The fields of `POST /v1/completions` that every engine reads. UsageError unless exactly one prompt is set."""
    if (request.prompt_ids is None) == (request.prompt_text is None):
        raise UsageError(f"request {request.request_id} needs exactly one of prompt_ids and prompt_text")
    body: dict[str, Any] = {
        "model": request.adapter or model,
        "prompt": list(request.prompt_ids) if request.prompt_ids is not None else request.prompt_text,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.want_continuous_usage:
        body["stream_options"]["continuous_usage_stats"] = True
    # Without an explicit temperature engines sample at 1.0; no sampling given means greedy.
    body.update(request.sampling or {"temperature": 0.0})
    return body


def pack(path: str, body: Mapping[str, Any]) -> Encoded:
    """Bytes ready to send; authorisation is added by whoever holds the endpoint."""
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    return Encoded(path=path, headers=headers, body=orjson.dumps(body))


def decode_event(event: bytes) -> Delta:
    """One SSE data payload, without its `data:`. Never raises: what cannot be read has kind `error`."""
    if event.strip() == b"[DONE]":
        return Delta(kind="done")
    try:
        document = orjson.loads(event)
    except orjson.JSONDecodeError as error:
        return Delta(kind="error", error=f"malformed event: {error}")
    if not isinstance(document, dict):
        return Delta(kind="error", error=f"malformed event: expected an object, got {type(document).__name__}")
    failure = _failure(document)
    if failure is not None:
        return Delta(kind="error", error=failure)
    try:
        return _read(document)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return Delta(kind="error", error=f"malformed event: {error}")


def _failure(document: dict[str, Any]) -> str | None:
    """The message of an error object inside a stream that began with status 200."""
    error = document.get("error")
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        return str(message or error)
    if document.get("object") == "error":
        return str(document.get("message") or "error without a message")
    return None


def _read(document: dict[str, Any]) -> Delta:
    choices = document.get("choices")
    if choices is not None and not isinstance(choices, list):
        raise TypeError("choices is not a list")
    usage = read_usage(document.get("usage"))
    timing = document.get("metrics")
    timing = timing if isinstance(timing, dict) else {}
    common: dict[str, Any] = {
        "usage": usage,
        "engine_request_id": _text_or_none(document.get("id")),
        "queue_s": _queue_seconds(timing),
        "preemptions": count_or_none(timing.get("preemptions")),
    }
    if not choices:
        return Delta(kind="usage" if usage is not None else "other", **common)
    choice = choices[0]
    kind, text = _what(choice)
    ids = choice.get("token_ids")
    token_ids = tuple(int(token) for token in ids) if ids is not None else None
    if token_ids and kind in ("role", "other"):
        kind = "content"  # a token whose text is still held back, half a UTF-8 character for instance
    return Delta(
        kind=kind,
        n_tokens=len(token_ids) if token_ids is not None else None,
        token_ids=token_ids,
        text=text,
        finish_reason=_text_or_none(choice.get("finish_reason")),
        **common,
    )


def _what(choice: dict[str, Any]) -> tuple[DeltaKind, str]:
    """Kind and text of a choice, of a completion (`text`) or of a chat (`delta`)."""
    text = choice.get("text")
    if isinstance(text, str):
        return ("content", text) if text else ("other", "")
    delta = choice.get("delta") or {}
    # vLLM 0.32 writes `reasoning`, older releases and SGLang `reasoning_content`.
    reasoning = delta.get("reasoning") or delta.get("reasoning_content")
    if reasoning:
        return "reasoning", str(reasoning)
    if delta.get("content"):
        return "content", str(delta["content"])
    if delta.get("tool_calls"):
        return "tool", ""
    return ("role", "") if delta.get("role") else ("other", "")


def read_usage(usage: Any) -> Usage | None:
    """`usage` of a response or an event; a figure that is absent or null stays None."""
    if not isinstance(usage, dict):
        return None
    prompt_details = usage.get("prompt_tokens_details") or {}
    output_details = usage.get("completion_tokens_details") or {}
    reasoning = output_details.get("reasoning_tokens", usage.get("reasoning_tokens"))
    return Usage(
        prompt_tokens=count_or_none(usage.get("prompt_tokens")),
        output_tokens=count_or_none(usage.get("completion_tokens")),
        cached_tokens=count_or_none(prompt_details.get("cached_tokens")),
        reasoning_tokens=count_or_none(reasoning),
    )


def count_or_none(value: Any) -> int | None:
    """A whole number as it stands. A negative one is kept: the reader must see a lie, not an absence."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _queue_seconds(timing: dict[str, Any]) -> float | None:
    """The engine's own queue time in seconds: the native core writes `queue_time_s`, vLLM `queue_time_ms`."""
    for key, scale in (("queue_time_s", 1.0), ("queue_time_ms", 1e-3)):
        value = timing.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value) * scale
    return None


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
