"""Hand-worked streams: what is the first token, what is content, how many tokens, how it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.client.outcome import EXCERPT, Outcome, decode_outcome
from harness.client.record import RawRecord
from harness.engines.openai import OpenAIEngine
from harness.engines.protocol import Delta
from tests.harness.client.scripted import LAST, SSE_HEAD, chunk


def _chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def _text(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


def _usage(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}}


def _record(*events: dict[str, Any] | str, end: str = "complete", done: bool = True) -> RawRecord:
    """Event k is read at 100 + 10 k; sent at 50."""
    wires = [chunk(b"data: %b\n\n" % (e if isinstance(e, str) else json.dumps(e)).encode()) for e in events]
    if done:
        wires.append(chunk(b"data: [DONE]\n\n") + LAST)
    reads = [(100 + 10 * k, 99 + 10 * k, wire) for k, wire in enumerate(wires)]
    return RawRecord("r", "measure", 50, 50, reads[-1][0] if reads else 60, end, "why", SSE_HEAD, 200, 0, reads)


def _outcome(*events: dict[str, Any] | str, **more: Any) -> Outcome:
    return decode_outcome(_record(*events, **more), OpenAIEngine())


def test_a_role_event_is_no_token() -> None:
    outcome = _outcome(
        _chat({"role": "assistant", "content": ""}),
        _chat({"content": "a"}),
        _chat({"content": "b"}, "stop"),
        _usage(9, 2),
    )
    assert (outcome.t_first_byte, outcome.t_first_token, outcome.t_last_token) == (100, 110, 120)
    assert [c.kind for c in outcome.chunks] == ["role", "content", "content", "usage"]
    assert [c.seq for c in outcome.chunks] == [0, 1, 2, 3]
    assert [c.t_kernel for c in outcome.chunks] == [99, 109, 119, 129]


def test_reasoning_is_a_token_but_not_content() -> None:
    outcome = _outcome(
        _chat({"role": "assistant"}),
        _chat({"reasoning": "hm"}),
        _chat({"reasoning_content": "so"}),
        _chat({"content": "a"}, "stop"),
        _usage(9, 3, completion_tokens_details={"reasoning_tokens": 2}),
    )
    assert (outcome.t_first_token, outcome.t_first_content, outcome.t_last_token) == (110, 130, 130)
    assert (outcome.output_tokens, outcome.usage.reasoning_tokens) == (3, 2)


def test_several_tokens_in_the_first_event() -> None:
    outcome = _outcome(
        _text("abc", token_ids=[1, 2, 3]), _text("d", token_ids=[4]), _text("", "length", token_ids=[5]), _usage(9, 5)
    )
    assert [c.n_tokens for c in outcome.chunks] == [3, 1, 1, 0]
    assert outcome.output_ids == (1, 2, 3, 4, 5)
    assert (outcome.t_first_token, outcome.t_last_token) == (100, 120)
    assert (outcome.output_tokens, outcome.token_source) == (5, "usage")


def test_one_token() -> None:
    outcome = _outcome(_text("a", "stop"), _usage(9, 1))
    assert (outcome.t_first_token, outcome.t_last_token, outcome.output_tokens) == (100, 100, 1)


def test_no_token_at_all() -> None:
    outcome = _outcome(_text("", "stop"), _usage(9, 0))
    assert (outcome.status, outcome.output_tokens, outcome.output_ids) == ("ok", 0, ())
    assert (outcome.t_first_token, outcome.t_first_content, outcome.t_last_token) == (None, None, None)


def test_a_first_token_without_text_is_seen() -> None:
    """Half a UTF-8 character: the token was made, though nothing can be shown yet."""
    outcome = _outcome(_text(""), _text("é"), _text("b", "length"), _usage(9, 3))
    assert (outcome.t_first_token, outcome.t_last_token) == (100, 120)
    assert [(c.kind, c.n_tokens, c.source) for c in outcome.chunks[:3]] == [("content", 1, "event")] * 3


def test_cached_tokens_and_request_id() -> None:
    outcome = _outcome(_text("a", "stop"), _usage(9, 1, prompt_tokens_details={"cached_tokens": 8}))
    assert (outcome.usage.prompt_tokens, outcome.usage.cached_tokens, outcome.engine_request_id) == (9, 8, "x")


def test_done_may_be_missing_after_a_finish_reason() -> None:
    record = _record(_text("a", "stop"), _usage(9, 1), done=False)
    record.reads.append((200, 0, LAST))
    assert decode_outcome(record, OpenAIEngine()).status == "ok"


def test_a_last_event_without_its_blank_line_counts_if_it_is_whole() -> None:
    record = _record(_text("a", "stop"), done=False)
    record.reads.append((150, 0, chunk(b"data: " + json.dumps(_usage(9, 1)).encode()) + LAST))
    outcome = decode_outcome(record, OpenAIEngine())
    assert (outcome.status, outcome.output_tokens) == ("ok", 1)
    record.reads[-1] = (150, 0, chunk(b'data: {"choi') + LAST)
    assert decode_outcome(record, OpenAIEngine()).error_kind == "malformed"


@pytest.mark.parametrize("end", ["cut", "reset", "timeout_total", "cancelled"])
def test_what_came_before_a_failure_is_kept(end: str) -> None:
    outcome = _outcome(_text("a"), _text("b"), end=end, done=False)
    assert outcome.status != "ok"
    assert (outcome.t_first_token, outcome.t_last_token) == (100, 110)
    assert outcome.output_tokens is None, "without a final usage the number is not known, and events are not tokens"
    assert [c.n_tokens for c in outcome.chunks] == [None, None]


def test_usage_that_contradicts_the_stream() -> None:
    outcome = _outcome(_text("a", "stop"), _usage(9, 0))
    assert (outcome.status, outcome.error_kind, outcome.output_tokens) == ("error", "malformed", None)
    assert outcome.t_first_token == 100


def test_an_error_inside_a_stream_keeps_its_message() -> None:
    outcome = _outcome(_text("a"), {"error": {"message": "CUDA out of\nmemory", "code": 500}})
    assert (outcome.status, outcome.error_kind, outcome.error) == ("error", "stream_error", "CUDA out of memory")


def test_an_adapter_that_fails_costs_one_row() -> None:
    class Broken(OpenAIEngine):
        def decode(self, event: bytes) -> Delta:
            raise RuntimeError("a fault")

    outcome = decode_outcome(_record(_text("a", "stop")), Broken())
    assert (outcome.status, outcome.error) == ("error", "the openai adapter could not read an event: RuntimeError")


@pytest.mark.parametrize("before", [0, EXCERPT - 40, *range(EXCERPT - 24, EXCERPT - 5), EXCERPT])
def test_a_key_that_a_server_quotes_is_struck_out_even_where_the_excerpt_cuts_it(before: int) -> None:
    key = "sk-4711-0815-very-secret"
    record = _record({"error": {"message": "x" * before + key}}, done=False)
    error = decode_outcome(record, OpenAIEngine(), secrets=("", key)).error
    assert error is not None
    assert key[:6] not in error
    assert error.startswith("x" * min(before, EXCERPT))
