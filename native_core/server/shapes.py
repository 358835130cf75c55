"""The JSON of answers: completion and chat, one document or stream events, in the field names of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from native_core.executor import Sampled
from native_core.request import Request
from native_core.server.jobs import Job
from native_core.server.runner import Answer
from native_core.server.served import Served

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Piece:
    """What one event says about one choice, or, joined, what a whole answer says."""

    text: str = ""
    tokens: list[Sampled] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


def sse(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


class Shapes:
    """The documents of one job."""

    def __init__(self, job: Job, served: Served) -> None:
        self._job = job
        self._served = served
        chat = job.kind == "chat"
        self._chat = chat
        self._head = {
            "id": job.id,
            "object": "chat.completion" if chat else "text_completion",
            "created": job.created,
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }
        self._stream_head = {**self._head, "object": "chat.completion.chunk" if chat else "text_completion"}
        self._offsets: dict[int, int] = {}  # characters sent so far, per choice

    # Streams

    def opening(self, answer: Answer) -> bytes | None:
        """Chat only: the event that names the role. It carries no token."""
        if not self._chat:
            return None
        choice: dict[str, Any] = {"index": answer.index, "delta": {"role": "assistant", "content": ""}}
        choice |= {"logprobs": None, "finish_reason": None}
        document: dict[str, Any] = {**self._stream_head, "choices": [choice]}
        if self._job.return_token_ids:
            document["prompt_token_ids"] = list(answer.request.prompt_ids)
        return sse(document)

    def event(self, answer: Answer, piece: Piece, *, first: bool, usage: dict[str, Any] | None) -> bytes:
        choice = self._choice(answer, piece, "delta")
        if self._job.return_token_ids and first and not self._chat:
            choice["prompt_token_ids"] = list(answer.request.prompt_ids)
        document: dict[str, Any] = {**self._stream_head, "choices": [choice]}
        if usage is not None:
            document["usage"] = usage
        return sse(document)

    def closing(self, usage: dict[str, Any], metrics: dict[str, Any]) -> bytes:
        """The usage event: no choices, the request's totals and its timings."""
        return sse({**self._stream_head, "choices": [], "usage": usage, "metrics": metrics})

    # One document

    def whole(
        self, pairs: Sequence[tuple[Answer, Piece]], usage: dict[str, Any], metrics: dict[str, Any]
    ) -> dict[str, Any]:
        choices = []
        for answer, piece in pairs:
            choice = self._choice(answer, piece, "message")
            if self._chat:
                choice["message"] = {"role": "assistant", **choice["message"]}
            elif self._job.return_token_ids:
                choice["prompt_token_ids"] = list(answer.request.prompt_ids)
            choices.append(choice)
        document: dict[str, Any] = {**self._head, "choices": choices, "usage": usage, "metrics": metrics}
        if self._chat and self._job.return_token_ids:
            document["prompt_token_ids"] = list(pairs[0][0].request.prompt_ids)
        return document

    # Parts

    def _choice(self, answer: Answer, piece: Piece, chat_key: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": answer.index}
        if self._chat:
            choice[chat_key] = {"content": piece.text}
        else:
            choice["text"] = piece.text
        choice["logprobs"] = self._logprobs(answer, piece)
        choice["finish_reason"] = piece.finish_reason
        choice["stop_reason"] = piece.stop_reason
        if self._job.return_token_ids:
            choice["token_ids"] = [token.token_id for token in piece.tokens]
        return choice

    def _logprobs(self, answer: Answer, piece: Piece) -> dict[str, Any] | None:
        if self._job.logprobs is None:
            return None
        if self._chat:
            return {"content": [self._chat_logprob(token) for token in piece.tokens]}
        words = [self._word(token.token_id) for token in piece.tokens]
        offsets, at = [], self._offsets.get(answer.index, 0)
        for word in words:
            offsets.append(at)
            at += len(word)
        self._offsets[answer.index] = at
        return {
            "text_offset": offsets,
            "tokens": words,
            "token_logprobs": [token.logprob for token in piece.tokens],
            "top_logprobs": [self._top(token) for token in piece.tokens],
        }

    def _top(self, token: Sampled) -> dict[str, float | None]:
        """The best alternatives and, if it is not among them, the chosen token."""
        top: dict[str, float | None] = {self._word(other): value for other, value in token.top}
        top.setdefault(self._word(token.token_id), token.logprob)
        return top

    def _chat_logprob(self, token: Sampled) -> dict[str, Any]:
        return {
            **self._word_logprob(token.token_id, token.logprob),
            "top_logprobs": [self._word_logprob(other, value) for other, value in token.top],
        }

    def _word_logprob(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        word = self._word(token_id)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}

    def _word(self, token_id: int) -> str:
        return self._served.tokenizer.decode([token_id], skip_special_tokens=False)


def usage_of(prompt: int, output: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def metrics_of(requests: Sequence[Request]) -> dict[str, Any]:
    """`metrics` of the last event: the engine's own clock, in seconds; null where the moment never came.

    queue_time_s: arrival to first scheduling. prefill_time_s: from there to the first token. decode_time_s: from there
    to the last token, waiting after a preemption included. preemptions: how often it was thrown back. Of several
    answers the longest of each time, and the sum of preemptions.
    """

    def longest(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return max(known) if known else None

    return {
        "queue_time_s": longest([request.queue_seconds for request in requests]),
        "prefill_time_s": longest([request.prefill_seconds for request in requests]),
        "decode_time_s": longest([request.decode_seconds for request in requests]),
        "preemptions": sum(request.preemptions for request in requests),
    }
