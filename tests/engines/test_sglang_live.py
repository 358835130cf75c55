"""Real SGLang on a CPU, driven through its adapter."""

from __future__ import annotations

import pytest

from harness.engines.detect import detect_kind
from harness.engines.openai import check_model
from harness.engines.protocol import Endpoint, GenerationRequest
from harness.records.errors import UsageError
from tests.engines import live_checks
from tests.engines.conftest import Live

pytestmark = pytest.mark.engine
ALL_BUT_ONE = 99  # page size 1, and at least one token is always computed


def test_it_is_what_was_asked_for(sglang_server: Live) -> None:
    assert detect_kind(sglang_server.endpoint) == "sglang"
    version = (sglang_server.config.env or "").split("-")[1]
    live_checks.check_described(sglang_server, version=version, block_size=1)
    info = sglang_server.engine.describe(sglang_server.endpoint, log=sglang_server.log)
    assert info.resolved["device"] == "cpu"
    assert {"dtype", "kv_cache_tokens", "chunked_prefill_size", "context_len"} <= set(info.log_facts)


def test_exact_length_ids_and_usage(sglang_server: Live) -> None:
    live_checks.check_exact_length_ids_and_usage(sglang_server)


def test_running_usage(sglang_server: Live) -> None:
    live_checks.check_running_usage(sglang_server)


def test_all_but_one_token_are_found_again_until_a_flush(sglang_server: Live) -> None:
    live_checks.check_cached_tokens_and_reset(sglang_server, expected_hit=ALL_BUT_ONE)


def test_salt(sglang_server: Live) -> None:
    live_checks.check_salt_keeps_caches_apart(sglang_server, expected_hit=ALL_BUT_ONE)


def test_nothing_generates_behind_our_back(sglang_server: Live) -> None:
    live_checks.check_ready_and_describe_generate_nothing(sglang_server, tokens="sglang:generation_tokens_total")


def test_counters(sglang_server: Live) -> None:
    live_checks.check_counters_equal_what_was_billed(
        sglang_server, prompts="sglang:prompt_tokens_total", outputs="sglang:generation_tokens_total"
    )


def test_it_answers_for_any_model_so_we_ask_first(sglang_server: Live) -> None:
    status, deltas = sglang_server.send(GenerationRequest("any", max_tokens=1, prompt_ids=(5,)), model="nosuch")
    assert (status, deltas[-1].kind) == (200, "done")
    with pytest.raises(UsageError, match="serves no model 'nosuch'"):
        check_model(Endpoint(sglang_server.endpoint.base_url, "nosuch"))


def test_the_stand_in_was_placed_and_never_called(sglang_server: Live) -> None:
    """After everything above: SGLang runs PyTorch's attention, on processors with AMX too."""
    from harness.engines.interpreter import site_packages
    from harness.engines.kit import stand_in_source

    assert sglang_server.config.python is not None
    where = site_packages(sglang_server.config.python)
    assert where is not None
    assert (where / "sgl_kernel.py").read_bytes() == stand_in_source("sgl_kernel")
    info = sglang_server.engine.describe(sglang_server.endpoint)
    assert info.resolved["attention_backend"] == "torch_native"
    assert not sglang_server.process.calls_file.exists()
