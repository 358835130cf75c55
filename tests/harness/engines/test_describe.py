"""What adapters read from a running server: a real one on loopback that answers with given documents."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.engines.detect import detect_kind
from harness.engines.exposition_facts import gauge, info_labels
from harness.engines.facts import fingerprint, integer, negated, truth
from harness.engines.log_facts import log_facts
from harness.engines.openai import check_model
from harness.engines.process import free_port
from harness.engines.protocol import Endpoint
from harness.engines.registry import adapter
from harness.records.errors import InfrastructureError, UsageError

Answers = dict[str, Any]  # path (without query) → document, text, or (status, text)

CARD = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "someone", "max_model_len": 2048}]}
VLLM: Answers = {
    "/version": {"version": "0.32.0"},
    "/v1/models": CARD,
    "/metrics": (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="8224",'
        'num_gpu_blocks="257"} 1.0\n'
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        'vllm:kv_cache_usage_perc{engine="0"} 0.0\n'
    ),
    "/server_info": {
        "vllm_config": {
            "scheduler_config": {
                "policy": "fcfs",
                "async_scheduling": False,
                "max_num_seqs": 128,
                "max_num_batched_tokens": 2048,
            },
            "model_config": {"dtype": "torch.bfloat16", "hf_token": "hf-secret"},
            "instance_id": "changes at each start",
        }
    },
    "/reset_prefix_cache": {"success": True},
}
SGLANG: Answers = {
    "/v1/models": CARD,
    "/metrics": (
        'sglang:max_total_num_tokens{tp_rank="0"} 8192.0\nsglang:page_size{tp_rank="0"} 1.0\n'
        'sglang:context_len{tp_rank="0"} 2048.0\n'
    ),
    "/server_info": {
        "version": "0.5.23",
        "disable_radix_cache": False,
        "disable_overlap_schedule": True,
        "schedule_policy": "fcfs",
        "chunked_prefill_size": 4096,
        "page_size": 1,
        "api_key": "sk-secret",
        "launch_command": "--api-key sk-secret",
        "internal_states": [{"effective_max_running_requests_per_dp": 2048}],
    },
    "/flush_cache": "Cache flushed.\nPlease check backend logs for more details.",
}
NATIVE: Answers = {
    "/version": {"version": "0.1.0"},
    "/v1/models": CARD,
    "/metrics": "native:num_requests_running 0.0\n",
    "/server_info": {
        "block_size": 16,
        "kv_tokens": 4096,
        "max_model_len": 2048,
        "prefix_caching": True,
        "policy": "fcfs",
        "fingerprint": "native-1",
    },
    "/reset_prefix_cache": {"success": True},
}


@contextmanager
def serve(answers: Answers) -> Iterator[Endpoint]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.split("?")[0], (404, '{"detail":"Not Found"}'))
            status, body = answer if isinstance(answer, tuple) else (200, answer)
            payload = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_address[1]}", "m", api_key="sk-mine")
    finally:
        server.shutdown()
        server.server_close()


def test_vllm_as_it_says_itself() -> None:
    with serve(VLLM) as endpoint:
        info = adapter("vllm").describe(endpoint)
    assert (info.version, info.block_size, info.max_model_len, info.prefix_caching) == ("0.32.0", 32, 2048, True)
    assert info.kv_tokens == 256 * 32  # one of the 257 blocks is the null block
    assert (info.scheduler, info.async_loop, info.max_num_seqs, info.max_batched_tokens) == ("fcfs", False, 128, 2048)
    assert info.resolved["model_config.dtype"] == "torch.bfloat16"
    assert info.fingerprint is not None
    assert "hf-secret" not in info.model_dump_json()


def test_the_fingerprint_is_of_settings_not_of_a_start() -> None:
    def of(**changes: Any) -> str | None:
        config = {**VLLM["/server_info"]["vllm_config"], **changes}
        with serve({**VLLM, "/server_info": {"vllm_config": config}}) as endpoint:
            return adapter("vllm").describe(endpoint).fingerprint

    assert of() == of(instance_id="another")
    assert of() != of(scheduler_config={"policy": "priority"})


def test_vllm_without_dev_mode_says_less_and_invents_nothing() -> None:
    answers = {key: value for key, value in VLLM.items() if key not in ("/server_info", "/reset_prefix_cache")}
    with serve(answers) as endpoint:
        info = adapter("vllm").describe(endpoint)
        proof = adapter("vllm").reset_cache(endpoint, "flushed")
    assert (info.block_size, info.scheduler, info.max_num_seqs, info.async_loop) == (32, None, None, None)
    assert not proof.proven
    assert "VLLM_SERVER_DEV_MODE" in proof.evidence


def test_sglang_as_it_says_itself() -> None:
    with serve(SGLANG) as endpoint:
        info = adapter("sglang").describe(endpoint)
    assert (info.version, info.block_size, info.kv_tokens, info.max_model_len) == ("0.5.23", 1, 8192, 2048)
    assert (info.prefix_caching, info.async_loop, info.scheduler) == (True, False, "fcfs")
    assert (info.max_num_seqs, info.max_batched_tokens) == (2048, 4096)
    assert "sk-secret" not in info.model_dump_json()


def test_native_as_it_says_itself() -> None:
    with serve(NATIVE) as endpoint:
        info = adapter("native").describe(endpoint)
    assert (info.block_size, info.kv_tokens, info.prefix_caching, info.fingerprint) == (16, 4096, True, "native-1")


@pytest.mark.parametrize(
    ("kind", "answers", "proven"),
    [
        ("vllm", VLLM, True),
        ("vllm", {**VLLM, "/reset_prefix_cache": {"success": False}}, False),
        ("vllm", {**VLLM, "/metrics": "vllm:kv_cache_usage_perc 0.25\n"}, False),
        ("sglang", SGLANG, True),
        ("sglang", {**SGLANG, "/flush_cache": (400, "Flush cache failed.")}, False),
        ("native", NATIVE, True),
        ("native", {**NATIVE, "/reset_prefix_cache": (500, "oops")}, False),
        ("native", {**NATIVE, "/reset_prefix_cache": "[]"}, False),
        ("openai", {}, False),
    ],
)
def test_a_flush_counts_only_if_something_shows_it(kind: str, answers: Answers, proven: bool) -> None:
    with serve(answers) as endpoint:
        proof = adapter(kind).reset_cache(endpoint, "flushed")
    assert proof.proven is proven
    assert proof.evidence


@pytest.mark.parametrize("kind", ["native", "vllm", "sglang", "openai"])
def test_an_unreachable_server_is_one_line(kind: str) -> None:
    endpoint = Endpoint(f"http://127.0.0.1:{free_port()}", "m", api_key="sk-mine")
    with pytest.raises(InfrastructureError, match="does not answer") as caught:
        adapter(kind).describe(endpoint)
    assert "sk-mine" not in str(caught.value)


def test_a_refused_key_is_told_without_the_key() -> None:
    with serve(dict.fromkeys(VLLM, (401, "no"))) as endpoint, pytest.raises(InfrastructureError, match="401") as caught:
        adapter("vllm").describe(endpoint)
    assert "--api-key-env" in str(caught.value)
    assert "sk-mine" not in str(caught.value)


@pytest.mark.parametrize(("kind", "answers"), [("vllm", VLLM), ("sglang", SGLANG), ("native", NATIVE)])
def test_kinds_are_told_by_what_they_expose(kind: str, answers: Answers) -> None:
    with serve(answers) as endpoint:
        assert detect_kind(endpoint) == kind
    with serve({key: value for key, value in answers.items() if key in ("/v1/models", "/server_info")}) as endpoint:
        assert detect_kind(endpoint) in (kind, "openai")


def test_what_is_no_llm_server_is_refused() -> None:
    with serve({"/": "hello"}) as endpoint, pytest.raises(InfrastructureError, match="no LLM server"):
        detect_kind(endpoint)


def test_a_wrong_model_is_told_before_any_load() -> None:
    with serve(SGLANG) as endpoint:
        check_model(endpoint)
        with pytest.raises(UsageError, match="it serves m"):
            check_model(Endpoint(endpoint.base_url, "nosuch"))


def test_single_facts_of_an_exposition() -> None:
    text = 'a{x="1"} 2\na{x="2"} 5\nab{x="1"} 9\nb{l="q\\"uote"} 1\n'
    assert gauge(text, "a") == 5
    assert gauge(text, "a", x="1") == 2
    assert gauge(text, "missing") is None
    assert gauge(None, "a") is None
    assert gauge("a{ broken", "a") is None
    assert info_labels(text, "b") == {"l": 'q"uote'}


def test_typed_facts() -> None:
    assert [integer(value) for value in ("128", 46592.0, "None", None, True, "1.5")] == [128, 46592] + [None] * 4
    assert (truth("True"), truth("no"), negated("False"), negated(None)) == (True, None, True, None)
    assert fingerprint("k", "1", {}) is None
    assert fingerprint("k", "1", {"a": 1, "b": 2}) == fingerprint("k", "1", {"b": 2, "a": 1})


def test_facts_of_a_start_up_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(EngineCore pid=1) INFO [core.py:133] Initializing a V1 LLM engine with config: dtype=torch.bfloat16, x\n"
        "(EngineCore pid=1) INFO CPU KV cache size: 8,224 tokens, Maximum concurrency for 2,048 tokens per request: "
        "4.02x\n"
    )
    assert log_facts("vllm", log) == {"dtype": "bfloat16", "kv_cache_tokens": "8,224", "max_concurrency": "4.02"}
    assert log_facts("vllm", tmp_path / "absent") == {}
    assert log_facts("vllm", None) == {}
