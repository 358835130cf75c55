"""Real vLLM on a CPU, driven through its adapter."""

from __future__ import annotations

import pytest

from harness.engines.detect import detect_kind
from harness.engines.protocol import GenerationRequest
from tests.engines import live_checks
from tests.engines.conftest import BLOCK, Live

pytestmark = pytest.mark.engine
WHOLE_BLOCKS = 100 // BLOCK["vllm"] * BLOCK["vllm"]


def test_it_is_what_was_asked_for(vllm_server: Live) -> None:
    assert detect_kind(vllm_server.endpoint) == "vllm"
    version = (vllm_server.config.env or "").split("-")[1]
    live_checks.check_described(vllm_server, version=version, block_size=BLOCK["vllm"])
    info = vllm_server.engine.describe(vllm_server.endpoint, log=vllm_server.log)
    assert info.resolved["device_config.device"] == "cpu"
    assert {"dtype", "kv_cache_tokens", "max_concurrency", "enforce_eager"} <= set(info.log_facts)


def test_the_pools_size_is_without_the_null_block(vllm_server: Live) -> None:
    info = vllm_server.engine.describe(vllm_server.endpoint, log=vllm_server.log)
    assert info.kv_tokens is not None
    assert int(info.log_facts["kv_cache_tokens"].replace(",", "")) == info.kv_tokens + BLOCK["vllm"]


def test_exact_length_ids_and_usage(vllm_server: Live) -> None:
    live_checks.check_exact_length_ids_and_usage(vllm_server)


def test_running_usage(vllm_server: Live) -> None:
    live_checks.check_running_usage(vllm_server)


def test_whole_blocks_are_found_again_until_a_reset(vllm_server: Live) -> None:
    live_checks.check_cached_tokens_and_reset(vllm_server, expected_hit=WHOLE_BLOCKS)


def test_salt(vllm_server: Live) -> None:
    live_checks.check_salt_keeps_caches_apart(vllm_server, expected_hit=WHOLE_BLOCKS)


def test_nothing_generates_behind_our_back(vllm_server: Live) -> None:
    live_checks.check_ready_and_describe_generate_nothing(vllm_server, tokens="vllm:generation_tokens_total")


def test_counters(vllm_server: Live) -> None:
    live_checks.check_counters_equal_what_was_billed(
        vllm_server, prompts="vllm:prompt_tokens_total", outputs="vllm:generation_tokens_total"
    )


def test_its_own_queue_time_comes_with_each_request(vllm_server: Live) -> None:
    _, deltas = vllm_server.send(GenerationRequest("queue", max_tokens=2, prompt_ids=live_checks.prompt(45)))
    (queue_s,) = [delta.queue_s for delta in deltas if delta.queue_s is not None]
    assert 0 <= queue_s < 1


def test_a_wrong_model_is_refused(vllm_server: Live) -> None:
    status, _ = vllm_server.send(GenerationRequest("wrong", max_tokens=1, prompt_ids=(5,)), model="nosuch")
    assert status == 404
