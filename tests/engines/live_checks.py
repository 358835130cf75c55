"""What every engine must do over HTTP, asked of a running one. The test file of each engine calls these."""

from __future__ import annotations

from collections.abc import Sequence

from harness.engines.protocol import Delta, GenerationRequest, Usage
from tests.engines.conftest import KV_TOKENS, MAX_MODEL_LEN, Live

PROMPT = tuple(60 + (index * 37) % 190 for index in range(100))  # ids that every vocabulary here has


def prompt(first: int) -> tuple[int, ...]:
    """100 ids, the first of which decides: prompts with different ones share no prefix."""
    return (first, *PROMPT[1:])


def final_usage(deltas: Sequence[Delta]) -> Usage:
    return [delta.usage for delta in deltas if delta.usage is not None][-1]


def check_described(live: Live, *, version: str, block_size: int) -> None:
    info = live.engine.describe(live.endpoint, log=live.log)
    assert info.version == version
    assert info.block_size == block_size
    assert info.kv_tokens == KV_TOKENS
    assert info.max_model_len == MAX_MODEL_LEN
    assert info.prefix_caching is True
    assert info.scheduler == "fcfs"
    assert info.async_loop is False
    assert info.max_num_seqs
    assert info.max_batched_tokens
    assert info.resolved
    assert info.fingerprint
    assert info.fingerprint == live.engine.describe(live.endpoint).fingerprint


def check_exact_length_ids_and_usage(live: Live) -> None:
    """ignore_eos gives exactly max_tokens; ids, usage and the events agree."""
    request = GenerationRequest("exact", max_tokens=9, prompt_ids=prompt(40), want_token_ids=True)
    status, deltas = live.send(request)
    assert status == 200
    assert deltas[-1].kind == "done"
    assert sum(delta.n_tokens or 0 for delta in deltas) == 9
    usage = final_usage(deltas)
    assert (usage.prompt_tokens, usage.output_tokens) == (100, 9)
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]
    ids = [token for delta in deltas for token in delta.token_ids or ()]
    assert len(ids) == 9
    _, again = live.send(request)
    assert [token for delta in again for token in delta.token_ids or ()] == ids  # greedy, the cache warm or not


def check_running_usage(live: Live) -> None:
    """With continuous usage each event says how many tokens have come so far."""
    request = GenerationRequest(
        "running", max_tokens=6, prompt_ids=prompt(41), want_token_ids=True, want_continuous_usage=True
    )
    _, deltas = live.send(request)
    so_far = 0
    for delta in deltas:
        if delta.token_ids:
            so_far += len(delta.token_ids)
            assert delta.usage is not None
            assert delta.usage.output_tokens == so_far
    assert so_far == 6


def check_cached_tokens_and_reset(live: Live, *, expected_hit: int) -> None:
    """A prompt sent again is found in the cache; after a proven reset it is not."""
    request = GenerationRequest("twice", max_tokens=2, prompt_ids=prompt(42))
    assert final_usage(live.send(request)[1]).cached_tokens == 0
    assert final_usage(live.send(request)[1]).cached_tokens == expected_hit
    proof = live.engine.reset_cache(live.endpoint, "flushed")
    assert proof.proven, proof.evidence
    assert final_usage(live.send(request)[1]).cached_tokens == 0


def check_salt_keeps_caches_apart(live: Live, *, expected_hit: int) -> None:
    def cached(salt: str) -> int | None:
        request = GenerationRequest("salt", max_tokens=1, prompt_ids=prompt(43), salt=salt)
        return final_usage(live.send(request)[1]).cached_tokens

    assert [cached("a"), cached("b"), cached("a")] == [0, 0, expected_hit]


def check_ready_and_describe_generate_nothing(live: Live, *, tokens: str) -> None:
    """Neither the ready path nor describing moves the counter of output tokens."""
    import httpx

    before = live.metric(tokens)
    for _ in range(3):
        assert httpx.get(live.endpoint.base_url + live.spec.ready_path, trust_env=False).status_code == 200
    live.engine.describe(live.endpoint)
    assert live.metric(tokens) == before


def check_counters_equal_what_was_billed(live: Live, *, prompts: str, outputs: str) -> None:
    before = live.metric(prompts), live.metric(outputs)
    request = GenerationRequest("billed", max_tokens=5, prompt_ids=prompt(44))
    usages = [final_usage(live.send(request)[1]) for _ in range(3)]
    after = live.metric(prompts), live.metric(outputs)
    assert after[0] - before[0] == sum(usage.prompt_tokens or 0 for usage in usages) == 300
    assert after[1] - before[1] == sum(usage.output_tokens or 0 for usage in usages) == 15
