"""The server over HTTP with the tiny model and real arithmetic: answers, usage, errors, and counters that agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.models.store import get_model
from native_core.tokenizer import Tokenizer
from tests.native_core.served import Under, serving

PROMPT = list(range(10, 50))  # two full blocks of 16 and a half


@pytest.fixture(scope="module")
def tiny() -> Path:
    return get_model("tiny").path


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Under]:
    with serving(tiny, "--served-model-name", "tiny", "--kv-tokens", "4096", "--max-model-len", "512") as under:
        yield under


def salted(name: str) -> dict[str, Any]:
    """A cache of the test's own, so that tests do not warm one another."""
    return {"cache_salt": name}


# Answers


def test_a_stream_has_one_event_per_token_and_ends_with_usage_and_timings(server: Under) -> None:
    events = server.events(
        prompt=PROMPT, max_tokens=5, ignore_eos=True, return_token_ids=True, stream_options={"include_usage": True}
    )
    *tokens, closing = events
    assert [len(event["choices"][0]["token_ids"]) for event in tokens] == [1] * 5
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 4 + ["length"]
    assert tokens[0]["choices"][0]["prompt_token_ids"] == PROMPT
    assert closing["choices"] == []
    assert closing["usage"]["prompt_tokens"] == 40
    assert closing["usage"]["completion_tokens"] == 5
    assert closing["usage"]["total_tokens"] == 45
    timings = closing["metrics"]
    assert timings["preemptions"] == 0
    assert all(timings[name] >= 0 for name in ("queue_time_s", "prefill_time_s", "decode_time_s"))
    assert len({event["id"] for event in events}) == 1
    assert {event["system_fingerprint"] for event in events} == {
        server.client.get("/server_info").json()["fingerprint"]
    }


def test_stream_and_document_say_the_same(server: Under) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    events = server.events(**body)
    document = server.complete(**body).json()
    choice = document["choices"][0]
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == choice["token_ids"]
    assert document["usage"]["completion_tokens"] == len(choice["token_ids"]) == 12


def test_usage_grows_with_each_event_on_request(server: Under) -> None:
    events = server.events(
        prompt=PROMPT,
        max_tokens=4,
        ignore_eos=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 4, 4]


def test_cached_tokens_are_whole_blocks_of_an_earlier_prompt(server: Under) -> None:
    first, second = (server.complete(prompt=PROMPT, max_tokens=2, **salted("cached")).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": 32}
    other = server.complete(prompt=PROMPT, max_tokens=2, **salted("cached too")).json()["usage"]
    assert other["prompt_tokens_details"] == {"cached_tokens": 0}


def test_text_and_its_ids_are_one_prompt(server: Under, tiny: Path) -> None:
    text = "Where is the library?"
    ids = Tokenizer(tiny).encode(text)
    by_text = server.complete(prompt=text, max_tokens=8, ignore_eos=True, return_token_ids=True).json()
    by_ids = server.complete(prompt=ids, max_tokens=8, ignore_eos=True, return_token_ids=True).json()
    assert by_text["choices"][0]["prompt_token_ids"] == ids
    assert by_text["choices"][0]["token_ids"] == by_ids["choices"][0]["token_ids"]


def test_a_batch_of_prompts_answers_each_and_bills_all(server: Under) -> None:
    alone = [
        server.complete(prompt=prompt, max_tokens=3, ignore_eos=True).json()["choices"][0]["text"]
        for prompt in (PROMPT, PROMPT[:7])
    ]
    batch = server.complete(prompt=[PROMPT, PROMPT[:7]], max_tokens=3, ignore_eos=True).json()
    assert [choice["text"] for choice in batch["choices"]] == alone
    assert [choice["index"] for choice in batch["choices"]] == [0, 1]
    assert batch["usage"]["prompt_tokens"] == 47
    assert batch["usage"]["completion_tokens"] == 6


def test_n_answers_bill_the_prompt_once_and_differ(server: Under) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "temperature": 1.0, "return_token_ids": True}
    before = server.metrics()
    document = server.complete(**body, n=3, seed=5).json()
    after = server.metrics()
    answers = [tuple(choice["token_ids"]) for choice in document["choices"]]
    assert len(set(answers)) == 3
    assert document["usage"]["prompt_tokens"] == 40
    assert document["usage"]["completion_tokens"] == 24
    assert after["native:prompt_tokens_total"] - before["native:prompt_tokens_total"] == 40
    again = server.complete(**body, n=3, seed=5).json()
    assert [tuple(choice["token_ids"]) for choice in again["choices"]] == answers
    alone = server.complete(**body, seed=6).json()
    assert tuple(alone["choices"][0]["token_ids"]) == answers[1]


def test_a_stop_string_across_token_borders_ends_the_answer_and_the_bill(server: Under) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
    events = server.events(**body)
    text = "".join(event["choices"][0]["text"] for event in events)
    assert len(text) > 12
    stop = text[6:10]  # the tiny model's tokens are bytes or short: four characters span several
    at = text.find(stop)
    before = server.metrics()
    document = server.complete(**body, stop=[stop]).json()
    after = server.metrics()
    choice = document["choices"][0]
    assert choice["text"] == text[:at]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop
    billed = document["usage"]["completion_tokens"]
    assert billed == len(choice["token_ids"]) < 40
    assert after["native:generation_tokens_total"] - before["native:generation_tokens_total"] == billed
    kept = server.complete(**body, stop=stop, include_stop_str_in_output=True).json()
    assert kept["choices"][0]["text"] == text[: at + len(stop)]
    streamed = server.events(**body, stop=[stop])
    assert "".join(event["choices"][0]["text"] for event in streamed) == text[:at]
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_token_ends_the_answer_and_is_named(server: Under) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    ids = server.complete(**body).json()["choices"][0]["token_ids"]
    stop = ids[4]
    first = ids.index(stop)
    choice = server.complete(**body, stop_token_ids=[stop]).json()["choices"][0]
    assert choice["token_ids"] == ids[: first + 1]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop


def test_min_tokens_puts_off_the_stop_token(server: Under) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    ids = server.complete(**body).json()["choices"][0]["token_ids"]
    later = server.complete(**body, stop_token_ids=[ids[0]], min_tokens=6).json()["choices"][0]
    assert len(later["token_ids"]) >= 6
    assert ids[0] not in later["token_ids"][:6]


def test_logprobs_of_completions(server: Under) -> None:
    choice = server.complete(prompt=PROMPT, max_tokens=3, ignore_eos=True, logprobs=2).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 3
    for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert chosen <= 0
        assert chosen == pytest.approx(max(top.values()))  # greedy takes the best


def test_chat_names_the_role_first_and_streams_content(server: Under) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "ignore_eos": True}
    document = server.chat(**body, logprobs=True, top_logprobs=1).json()
    message = document["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert len(document["choices"][0]["logprobs"]["content"]) == 6
    opening, *events = server.events("/v1/chat/completions", **body)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(events) == 6
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == message["content"]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    assert server.chat(**{**body, "messages": parts}).json()["choices"][0]["message"] == message


# Counters


def test_counters_are_what_clients_were_billed(server: Under) -> None:
    before = server.metrics()
    usages = [
        server.complete(prompt=PROMPT[:length], max_tokens=limit, ignore_eos=True, **salted("billed")).json()["usage"]
        for length, limit in ((40, 1), (40, 7), (33, 2), (5, 30))
    ]
    usages.append(server.events(prompt=PROMPT, max_tokens=9, stream_options={"include_usage": True})[-1]["usage"])
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("native:prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert grown("native:generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert grown("native:prefix_query_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert grown("native:prefix_hit_tokens_total") == cached > 0
    assert grown("native:prefill_computed_tokens_total") == grown("native:prompt_tokens_total") - cached
    ended = [name for name in after if name.startswith("native:requests_finished_total")]
    assert sum(after[name] - before.get(name, 0.0) for name in ended) == 5
    for name in ("ttft", "e2e", "queue", "prefill", "decode"):
        assert grown(f"native:{name}_seconds_count") == 5
    gaps = sum(usage["completion_tokens"] - 1 for usage in usages)
    assert grown("native:inter_token_seconds_count") == gaps
    computed = grown("native:step_prefill_tokens_sum") + grown("native:step_decode_tokens_sum")
    assert computed == grown("native:prefill_computed_tokens_total") + gaps


def test_gauges_add_up_and_configuration_is_told(server: Under) -> None:
    metrics = server.metrics()
    assert metrics["native:num_requests_running"] == metrics["native:num_requests_waiting"] == 0
    assert metrics["native:kv_used_tokens"] == 0
    assert metrics["native:kv_capacity_tokens"] == 4096
    shares = [metrics[f"native:kv_{part}_tokens"] for part in ("used", "evictable", "free")]
    assert sum(shares) == 4096
    info = next(name for name in metrics if name.startswith("native:config_info"))
    assert 'block_size="16"' in info
    assert 'kv_tokens="4096"' in info
    assert metrics["native:host_seconds_total"] > 0
    assert any(name.startswith("native:model_seconds_total{") and value > 0 for name, value in metrics.items())


def test_reset_empties_the_cache(server: Under) -> None:
    server.complete(prompt=PROMPT, max_tokens=2, **salted("reset"))
    assert server.metrics()["native:kv_evictable_tokens"] > 0
    assert server.client.post("/reset_prefix_cache").json() == {"success": True}
    server.wait_for("native:kv_evictable_tokens", 0)
    usage = server.complete(prompt=PROMPT, max_tokens=2, **salted("reset")).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


# Operation


def test_what_an_operator_asks(server: Under) -> None:
    client = server.client
    assert client.get("/health").status_code == client.get("/ping").status_code == 200
    card = client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny", 512)
    info = client.get("/server_info").json()
    assert info["version"] == client.get("/version").json()["version"]
    assert (info["kv_tokens"], info["block_size"], info["profile"]) == (4096, 16, "vllm-0.32.0")
    assert len(info["weights_sha256"]) == 64


def test_tokenize_and_back(server: Under, tiny: Path) -> None:
    text = "Größe 12 – 漢字"
    answer = server.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["tokens"] == Tokenizer(tiny).encode(text, add_special_tokens=False)
    assert server.client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}
    messages = [{"role": "user", "content": "Hello"}]
    rendered = server.client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    answered = server.chat(messages=messages, max_tokens=1, return_token_ids=True).json()
    assert rendered == answered["prompt_token_ids"]


# Errors


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"prompt": []}, 400, "empty_prompt"),
        ({"prompt": [[]]}, 400, "empty_prompt"),
        ({"prompt": [1, -1]}, 400, "invalid_token_id"),
        ({"prompt": [1, 1 << 20]}, 400, "invalid_token_id"),
        ({"prompt": [1, "a"]}, 400, "invalid_value"),
        ({}, 400, "missing_parameter"),
        ({"prompt": "a", "max_tokens": -5}, 400, "invalid_value"),
        ({"prompt": "a", "max_tokens": 0}, 400, "invalid_value"),
        ({"prompt": PROMPT, "max_tokens": 473}, 400, "context_length_exceeded"),
        ({"prompt": [5] * 600}, 400, "context_length_exceeded"),
        ({"prompt": "a", "model": "gpt-17"}, 404, "model_not_found"),
        ({"prompt": "a", "priority": 3}, 400, "invalid_value"),
        ({"prompt": "a", "n": 2}, 400, "invalid_value"),
        ({"prompt": "a", "stop": ""}, 400, "invalid_value"),
        ({"prompt": "a", "min_tokens": 5, "max_tokens": 4}, 400, "invalid_value"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "invalid_value"),
        ({"prompt": "a", "echo": True}, 400, "unsupported_parameter"),
    ],
)
def test_a_bad_request_gets_an_error_in_openai_s_shape_and_is_counted(
    server: Under, body: dict[str, Any], status: int, code: str
) -> None:
    name = f'native:request_rejections_total{{reason="{code}"}}'
    before = server.metrics().get(name, 0.0)
    response = server.complete(**body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert server.metrics()[name] - before == 1


def test_what_is_no_json_and_no_route(server: Under) -> None:
    client = server.client
    broken = client.post("/v1/completions", content=b'{"prompt": "a"', headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
    assert client.post("/v1/completions", content=b"[]").json()["error"]["code"] == "invalid_json"
    assert (client.get("/v1/nothing").status_code, client.get("/v1/completions").status_code) == (404, 405)
    assert client.get("/v1/nothing").json()["error"]["code"] == "unknown_route"


def test_a_body_beyond_all_measure_is_refused(server: Under) -> None:
    response = server.complete(prompt="x" * (33 << 20))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_the_longest_request_that_fits_the_context_is_answered(server: Under) -> None:
    usage = server.complete(prompt=PROMPT, max_tokens=472, ignore_eos=True).json()["usage"]
    assert usage["total_tokens"] == 512
