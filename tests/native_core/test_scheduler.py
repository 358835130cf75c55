"""The scheduler's rules, each by its name. Block size 4; every test also checks all invariants after each step."""

from __future__ import annotations

import pytest

from native_core.profiles import PROFILES, ProfileError
from native_core.request import State
from tests.native_core.engines import BLOCK, Steps, config

PROMPT = list(range(100, 200))


def test_v6_the_last_token_of_a_prompt_is_always_computed() -> None:
    for length, hit in ((3 * BLOCK, 2 * BLOCK), (3 * BLOCK + 1, 3 * BLOCK)):
        run = Steps()
        run.until_done(run.add("first", PROMPT[: 3 * BLOCK + 1], max_tokens=1))
        again = run.add("again", PROMPT[:length])
        assert run.step() == {"again": length - hit}
        assert again.cached_tokens == hit


def test_v6_a_hit_ends_at_the_first_missing_block() -> None:
    run = Steps()
    run.until_done(run.add("first", PROMPT[:20], max_tokens=1))
    other = [*PROMPT[:8], 0, *PROMPT[9:20]]
    run.add("other", other)
    assert run.step() == {"other": 12}


def test_v7_a_running_request_does_not_look_again() -> None:
    """Its own first chunk is short; the rest, cached by somebody else meanwhile, is computed all the same."""
    run = Steps(60, long_prefill_threshold=6, max_batched_tokens=100)
    run.add("slow", PROMPT[:20])
    run.add("twin", PROMPT[:20])
    assert run.step() == {"slow": 6, "twin": 6}
    assert run.step() == {"slow": 6, "twin": 6}


def test_v8_the_second_request_of_a_step_hits_what_the_first_is_about_to_compute() -> None:
    run = Steps()
    run.add("first", PROMPT[:20])
    second = run.add("second", PROMPT[:20])
    assert run.step() == {"first": 20, "second": 4}
    assert second.cached_tokens == 16


def test_v9_decoded_blocks_are_cached_but_the_last_token_never_is() -> None:
    run = Steps()
    first = run.add("first", PROMPT[:8], max_tokens=9)
    run.until_done(first)
    assert len(run.scheduler.blocks.pool.named_blocks()) == (8 + 9 - 1) // BLOCK
    run.add("next turn", list(first.tokens) + PROMPT[20:30])
    assert run.step() == {"next turn": 8 + 9 + 10 - 16}


def test_v2_requests_share_only_within_their_salt() -> None:
    run = Steps()
    for name, salt in (("a", "x"), ("b", "y"), ("c", None), ("d", "x")):
        run.add(name, PROMPT[:9], salt=salt)
    assert run.step() == {"a": 9, "b": 9, "c": 9, "d": 1}


@pytest.mark.parametrize(("reserve", "long"), [(True, {}), (False, {"long": 7})])
def test_v16_a_prompt_is_admitted_only_if_all_of_it_fits_though_it_is_computed_in_chunks(
    reserve: bool, long: dict[str, int]
) -> None:
    run = Steps(12, max_batched_tokens=8, reserve_full_prompt=reserve)
    run.add("owner", PROMPT[:8], max_tokens=10)
    run.step()
    run.step()  # owns 3 of 11 blocks
    run.add("long", PROMPT[50:86], max_tokens=1)  # 9 blocks, the first chunk 2
    assert run.step() == {"owner": 1, **long}


def test_v16_hits_that_nobody_owns_use_up_free_blocks() -> None:
    """8 usable blocks, 4 of them cached: with 5 owned by another a prompt of 4 hits and 1 new block does not fit."""
    run = Steps(9)
    run.until_done(run.add("first", PROMPT[:17], max_tokens=1))
    run.add("owner", PROMPT[50:66], max_tokens=30)
    run.step()
    pool = run.scheduler.blocks.pool
    assert pool.used == 4
    again = run.add("again", PROMPT[:17])
    assert "again" not in run.step()
    run.scheduler.abort("owner", now=0.0)
    assert run.step() == {"again": 5}
    assert again.cached_tokens == 12  # one of the four went to the owner's first output


def test_v17_the_watermark_holds_only_while_something_runs() -> None:
    run = Steps(21, watermark=0.5)  # 10 of 20 usable blocks
    first = run.add("first", PROMPT[:60], max_tokens=2)
    assert run.step() == {"first": 60}  # 15 blocks
    run.add("second", PROMPT[90:91], max_tokens=1)
    assert run.step() == {"first": 1}
    assert first.finish_reason == "length"
    assert run.step() == {"second": 1}


def test_v19_a_step_gives_out_one_budget_and_a_prompt_is_chunked_to_it() -> None:
    run = Steps(max_batched_tokens=10)
    run.add("a", PROMPT[:7])
    run.add("b", PROMPT[50:65])
    assert run.step() == {"a": 7, "b": 3}
    assert run.step() == {"a": 1, "b": 9}
    assert run.step() == {"a": 1, "b": 3}


def test_v19_the_cap_on_long_prefills_is_lifted_for_a_request_alone_since_0_31() -> None:
    for profile, count in (("vllm-0.32.0", 20), ("vllm-0.28.0", 6)):
        run = Steps(long_prefill_threshold=6, profile=profile)
        run.add("alone", PROMPT[:20])
        assert run.step() == {"alone": count}


def test_v20_running_requests_come_first_in_list_order() -> None:
    run = Steps(max_batched_tokens=4, max_num_seqs=2)
    run.add("a", PROMPT[:2])
    run.add("b", PROMPT[10:12])
    run.add("c", PROMPT[20:22])
    assert list(run.step()) == ["a", "b"]
    assert run.step() == {"a": 1, "b": 1}  # c has to wait for a seat, though there is budget


def crowd(run: Steps, **second: int) -> None:
    """Two requests that fill the pool of 7 blocks in 5 steps."""
    run.add("old", PROMPT[:12], max_tokens=30)
    run.add("new", PROMPT[50:62], max_tokens=30, **second)


def test_v21_fcfs_preempts_the_last_of_the_running_list_and_puts_it_first_in_line() -> None:
    run = Steps(8)
    crowd(run)
    run.step()
    run.add("latecomer", PROMPT[80:82])
    while not run.scheduler.counters.preemptions:
        batch = run.schedule()
        run.update(batch)
    assert [request.request_id for request in batch.preempted] == ["new"]
    assert list(batch.items) == ["old"]
    assert run.scheduler.waiting.head().request_id == "new"


def test_v21_a_request_can_be_its_own_victim() -> None:
    run = Steps(8)
    crowd(run)
    run.step()
    run.scheduler.running.reverse()  # "new" is asked first, "old" is last
    while not run.scheduler.counters.preemptions:
        batch = run.schedule()
        run.update(batch)
    assert [request.request_id for request in batch.preempted] == ["old"]


def test_v21_priority_preempts_the_least_urgent_even_if_it_came_first() -> None:
    run = Steps(8, policy="priority")
    run.add("old", PROMPT[:12], max_tokens=30, priority=5)
    run.add("new", PROMPT[50:62], max_tokens=30, priority=1)
    while not run.scheduler.counters.preemptions:
        batch = run.schedule()
        run.update(batch)
    assert [request.request_id for request in batch.preempted] == ["old"]


def test_v21_the_tokens_of_a_victim_scheduled_in_the_same_step_return_to_the_budget() -> None:
    run = Steps(9, policy="priority", max_batched_tokens=12, long_prefill_threshold=8, reserve_full_prompt=False)
    run.add("low", PROMPT[:30], priority=9)
    assert run.step() == {"low": 12}
    run.add("high", PROMPT[50:54], priority=0)
    assert run.step() == {"low": 8, "high": 4}  # 6 of 8 blocks
    batch = run.schedule()  # low takes the last two, then high needs one
    assert [request.request_id for request in batch.preempted] == ["low"]
    assert {name: item.count for name, item in batch.items.items()} == {"high": 1}
    assert batch.budget == 12 - 1


def test_v21_a_victim_earlier_in_the_list_makes_nobody_lose_its_turn() -> None:
    run = Steps(11, policy="priority", max_batched_tokens=13, long_prefill_threshold=8, reserve_full_prompt=False)
    run.add("low", PROMPT[:30], priority=9)
    assert run.step() == {"low": 13}
    run.add("high", PROMPT[50:54], priority=0)
    run.add("mid", PROMPT[60:61], priority=1)
    assert run.step() == {"low": 8, "high": 4, "mid": 1}
    batch = run.schedule()
    assert [request.request_id for request in batch.preempted] == ["low"]
    assert list(batch.items) == ["high", "mid"]


def test_v22_after_a_preemption_nobody_is_admitted_in_the_same_step() -> None:
    run = Steps(8)
    crowd(run)
    run.step()
    small = run.add("small", [1], max_tokens=1)
    while not run.scheduler.counters.preemptions:
        assert small.state is State.WAITING or small.finish_reason
        if small.finish_reason:
            small = run.add("small", [1], max_tokens=1)
        run.step()
    assert small.state is State.WAITING


def test_v22_a_head_that_does_not_fit_blocks_those_behind_it() -> None:
    run = Steps(8)
    run.add("owner", PROMPT[:16], max_tokens=10)
    run.step()
    run.add("head", PROMPT[50:66])
    run.add("tiny", [1])
    assert run.step() == {"owner": 1}


def test_v22_priority_then_arrival_then_id_order_the_queue() -> None:
    run = Steps(60, policy="priority")
    run.add("c", [1], priority=1, arrival=0.0)
    run.add("b", [2], priority=0, arrival=5.0)
    run.add("a2", [3], priority=0, arrival=4.0)
    run.add("a1", [4], priority=0, arrival=4.0)
    assert list(run.step()) == ["a1", "a2", "b", "c"]


def test_v23_a_resumed_request_computes_prompt_and_outputs_again_but_for_its_hits() -> None:
    run = Steps(8)
    crowd(run)
    while not run.scheduler.counters.preemptions:
        run.step()
    new = run.scheduler.requests["new"]
    first_life = len(new.tokens)
    assert new.num_output_tokens > 0
    run.scheduler.abort("old", now=0.0)
    hits = len(run.scheduler.blocks.look_up(new)) * BLOCK
    assert hits >= BLOCK
    assert run.step() == {"new": first_life - hits}
    assert new.cached_tokens == 0  # the first admission's, for ever


def test_v24_a_chunk_emits_no_token_until_everything_is_computed() -> None:
    run = Steps(max_batched_tokens=4)
    request = run.add("a", PROMPT[:10])
    for emitted in (0, 0, 1):
        run.step()
        assert request.num_output_tokens == emitted


def test_v25_async_the_step_after_the_surely_last_token_is_not_scheduled() -> None:
    run = Steps(async_scheduling=True)
    run.add("a", PROMPT[:4], max_tokens=2)
    first, second = run.schedule(), run.schedule()
    assert (len(first.items), len(second.items)) == (1, 1)
    run.update(first)
    assert not run.schedule().items
    outputs = run.update(second)
    assert [output.finish_reason for output in outputs] == ["length"]


def test_v25_async_the_token_of_a_step_that_was_in_flight_at_an_early_stop_is_dropped() -> None:
    run = Steps(async_scheduling=True)
    request = run.add("a", PROMPT[:4], max_tokens=9, stop_token_ids=frozenset([7]))
    first, second = run.schedule(), run.schedule()
    assert [output.finish_reason for output in run.update(first, token=7)] == ["stop"]
    assert run.update(second) == []
    assert request.output_ids == [7]
    assert run.scheduler.blocks.pool.used == 0


def test_v10_async_registers_no_block_that_ends_in_an_unknown_token() -> None:
    run = Steps(async_scheduling=True)
    run.add("a", PROMPT[:6], max_tokens=9)
    batches = [run.schedule(), run.schedule()]
    named = []
    for _ in range(4):
        run.update(batches.pop(0))
        named.append(len(run.scheduler.blocks.pool.named_blocks()))
        batches.append(run.schedule())
    # The 8th token is known after the second update; the step that computes it was scheduled before that.
    assert named == [1, 1, 2, 2]


def test_v26_a_token_that_ends_the_request_comes_before_the_limits() -> None:
    for token, reason in ((7, "stop"), (8, "length")):
        run = Steps(eos_token_ids=frozenset([7]))
        request = run.add("a", PROMPT[:4], max_tokens=1)
        run.step(token)
        assert request.finish_reason == reason


def test_v26_eos_is_a_token_like_others_under_ignore_eos_but_stop_ids_are_not() -> None:
    run = Steps(eos_token_ids=frozenset([7]))
    request = run.add("a", PROMPT[:4], max_tokens=9, ignore_eos=True, stop_token_ids=frozenset([5]))
    run.step(7)
    assert request.finish_reason is None
    run.step(5)
    assert request.finish_reason == "stop"


def test_v26_the_context_ends_a_request_before_its_max_tokens() -> None:
    run = Steps(max_model_len=12)
    request = run.add("a", PROMPT[:8], max_tokens=50)
    run.until_done(request)
    assert (request.finish_reason, request.num_output_tokens) == ("length", 4)


def test_hits_are_counted_once_since_0_27_and_at_each_try_before() -> None:
    for profile, queried in (("vllm-0.32.0", 16), ("vllm-0.24.0", 16 + 3 * 16)):
        run = Steps(8, profile=profile)
        run.add("owner", PROMPT[:16], max_tokens=30)
        run.step()
        run.add("head", PROMPT[50:66])
        for _ in range(3):
            run.step()
        assert run.scheduler.counters.prefix_query_tokens == queried


def test_look_ups_after_a_preemption_are_kept_apart() -> None:
    run = Steps(8)
    crowd(run)
    while not run.scheduler.counters.preemptions:
        run.step()
    run.scheduler.abort("old", now=0.0)
    run.step()
    counters = run.scheduler.counters
    assert counters.prefix_query_tokens == 24
    assert counters.preempted_query_tokens > 12
    assert counters.preempted_hit_tokens > 0


def test_every_listed_release_makes_a_scheduler_and_others_are_refused() -> None:
    for name in PROFILES:
        assert config(profile=name).profile == name
    for name in ("vllm-0.29.0", "vllm", "0.32.0", "sglang-0.5.23"):
        with pytest.raises(ProfileError, match="no scheduling rules are known"):
            config(profile=name)
    with pytest.raises(ProfileError, match="no watermark"):
        config(profile="vllm-0.21.0", watermark=0.1)
