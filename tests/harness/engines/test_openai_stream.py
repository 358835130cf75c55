"""What a stream event says, in the words of each engine, and what happens to events that say nothing."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.openai_stream import completion_body, decode_event, pack
from harness.engines.protocol import GenerationRequest, Usage
from harness.engines.registry import KINDS, adapter
from harness.records.errors import UsageError

# Shapes as the engines sent them (shortened): vLLM 0.32.0, SGLang 0.5.23.
VLLM_TOKEN = (
    b'{"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":" a","logprobs":null,'
    b'"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[102]}]}'
)
VLLM_LAST = (
    b'{"id":"cmpl-1","object":"text_completion","model":"m","choices":[],"usage":{"prompt_tokens":100,"total_tokens":'
    b'108,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":96}},"system_fingerprint":"vllm-0.32.0-efe43e'
    b'77","metrics":{"time_to_first_token_ms":4.9,"generation_time_ms":24.7,"queue_time_ms":0.25,"mean_itl_ms":3.5}}'
)
SGLANG_TOKEN = (
    b'{"id":"9e","object":"text_completion","model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason"'
    b':null,"matched_stop":null,"token_ids":[102],"prompt_token_ids":[3,4]}],"usage":null}'
)
SGLANG_LAST = (
    b'{"id":"9e","object":"text_completion","model":"m","choices":[],"usage":{"prompt_tokens":100,"total_tokens":108,'
    b'"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":99},"reasoning_tokens":0}}'
)


def test_a_token_with_its_id() -> None:
    delta = decode_event(VLLM_TOKEN)
    assert (delta.kind, delta.n_tokens, delta.token_ids, delta.text) == ("content", 1, (102,), " a")
    assert delta.engine_request_id == "cmpl-1"
    assert delta.usage is None


def test_half_a_character_is_a_token_all_the_same() -> None:
    delta = decode_event(SGLANG_TOKEN)
    assert (delta.kind, delta.n_tokens, delta.text) == ("content", 1, "")


def test_without_ids_an_event_without_text_claims_nothing() -> None:
    event = orjson.dumps({"id": "x", "choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    delta = decode_event(event)
    assert (delta.kind, delta.n_tokens, delta.finish_reason) == ("other", None, "length")


def test_final_usage_and_the_engines_own_queue_time() -> None:
    delta = decode_event(VLLM_LAST)
    assert delta.kind == "usage"
    assert delta.usage == Usage(prompt_tokens=100, output_tokens=8, cached_tokens=96, reasoning_tokens=None)
    assert delta.queue_s == pytest.approx(0.25e-3)
    assert decode_event(SGLANG_LAST).usage == Usage(100, 8, 99, 0)
    assert decode_event(SGLANG_LAST).queue_s is None


def test_cached_tokens_that_are_not_told_are_unknown_not_zero() -> None:
    event = orjson.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})
    assert decode_event(event).usage == Usage(5, 1, None, None)


def test_a_lie_is_passed_on_for_the_reader_to_see() -> None:
    event = orjson.dumps({"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": True}})
    assert decode_event(event).usage == Usage(-5, None, None, None)


def test_native_timings_are_seconds() -> None:
    event = orjson.dumps({"choices": [], "usage": {}, "metrics": {"queue_time_s": 0.5, "preemptions": 2}})
    delta = decode_event(event)
    assert (delta.queue_s, delta.preemptions) == (0.5, 2)


@pytest.mark.parametrize(
    ("delta", "kind"),
    [
        ({"role": "assistant", "content": ""}, "role"),
        ({"role": "assistant", "content": None}, "role"),
        ({"content": "hi"}, "content"),
        ({"role": "assistant", "content": "hi"}, "content"),
        ({"reasoning": "hm"}, "reasoning"),
        ({"reasoning_content": "hm", "content": ""}, "reasoning"),
        ({"tool_calls": [{"index": 0}]}, "tool"),
        ({}, "other"),
    ],
)
def test_kinds_of_a_chat_delta(delta: dict[str, object], kind: str) -> None:
    assert decode_event(orjson.dumps({"choices": [{"index": 0, "delta": delta}]})).kind == kind


@pytest.mark.parametrize(
    "event",
    [
        b'{"error":{"message":"boom","type":"InternalServerError","code":500}}',
        b'{"error":"boom"}',
        b'{"object":"error","message":"boom","code":500}',
    ],
)
def test_an_error_inside_a_stream_is_an_error(event: bytes) -> None:
    delta = decode_event(event)
    assert (delta.kind, delta.error) == ("error", "boom")


def test_done() -> None:
    assert decode_event(b" [DONE] ").kind == "done"


@given(st.binary(max_size=200))
def test_no_bytes_raise(event: bytes) -> None:
    assert decode_event(event).kind in ("content", "reasoning", "tool", "role", "usage", "error", "done", "other")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "text", "usage", "token_ids", "error", "metrics", "prompt_tokens_details"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_json_raises(document: object) -> None:
    delta = decode_event(json.dumps(document).encode())
    if delta.kind == "error":
        assert delta.error


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_asks_for_what_it_wants(kind: str) -> None:
    request = GenerationRequest("r", max_tokens=7, prompt_ids=(1, 2, 3), want_token_ids=True, salt="s", priority=2)
    body = orjson.loads(adapter(kind).encode(request, "m").body)
    assert (body["model"], body["prompt"], body["max_tokens"], body["stream"]) == ("m", [1, 2, 3], 7, True)
    assert body["stream_options"] == {"include_usage": True}
    assert body["temperature"] == 0.0
    assert body["ignore_eos"] is True
    if kind != "openai":
        assert (body["return_token_ids"], body["cache_salt"], body["priority"]) == (True, "s", 2)


def test_running_usage_costs_bytes_and_is_only_sent_on_request() -> None:
    request = GenerationRequest("r", max_tokens=1, prompt_text="hi", want_continuous_usage=True)
    assert completion_body(request, "m")["stream_options"]["continuous_usage_stats"] is True


def test_sampling_given_is_not_mixed_with_greedy() -> None:
    request = GenerationRequest("r", max_tokens=1, prompt_text="hi", sampling={"top_p": 0.9, "seed": 1})
    body = completion_body(request, "m")
    assert (body["top_p"], body["seed"], "temperature" in body) == (0.9, 1, False)


@pytest.mark.parametrize("prompts", [{}, {"prompt_ids": (1,), "prompt_text": "x"}])
def test_exactly_one_prompt(prompts: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="exactly one"):
        completion_body(GenerationRequest("r", max_tokens=1, **prompts), "m")  # type: ignore[arg-type]


def test_no_key_in_encoded_bytes() -> None:
    encoded = pack("/v1/completions", {"model": "m"})
    assert "authorization" not in {name.lower() for name in encoded.headers}
