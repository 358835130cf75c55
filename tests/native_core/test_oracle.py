"""The oracle: exact where it says so, an interval that holds where it does not, and a reason for either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.manifest import EngineInfo
from native_core.engine_config import EngineConfig
from native_core.oracle.expect import Observed, expect, replay_observed
from native_core.oracle.load import WorkloadLike
from native_core.oracle.queue_bounds import least_times, lindley
from native_core.oracle.sharing import MOST_REQUESTS, Contents, bounds, predecessors
from native_core.oracle.simulate import Outcome, Schedule, simulate
from native_core.virtual import StepTime
from workloads.model import AnswerOf, Load, Request, Workload

BLOCK = 4


def workload(requests: Sequence[Request], segments: dict[str, tuple[int, ...]], load: Load | None = None) -> Workload:
    return Workload("w", "test", 0, {}, load or Load("closed", {"in_flight": 1}), segments, tuple(requests))


def info(**changes: Any) -> EngineInfo:
    known = {"kind": "vllm", "name": "v", "version": "0.32.0", "block_size": BLOCK, "kv_tokens": 4000}
    return EngineInfo(**{**known, "max_num_seqs": 8, "max_batched_tokens": 64, "prefix_caching": True, **changes})


def row(name: str, *parts: str | AnswerOf, tokens: int = 3, **more: Any) -> Request:
    return Request(name, more.pop("session", name), 0, tuple(parts), tokens, **more)


HEAD = {"head": tuple(range(10, 22)), "a": (1, 2, 3, 4, 5), "b": (6, 7, 8, 9, 6), "c": (4, 4, 4)}


@st.composite
def loads(draw: st.DrawFn, *, mode: str | None = None) -> Workload:
    """Prompts from few segments, so that they share; some wait for earlier ones, some go on from their answers."""
    segments = {f"s{i}": tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=9))) for i in range(4)}
    kind = mode or draw(st.sampled_from(["closed", "sessions", "poisson"]))
    rows: list[Request] = []
    for index in range(draw(st.integers(1, 9))):
        parts: list[str | AnswerOf] = list(draw(st.lists(st.sampled_from(sorted(segments)), min_size=1, max_size=4)))
        after: tuple[str, ...] = ()
        session = f"r{index}"
        if rows and draw(st.integers(0, 2)) == 0:
            leader = draw(st.sampled_from(rows))
            after, session = (leader.request_id,), leader.session_id
            if draw(st.integers(0, 1)):
                parts = [*leader.prompt, AnswerOf(leader.request_id), *parts[:1]]
        arrival = None if kind in ("closed", "sessions") else 0.01 * index * draw(st.integers(0, 4))
        tokens = draw(st.integers(1, 9))
        rows.append(row(f"r{index}", *parts, tokens=tokens, session=session, after=after, arrival_s=arrival))
    limit = {} if kind == "poisson" else {"in_flight": draw(st.integers(1, 4))}
    return workload(rows, segments, Load(kind, {"rate": 1.0, **limit} if kind == "poisson" else limit))


def config(usable: int = 2000, **more: Any) -> EngineConfig:
    known = {"block_size": BLOCK, "max_num_seqs": 4, "max_batched_tokens": 16, "forget_uncomputed": False}
    return EngineConfig(num_blocks=usable + 1, **{**known, **more})


def known_order(load: Workload, outcome: Outcome) -> Contents:
    return Contents.of(load, outcome.prompts, outcome.answers)


def shared_in_turn(outcome: Outcome, load: Workload) -> list[int]:
    """Tokens that hit if nothing is evicted and requests go one at a time, by comparing token by token."""
    places = {request.request_id: at for at, request in enumerate(load.requests)}
    cached = [0] * len(load.requests)
    left: list[tuple[int, ...]] = []
    for name in outcome.finished:
        prompt = outcome.prompts[places[name]]
        for earlier in left:
            same = 0
            while same < min(len(prompt) - 1, len(earlier)) and prompt[same] == earlier[same]:
                same += 1
            cached[places[name]] = max(cached[places[name]], same // BLOCK * BLOCK)
        left.append(prompt + outcome.answers[name][:-1])
    return cached


@settings(max_examples=40, deadline=None)
@given(loads(), st.sampled_from([False, True]), st.sampled_from([0, 5]))
def test_contents_bound_what_any_schedule_hits(load: Workload, asynchronous: bool, threshold: int) -> None:
    for schedule in (Schedule(), Schedule(StepTime(fixed=0.001), 0.05, seed=1)):
        engine = config(async_scheduling=asynchronous, long_prefill_threshold=threshold)
        outcome = simulate(load, engine, schedule)
        limits = bounds(known_order(load, outcome), predecessors(load, outcome.finished), BLOCK)
        assert sum(outcome.cached) <= limits.at_most <= sum(limits.high)
        for low, cached, high in zip(limits.low, outcome.cached, limits.high, strict=True):
            assert low <= cached <= high
        assert outcome.evicted_tokens == 0
        assert limits.footprint <= 2000


@settings(max_examples=40, deadline=None)
@given(loads(), st.integers(16, 24))
def test_a_small_pool_never_hits_more_than_contents_allow(load: Workload, usable: int) -> None:
    outcome = simulate(load, config(usable, max_model_len=usable * BLOCK), Schedule())
    limits = bounds(known_order(load, outcome), None, BLOCK)
    assert all(cached <= high for cached, high in zip(outcome.cached, limits.high, strict=True))


@settings(max_examples=15, deadline=None)
@given(loads(mode="closed"))
def test_one_at_a_time_hits_the_longest_earlier_prefix(load: Workload) -> None:
    load = replace(load, load=Load("closed", {"in_flight": 1}))
    outcome = simulate(load, config())
    prediction = expect(load, info())
    assert prediction.exact
    assert prediction.total is not None
    expected = sum(shared_in_turn(outcome, load))
    assert (prediction.total.cached.low, prediction.total.cached.high) == (expected, expected)


@settings(max_examples=15, deadline=None)
@given(loads(), st.sampled_from([96, 4000]))
def test_ceiling_less_losses_is_what_is_cached(load: Workload, kv_tokens: int) -> None:
    prediction = expect(load, info(kv_tokens=kv_tokens))
    if prediction.refused:
        assert "would refuse" in prediction.refused
        return
    assert prediction.total is not None
    fixed = sum(loss.tokens.low for loss in prediction.losses if loss.cause in ("last-token rule", "page rounding"))
    moving = [loss.tokens for loss in prediction.losses if loss.cause in ("order", "capacity")]
    cached = prediction.total.cached
    left = prediction.ceiling - fixed
    assert left - sum(loss.high for loss in moving) <= cached.low
    assert cached.high <= left - sum(loss.low for loss in moving)
    assert sum(part.cached.low for part in prediction.classes) <= cached.low
    assert prediction.at_least <= cached.low <= cached.high <= prediction.at_most
    if prediction.exact:
        assert left - sum(loss.low for loss in moving) == cached.low == cached.high


@settings(max_examples=40, deadline=None)
@given(loads(mode="poisson"), st.sampled_from([8, 16, 64]))
def test_no_request_is_faster_than_the_queue_bound(load: Workload, budget: int) -> None:
    rows = sorted((replace(request, after=()) for request in load.requests), key=lambda request: request.arrival_s or 0)
    rows = [request for request in rows if all(isinstance(part, str) for part in request.prompt)]
    if not rows:
        return
    load = replace(load, requests=tuple(rows))
    step = StepTime(fixed=0.02, per_prefill_token=0.003)
    outcome = simulate(load, config(max_batched_tokens=budget), Schedule(step))
    high = bounds(known_order(load, outcome), None, BLOCK).high
    uncached = [len(prompt) - hit for prompt, hit in zip(outcome.prompts, high, strict=True)]
    least, _ = least_times([request.arrival_s or 0.0 for request in rows], uncached, step, budget)
    for bound, ttft, wait in zip(least, outcome.ttft_s, outcome.queue_s, strict=True):
        assert bound.ttft_s <= ttft + 1e-9
        assert bound.wait_s <= wait + 1e-9


def test_a_queue_bound_by_hand() -> None:
    """Three prompts of 11 tokens at once, 1 ms a token, a step of at most 10 tokens costs 10 ms more."""
    step = StepTime(fixed=0.010, per_prefill_token=0.001)
    found = lindley([0.0, 0.0, 0.0], [11, 11, 11], step, 10)
    service = 10 * 0.001 + 11 * 0.001  # S: the last token may be a chunk of its own
    assert found.max_ttft_s == pytest.approx(3 * service)
    assert found.mean_ttft_s == pytest.approx(2 * service)
    assert found.max_wait_s == pytest.approx(2 * service - 9 * 0.002)
    assert found.utilisation is None


def test_leaders_that_end_first_make_it_exact() -> None:
    rows = [row("plant", "head", "c"), *(row(f"f{i}", "head", "a", after=("plant",)) for i in range(6))]
    prediction = expect(workload(rows, HEAD, Load("closed", {"in_flight": 4})), info())
    assert not prediction.exact  # followers are equal, so one of them can spare another its last block
    rows = [row("plant", "head", "c"), *(row(f"f{i}", "head", name, after=("plant",)) for i, name in enumerate("ab"))]
    prediction = expect(workload(rows, HEAD, Load("closed", {"in_flight": 4})), info())
    assert prediction.exact
    assert prediction.total is not None
    assert prediction.total.cached.low == prediction.total.cached.high == 24
    assert "no order changes it" in prediction.why


def test_followers_that_may_overtake_are_an_interval_that_says_so() -> None:
    rows = [row(f"f{i}", "head", "a", arrival_s=0.02 * i) for i in range(6)]
    prediction = expect(workload(rows, HEAD, Load("poisson", {"rate": 50.0})), info(max_batched_tokens=8))
    assert not prediction.exact
    assert "who comes first is not known" in prediction.why
    assert prediction.total is not None
    assert prediction.at_least == 0 < prediction.total.cached.low <= prediction.total.cached.high <= 6 * 16
    assert prediction.queue is not None


def test_evictions_are_exact_one_at_a_time_and_an_interval_otherwise() -> None:
    rows = [row(f"{name}{turn}", name, "head", tokens=6) for turn in range(3) for name in "ab"]
    small = info(kv_tokens=28)
    one = expect(workload(rows, HEAD), small)
    assert one.exact
    assert one.total is not None
    assert one.total.cached.high < one.at_most
    capacity = next(loss for loss in one.losses if loss.cause == "capacity")
    assert capacity.tokens.low == capacity.tokens.high > 0
    several = expect(workload(rows, HEAD, Load("closed", {"in_flight": 2})), small)
    assert not several.exact
    assert several.at_least == 0


def test_answers_that_may_stop_are_not_exact() -> None:
    rows = [row("x", "head", "a"), row("y", "head", "b", ignore_eos=False)]
    prediction = expect(workload(rows, HEAD), info())
    assert not prediction.exact
    assert "may stop before" in prediction.why


def test_a_cache_of_unknown_size_is_not_exact_and_named() -> None:
    rows = [row("x", "head", "a"), row("y", "head", "b")]
    prediction = expect(workload(rows, HEAD), info(kv_tokens=None))
    assert not prediction.exact
    assert "a cache without limit" in prediction.assumed


def test_caching_off_is_zero_and_the_ceiling_lost_to_it() -> None:
    rows = [row("x", "head", "a"), row("y", "head", "b")]
    prediction = expect(workload(rows, HEAD), info(prefix_caching=False))
    assert prediction.exact
    assert prediction.total is not None
    assert prediction.total.cached.high == prediction.at_most == 0
    assert [(loss.cause, loss.tokens.low) for loss in prediction.losses] == [("caching is off", 12)]


def test_adapters_share_nothing() -> None:
    rows = [row("x", "head", "a", adapter="one"), row("y", "head", "a", adapter="two")]
    prediction = expect(workload(rows, HEAD), info())
    assert prediction.ceiling == prediction.at_most == 0


def test_pages_and_the_last_token_cost_what_they_must() -> None:
    """17 tokens twice: 17 shared, 1 for the last-token rule, 0 for pages of 4; of pages of 8 all in the third."""
    rows = [row("x", "head", "a"), row("y", "head", "a")]
    for block, expected in ((4, (17, 1, 0, 16)), (16, (17, 1, 0, 16)), (8, (17, 1, 0, 16)), (5, (17, 1, 1, 15))):
        found = expect(workload(rows, HEAD), info(block_size=block))
        assert found.total is not None
        last, pages = (loss.tokens.low for loss in found.losses[:2])
        assert (found.ceiling, last, pages, found.total.cached.low) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "sglang"}, "sglang server are not modelled"),
        ({"version": "0.29.0"}, "no scheduling rules are known for vllm-0.29.0"),
        ({"version": None}, "not modelled"),
        ({"block_size": None}, "block size"),
        ({"resolved": {"parallel_config.data_parallel_size": 2}}, "replicas"),
        ({"resolved": {"cache_config.sliding_window": "4096"}}, "sliding-window"),
        ({"resolved": {"speculative_config.method": "ngram"}}, "speculative"),
        ({"resolved": {"parallel_config.pipeline_parallel_size": "2"}}, "pipeline"),
        ({"resolved": {"scheduler_config.enable_chunked_prefill": False}}, "without chunks"),
        ({"max_model_len": 12}, "would refuse x: 20 tokens"),
        ({"kv_tokens": 12}, "would refuse x"),
    ],
)
def test_what_is_not_modelled_is_refused(changes: dict[str, Any], words: str) -> None:
    prediction = expect(workload([row("x", "head", "a")], HEAD), info(**changes))
    assert prediction.refused is not None
    assert words in prediction.refused
    assert prediction.total is None


def test_grammars_are_refused() -> None:
    prediction = expect(workload([row("x", "head", grammar="root ::= 'a'")], HEAD), info())
    assert "constrained decoding" in (prediction.refused or "")


def test_a_native_engine_follows_its_profile() -> None:
    found = expect(workload([row("x", "head")], HEAD), info(kind="native", resolved={"profile": "vllm-0.25.1"}))
    assert (found.profile, found.grade) == ("vllm-0.25.1", "read")


def test_an_observed_order_is_another_mode() -> None:
    rows = [row(f"f{i}", "head", name) for i, name in enumerate("abc")]
    load = workload(rows, HEAD, Load("closed", {"in_flight": 3}))
    assert not expect(load, info(max_batched_tokens=4)).exact
    in_turn = [Observed(f"f{i}", float(i), i + 0.5) for i in range(3)]
    found = replay_observed(load, info(max_batched_tokens=4), in_turn)
    assert (found.mode, found.exact) == ("observed order", True)
    assert found.total is not None
    assert found.total.cached.low == 24
    at_once = [Observed(f"f{i}", 0.1 * i, 9.0) for i in range(3)]
    assert not replay_observed(load, info(max_batched_tokens=4), at_once).exact
    assert replay_observed(load, info(), []).refused is not None


def test_sessions_one_at_a_time_are_in_turn() -> None:
    rows = [
        row("a0", "head", "a", session="A"),
        row("b0", "head", "b", session="B"),
        row("a1", "head", "a", AnswerOf("a0"), "c", session="A", after=("a0",)),
        row("b1", "head", "b", AnswerOf("b0"), "c", session="B", after=("b0",)),
    ]
    load = workload(rows, HEAD, Load("sessions", {"in_flight": 1}))
    outcome = simulate(load, config())
    assert outcome.finished == ["a0", "a1", "b0", "b1"]
    before = predecessors(load, outcome.finished)
    assert before is not None
    assert bounds(known_order(load, outcome), before, BLOCK).in_turn
    assert expect(load, info()).exact


def test_very_large_workloads_keep_only_what_holds_in_any_order() -> None:
    rows = [row(f"r{i}", "head", tokens=1) for i in range(MOST_REQUESTS + 1)]
    load: WorkloadLike = workload(rows, HEAD, Load("closed", {"in_flight": 1}))
    assert predecessors(load, []) is None
