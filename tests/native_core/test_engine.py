"""The step loop on a virtual clock: right answers whatever runs beside a request, limits, aborts, figures."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from native_core import events
from native_core.engine import Engine, EngineError, EngineStats
from native_core.executor import SamplingParams, StepResult, Work
from native_core.request import Request, RequestError
from native_core.virtual import UnfilledBlockError, VirtualExecutor
from tests.native_core.engines import BLOCK, VOCABULARY, alone, config, drain, engine

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def make_requests(rng: random.Random, count: int) -> list[Request]:
    """Prompts that share prefixes of a few families, some with stop ids, priorities, salts, temperatures."""
    requests = []
    for index in range(count):
        length = rng.randrange(1, 60)
        shared = rng.randrange(length + 1)
        requests.append(
            Request(
                f"{index:03d}",
                [rng.randrange(2)] + [7] * shared + [rng.randrange(3) for _ in range(length - shared)],
                rng.randrange(1, 40),
                SamplingParams(temperature=rng.choice([0.0, 0.0, 1.0]), seed=rng.randrange(3)),
                stop_token_ids=frozenset(rng.sample(range(VOCABULARY), rng.choice([0, 2]))),
                priority=rng.randrange(3),
                salt=rng.choice([None, None, "x"]),
            )
        )
    return requests


ENGINES: list[dict[str, Any]] = [
    {"max_num_seqs": 4, "max_batched_tokens": 32},
    {"max_num_seqs": 16, "max_batched_tokens": 9, "long_prefill_threshold": 5},
    {"policy": "priority", "max_num_seqs": 8, "max_batched_tokens": 24, "reserve_full_prompt": False},
    {"profile": "vllm-0.21.0", "max_batched_tokens": 16},
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("options", ENGINES, ids=["plain", "small chunks", "priority", "0.21"])
def test_answers_are_those_of_a_request_alone(options: dict[str, Any], caching: bool, asynchronous: bool) -> None:
    """Through chunks, hits, evictions and preemptions: any block read wrongly would change a token."""
    rng = random.Random(5)
    running = engine(30, prefix_caching=caching, async_scheduling=asynchronous, **options)
    requests = make_requests(rng, 40)
    for request in requests:
        running.add(request)
    drain(running)
    for request in requests:
        assert request.output_ids == alone(request), request.request_id
    stats = running.stats()
    assert stats.preemptions > 0
    assert (stats.prefix_hit_tokens > 0) == caching
    assert stats.blocks_used == 0


def test_a_block_that_a_withdrawn_request_did_not_fill_is_never_hit() -> None:
    """vLLM 0.32.0 leaves it findable; an engine that computes would answer from it. Both behaviours are pinned."""

    def run(*, forget_uncomputed: bool) -> list[int]:
        running = engine(
            9,
            policy="priority",
            max_batched_tokens=12,
            long_prefill_threshold=8,
            reserve_full_prompt=False,
            forget_uncomputed=forget_uncomputed,
        )
        low = Request("low", [5] * 30, 1, priority=9)
        running.add(low)
        running.step()
        running.add(Request("high", [9] * 4, 4, priority=0))
        drain(running)
        assert low.preemptions == 1
        return low.output_ids

    assert run(forget_uncomputed=True) == alone(Request("low", [5] * 30, 1))
    with pytest.raises(UnfilledBlockError):
        run(forget_uncomputed=False)


class EngineMachine(RuleBasedStateMachine):
    """Random use of the whole engine; every invariant after every call, right answers at the end."""

    @initialize(
        num_blocks=st.integers(12, 40),
        options=st.sampled_from(ENGINES),
        caching=st.booleans(),
        asynchronous=st.booleans(),
        max_waiting=st.sampled_from([None, 3]),
    )
    def start(
        self, num_blocks: int, options: dict[str, Any], caching: bool, asynchronous: bool, max_waiting: int | None
    ) -> None:
        self.engine = engine(
            num_blocks,
            prefix_caching=caching,
            async_scheduling=asynchronous,
            max_waiting=max_waiting,
            eos_token_ids=frozenset([3]),
            **options,
        )
        self.requests: list[Request] = []

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 30),
        priority=st.integers(0, 2),
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 3),
        salt=st.sampled_from([None, "x"]),
    )
    def add(self, prompt: list[int], max_tokens: int, **options: Any) -> None:
        request = Request(f"{len(self.requests):03d}", prompt, max_tokens, **options)
        full = self.engine.config.max_waiting is not None and len(self.engine.scheduler.waiting) >= 3
        tokens = len(prompt) + max_tokens - 1
        if tokens > (self.engine.config.num_blocks - 1) * BLOCK:
            code = "pool_too_small"
        elif options["min_tokens"] > max_tokens:
            code = "invalid_limit"
        elif full:
            code = "queue_full"
        else:
            self.engine.add(request)
            self.requests.append(request)
            return
        with pytest.raises(RequestError) as refused:
            self.engine.add(request)
        assert refused.value.code in (code, "invalid_limit")

    @rule(pick=st.integers(0, 50))
    def abort(self, pick: int) -> None:
        request_id = f"{pick:03d}"
        here = any(request.request_id == request_id and request.finish_reason is None for request in self.requests)
        assert self.engine.abort(request_id) == here

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            self.engine.scheduler.check()

    @rule()
    def reset(self) -> None:
        owned = self.engine.stats().blocks_used
        assert self.engine.reset_prefix_cache() == (not owned)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        drain(self.engine)
        for request in self.requests:
            answer = alone(request, eos_token_ids=frozenset([3]))
            if request.finish_reason == "abort":
                answer = answer[: request.num_output_tokens]
            assert request.output_ids == answer
        assert self.engine.stats().blocks_used == 0
        assert self.engine.reset_prefix_cache()
        assert len(self.engine.scheduler.blocks.prefix_ids) == 0, "identities outlive everything that could reach them"


EngineMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestEngine = EngineMachine.TestCase


def test_after_ten_thousand_random_aborts_nothing_is_left() -> None:
    rng = random.Random(11)
    for asynchronous in (False, True):
        running = engine(40, max_batched_tokens=24, async_scheduling=asynchronous, policy="priority")
        live: list[str] = []
        aborted = 0
        while aborted < 5000:
            for _ in range(rng.randrange(4)):
                name = f"{running.stats().finished['abort']}-{rng.random()}"
                running.add(Request(name, [rng.randrange(2)] * rng.randrange(1, 60), 30, priority=rng.randrange(3)))
                live.append(name)
            if rng.random() < 0.5:
                running.step()
            for _ in range(min(len(live), rng.randrange(4))):
                aborted += running.abort(live.pop(rng.randrange(len(live))))
            if aborted % 100 == 0:
                running.scheduler.check()
        for name in live:
            running.abort(name)
        running.scheduler.check()
        stats = running.stats()
        assert stats.finished["abort"] >= 5000
        assert (stats.blocks_used, stats.running, stats.waiting) == (0, 0, 0)
        drain(running)
        assert running.reset_prefix_cache()
        assert running.stats().blocks_free == running.stats().blocks_total


@pytest.mark.parametrize(
    ("prompt", "options", "code", "status"),
    [
        ([], {}, "empty_prompt", 400),
        ([1] * 200, {}, "prompt_too_long", 400),
        ([1] * 199, {}, "pool_too_small", 400),
        ([1] * 100, {"max_tokens": 18}, "pool_too_small", 400),
        ([1], {"max_tokens": 0}, "invalid_limit", 400),
        ([1], {"max_tokens": -1}, "invalid_limit", 400),
        ([1], {"min_tokens": -1}, "invalid_limit", 400),
        ([1], {"min_tokens": 6}, "invalid_limit", 400),
    ],
)
def test_requests_that_can_never_be_served_are_refused(
    prompt: list[int], options: dict[str, Any], code: str, status: int
) -> None:
    running = engine(30, max_model_len=200)  # the pool holds 116 tokens
    with pytest.raises(RequestError) as refused:
        running.add(Request("a", prompt, **{"max_tokens": 5, **options}))
    assert (refused.value.code, refused.value.http_status) == (code, status)
    assert not running.has_work


@pytest.mark.parametrize("prompt", [[-1], [2**31], [1.5], ["a"]])
def test_token_ids_must_be_ids(prompt: list[Any]) -> None:
    with pytest.raises(RequestError) as refused:
        Request("a", prompt, 5)
    assert refused.value.code == "bad_token_id"


def test_the_longest_request_that_fits_is_served() -> None:
    running = engine(30, max_model_len=200)
    request = Request("a", [1] * 100, 17)
    running.add(request)
    drain(running)
    assert request.output_ids == alone(request)


def test_a_full_queue_and_a_known_id_are_refused() -> None:
    running = engine(30, max_waiting=1)
    running.add(Request("a", [1], 5))
    with pytest.raises(RequestError) as refused:
        running.add(Request("b", [1], 5))
    assert (refused.value.code, refused.value.http_status) == ("queue_full", 503)
    running.step()
    running.add(Request("b", [1], 5))
    with pytest.raises(RequestError) as refused:
        running.add(Request("a", [1], 5))
    assert refused.value.code == "duplicate_request_id"


def test_min_tokens_bans_what_would_end_the_request() -> None:
    probe = alone(Request("a", [1, 2, 3], 10))
    stop = frozenset(probe[:3])
    running = engine()
    free = Request("free", [1, 2, 3], 10, stop_token_ids=stop)
    held = Request("held", [1, 2, 3], 10, stop_token_ids=stop, min_tokens=6)
    running.add(free)
    running.add(held)
    drain(running)
    assert free.output_ids == probe[:1]
    assert held.num_output_tokens >= 6
    assert not stop & set(held.output_ids[:6])


class FailingExecutor(VirtualExecutor):
    def execute(self, work: Sequence[Work]) -> StepResult:
        raise MemoryError("no room")


def test_after_a_failed_step_the_engine_does_not_answer_from_blocks_nobody_filled() -> None:
    running = Engine(config(), FailingExecutor())
    running.add(Request("a", [1] * 20, 5))
    with pytest.raises(MemoryError):
        running.step()
    with pytest.raises(EngineError, match="failed in an earlier step"):
        running.step()


class Fold:
    """The engine's totals, from its event log alone."""

    def __init__(self) -> None:
        self.log: list[events.Event] = []

    def totals(self, block_size: int) -> dict[str, Any]:
        def of(kind: type[events.Event]) -> list[Any]:
            return [event for event in self.log if type(event) is kind]

        prompts = {event.request_id: event.prompt_tokens for event in of(events.Arrive)}
        admits = of(events.Admit)
        first = [event for event in admits if not event.resumed]
        again = [event for event in admits if event.resumed]
        chunks = of(events.Chunk)
        reasons = Counter(event.reason for event in of(events.Finish))
        return {
            "steps": len({event.step for event in chunks}),
            "prompt_tokens": sum(prompts[event.request_id] for event in first),
            "prefill_computed_tokens": sum(event.count for event in chunks if not event.decode),
            "output_tokens": len(of(events.Token)),
            "prefix_query_tokens": sum(event.query_tokens for event in first),
            "prefix_hit_tokens": sum(event.hit_tokens for event in first),
            "preempted_query_tokens": sum(event.query_tokens for event in again),
            "preempted_hit_tokens": sum(event.hit_tokens for event in again),
            "preemptions": len(of(events.Preempt)),
            "evicted_tokens": sum(event.tokens for event in of(events.Evict)),
            "finished": {reason: reasons[reason] for reason in ("stop", "length", "abort")},
            "queue_seconds_sum": pytest.approx(sum(event.waited for event in first)),
            "queue_seconds_count": len(first),
        }


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("seed", range(4))
def test_the_totals_are_folds_over_the_event_log(seed: int, asynchronous: bool) -> None:
    rng = random.Random(seed)
    fold = Fold()
    running = Engine(
        config(30, max_batched_tokens=24, async_scheduling=asynchronous),
        VirtualExecutor(vocab_size=VOCABULARY),
        fold.log.append,
    )
    requests = make_requests(rng, 40)
    owned = 0
    while requests or running.has_work:
        if requests and rng.random() < 0.5:
            running.add(requests.pop())
        if rng.random() < 0.05 and running.scheduler.requests:
            running.abort(rng.choice(list(running.scheduler.requests)))
        running.step()
    stats = running.stats()
    totals = fold.totals(BLOCK)
    assert {name: getattr(stats, name) for name in totals} == totals
    assert stats.preemptions > 0
    assert stats.evicted_tokens > 0
    for event in fold.log:
        if isinstance(event, events.Alloc):
            owned += event.blocks + event.reused
        elif isinstance(event, events.Free):
            owned -= event.blocks
    assert owned == 0
    computed = {(event.step, event.request_id) for event in fold.log if isinstance(event, events.Chunk)}
    brought = {(event.step, event.request_id) for event in fold.log if isinstance(event, events.Token)}
    assert brought <= computed, "a token belongs to the step that computed it"
    times = [event.time for event in fold.log]
    assert times == sorted(times)
    steps = [event for event in fold.log if isinstance(event, events.Step)]
    assert all(event.used + event.evictable + event.free == stats.blocks_total for event in steps)
    assert sum(event.prefill_tokens for event in steps) <= stats.prefill_computed_tokens
    assert {events.as_record(event)["kind"] for event in fold.log} == {
        *("arrive", "admit", "alloc", "evict", "free", "chunk", "preempt", "step", "token", "finish")
    }


def test_the_log_is_silent_for_an_engine_that_nobody_listens_to_and_changes_nothing() -> None:
    def run(listen: bool) -> tuple[EngineStats, list[list[int]]]:
        log: list[events.Event] = []
        running = Engine(config(30), VirtualExecutor(vocab_size=VOCABULARY), log.append if listen else None)
        requests = make_requests(random.Random(2), 20)
        for request in requests:
            running.add(request)
        drain(running)
        assert bool(log) == listen
        return running.stats(), [request.output_ids for request in requests]

    assert run(True) == run(False)


def test_what_a_request_says_about_its_time_adds_up_on_the_virtual_clock() -> None:
    running = engine(30, max_num_seqs=1)
    first, second = Request("a", [1] * 8, 4), Request("b", [2] * 8, 4)
    running.add(first)
    running.add(second)
    drain(running)
    assert first.queue_seconds == 0.0
    assert first.prefill_seconds is not None
    assert first.decode_seconds is not None
    assert second.queue_seconds == pytest.approx(first.prefill_seconds + first.decode_seconds)
    stats = running.stats()
    assert stats.queue_seconds_sum == pytest.approx(second.queue_seconds)
    assert stats.queue_seconds_count == 2


def test_the_figures_of_the_last_step() -> None:
    running = engine(60)
    running.add(Request("a", [1] * 10, 4))
    running.step()
    running.add(Request("b", [2] * 6, 4))
    running.step()
    stats = running.stats()
    assert (stats.last_prefill_tokens, stats.last_decode_tokens, stats.last_batch) == (6, 1, 2)
    assert stats.last_context_tokens == 11 + 6
    assert stats.last_seconds > 0
    assert (stats.running, stats.waiting, stats.blocks_used) == (2, 0, 3 + 2)
    drain(running)
    assert running.step() == []
    assert running.stats().last_batch == 0


@given(PROMPTS, st.integers(1, 20), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_the_answer_does_not_depend_on_how_a_prompt_is_chunked(prompt: list[int], max_tokens: int, budget: int) -> None:
    running = engine(30, max_batched_tokens=budget)
    request = Request("a", prompt, max_tokens)
    running.add(request)
    drain(running)
    assert request.output_ids == alone(request)


def test_a_snapshot_does_not_change_afterwards() -> None:
    running = engine()
    running.add(Request("a", [1], 2))
    before = running.stats()
    copy = replace(before, finished=dict(before.finished))
    drain(running)
    assert asdict(before) == asdict(copy)
