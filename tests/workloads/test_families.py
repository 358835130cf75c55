"""Each family keeps what it promises: shared_tokens is exactly the longest prefix that was sent before."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads.sharing import WORDS, common, prompts_of, shared_with_earlier
from workloads.lengths import longest, prompt_lengths
from workloads.model import AnswerOf, Load, WorkloadError
from workloads.registry import FAMILIES, generate
from workloads.vocabulary import Vocabulary

SMALL = Vocabulary(size=64, ids=tuple(range(3, 64)))  # so small that any token not kept distinct collides at once

prefix_hits = st.fixed_dictionaries(
    {
        "full": st.integers(0, 5),
        "partial": st.integers(0, 6),
        "miss": st.integers(0, 6),
        "groups": st.integers(1, 4),
        "prefix_tokens": st.integers(2, 40),
        "partial_share": st.sampled_from([0.5, 0.75, 0.99, 1.0]),
        "suffix_tokens": st.integers(1, 5),
        "order": st.sampled_from(["interleaved", "blocked", "shuffled"]),
    }
)


@given(params=prefix_hits, seed=st.integers(0, 2**40), data=st.data())
@settings(max_examples=60, deadline=None)
def test_prefix_hit_shares_what_it_says_in_any_order_that_after_allows(
    params: dict[str, object], seed: int, data: st.DataObject
) -> None:
    workload = generate("prefix_hit", name="w", seed=seed, params=params, load=None, vocabulary=SMALL)
    plants = [r for r in workload.requests if r.cache_class == "none"]
    followers = [r for r in workload.requests if r.cache_class != "none"]
    order = plants + data.draw(st.permutations(followers))
    prompts = [workload.prompt_ids(request) for request in order]
    assert [request.shared_tokens for request in order] == shared_with_earlier(prompts)
    assert {len(prompt) for prompt in prompts} == {params["prefix_tokens"] + params["suffix_tokens"]}  # type: ignore[operator]


def test_prefix_hit_classes_differ_from_their_group_only_where_they_say() -> None:
    params = {"full": 2, "partial": 2, "miss": 2, "groups": 2, "prefix_tokens": 10, "suffix_tokens": 4}
    workload = generate("prefix_hit", name="w", seed=1, params=params, load=None, vocabulary=WORDS)
    ids = {request.request_id: workload.prompt_ids(request) for request in workload.requests}
    for request in workload.requests:
        plant = ids[request.after[0]] if request.after else ids[request.request_id]
        differs = [i for i in range(10) if ids[request.request_id][i] != plant[i]]
        assert differs == {"none": [], "full": [], "partial": [5], "miss": [0]}[request.cache_class]
        assert (ids[request.request_id][10:] == plant[10:]) == (request.cache_class in {"none", "full"})


def test_prefix_hit_orders() -> None:
    def classes(order: str) -> list[str]:
        params = {"full": 2, "partial": 2, "miss": 2, "groups": 1, "order": order}
        workload = generate("prefix_hit", name="w", seed=1, params=params, load=None, vocabulary=WORDS)
        return [request.cache_class for request in workload.requests]

    assert classes("interleaved") == ["none", "full", "partial", "miss", "full", "partial", "miss"]
    assert classes("blocked") == ["none", "full", "full", "partial", "partial", "miss", "miss"]
    assert sorted(classes("shuffled")) == sorted(classes("blocked"))


def test_every_prefix_hit_follower_waits_for_its_group_in_its_group_s_session() -> None:
    workload = generate("prefix_hit", name="w", seed=1, params={"groups": 3}, load=None, vocabulary=WORDS)
    by_id = {request.request_id: request for request in workload.requests}
    for request in workload.requests:
        if request.cache_class != "none":
            (plant,) = request.after
            assert by_id[plant].session_id == request.session_id
            assert common(workload.prompt_ids(request)[1:], workload.prompt_ids(by_id[plant])[1:]) > 0


def test_the_case_of_24_prompts_whose_first_token_differs() -> None:
    params = {"full": 0, "partial": 0, "miss": 23, "groups": 1, "prefix_tokens": 300, "suffix_tokens": 60}
    workload = generate("prefix_hit", name="w", seed=7, params=params, load=None, vocabulary=WORDS)
    prompts = prompts_of(workload)
    assert sum(prompt_lengths(workload)) == 24 * 360 == 8640
    assert max(shared_with_earlier(prompts)) == 0
    assert len({prompt[1:300] for prompt in prompts}) == 1  # and yet 299 of 300 are the same


@given(
    requests=st.integers(2, 40),
    every=st.integers(2, 10),
    long=st.sampled_from([50, [40, 60]]),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_long_prompts_come_at_their_interval_and_nothing_is_shared(
    requests: int, every: int, long: object, seed: int
) -> None:
    params = {
        "requests": max(requests, every),
        "long_every": every,
        "long_tokens": long,
        "short_tokens": [5, 9],
        "short_output_tokens": 4,
        "long_output_tokens": 2,
    }
    workload = generate("long_prompt", name="w", seed=seed, params=params, load=None, vocabulary=SMALL)
    assert max(shared_with_earlier(prompts_of(workload))) == 0
    for i, length in enumerate(prompt_lengths(workload)):
        is_long = (i + 1) % every == 0
        assert (40 <= length <= 60) if is_long else (5 <= length <= 9)
        assert workload.requests[i].max_tokens == (2 if is_long else 4)
        assert workload.requests[i].request_id.startswith("long" if is_long else "short")


@given(
    sessions=st.integers(1, 5),
    turns=st.integers(1, 4),
    system=st.integers(0, 20),
    user=st.sampled_from([1, 7, [1, 5]]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_scripted_turns_share_all_that_was_sent(
    sessions: int, turns: int, system: int, user: object, seed: int
) -> None:
    params = {"sessions": sessions, "turns": turns, "system_tokens": system, "user_tokens": user, "output_tokens": 3}
    workload = generate("multi_turn", name="w", seed=seed, params=params, load=None, vocabulary=SMALL)
    assert [r.shared_tokens for r in workload.requests] == shared_with_earlier(prompts_of(workload))


def test_real_turns_share_the_answer_too() -> None:
    params = {"sessions": 2, "turns": 3, "system_tokens": 8, "user_tokens": 5, "output_tokens": 4, "answers": "real"}
    workload = generate("multi_turn", name="w", seed=3, params=params, load=None, vocabulary=WORDS)
    answers = {r.request_id: tuple(range(100 * i, 100 * i + 4)) for i, r in enumerate(workload.requests)}
    sent: list[tuple[int, ...]] = []
    for request in workload.requests:
        prompt = workload.prompt_ids(request, answers)
        assert request.shared_tokens == max((common(prompt, earlier) for earlier in sent), default=0)
        sent.append(prompt + answers[request.request_id])
    last = workload.requests[-1]
    assert [part for part in last.prompt if isinstance(part, AnswerOf)] == [
        AnswerOf("session-0001.00"),
        AnswerOf("session-0001.01"),
    ]
    assert prompt_lengths(workload)[-1] == 8 + 3 * 5 + 2 * 4
    assert longest(workload) == 8 + 3 * 5 + 3 * 4


def test_turns_wait_for_the_answer_before_and_then_think() -> None:
    params = {"sessions": 2, "turns": 2, "think_s": 1.5}
    workload = generate("multi_turn", name="w", seed=3, params=params, load=None, vocabulary=WORDS)
    rows = {r.request_id: (r.turn, r.after, r.think_s) for r in workload.requests}
    assert rows == {
        "session-0000.00": (0, (), 0.0),
        "session-0001.00": (0, ("session-0000.00",), 0.0),  # waits for the system prompt to be planted
        "session-0000.01": (1, ("session-0000.00",), 1.5),
        "session-0001.01": (1, ("session-0001.00",), 1.5),
    }
    free = generate("multi_turn", name="w", seed=3, params=params | {"plant_first": False}, load=None, vocabulary=WORDS)
    assert [r.after for r in free.requests if r.turn == 0] == [(), ()]


@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_share_no_first_tokens_by_construction_and_differ(family: str) -> None:
    """A rerun with another seed must not hit what the first one left behind."""
    made = [generate(family, name="w", seed=s, params={}, load=None, vocabulary=WORDS) for s in (1, 2, 3)]
    for left, right in combinations(made, 2):
        shared = max(common(a, b) for a in prompts_of(left) for b in prompts_of(right))
        assert shared <= 1  # two tokens in a row would be chance of about 1 in 10^9 for each pair


def test_a_longer_suffix_does_not_move_the_prefix() -> None:
    short, long = (
        generate("prefix_hit", name="w", seed=4, params={"suffix_tokens": n}, load=None, vocabulary=WORDS)
        for n in (8, 64)
    )
    assert {k: v for k, v in short.segments.items() if "suffix" not in k} == {
        k: v for k, v in long.segments.items() if "suffix" not in k
    }


@pytest.mark.parametrize(
    ("family", "params", "load", "says"),
    [
        ("prefix_hits", {}, None, "unknown family 'prefix_hits'; did you mean 'prefix_hit'?"),
        ("prefix_hit", {"prefix": 3}, None, "unknown parameter 'prefix'"),
        ("prefix_hit", {"sufix_tokens": 3}, None, "did you mean 'suffix_tokens'?"),
        ("prefix_hit", {"full": True}, None, "full: "),
        ("prefix_hit", {"full": "8"}, None, "full: "),
        ("prefix_hit", {"groups": 0}, None, "groups: "),
        ("prefix_hit", {"prefix_tokens": 10, "partial_share": 0.01}, None, "at least 1"),
        ("prefix_hit", {"partial_share": 1.0, "suffix_tokens": 0}, None, "needs suffix_tokens >= 1"),
        ("prefix_hit", {"partial_share": 1.5}, None, "partial_share: "),
        ("prefix_hit", {"order": "random"}, None, "order: "),
        ("prefix_hit", {}, Load("sessions", {"in_flight": 2}), "no conversations"),
        ("prefix_hit", {"miss": 100}, None, "the vocabulary offers 61"),
        ("long_prompt", {"long_every": 1}, None, "long_every: "),
        ("long_prompt", {"requests": 3}, None, "holds no long prompt"),
        ("long_prompt", {"long_tokens": [9, 3]}, None, "long_tokens: a length is"),
        ("long_prompt", {"long_tokens": 0}, None, "long_tokens: a length is"),
        ("long_prompt", {"long_tokens": [1, 2, 3]}, None, "long_tokens: a length is"),
        ("multi_turn", {"answers": "fake"}, None, "answers: "),
        ("multi_turn", {"think_s": float("nan")}, None, "think_s: "),
        ("multi_turn", {}, Load("trace"), "comes with a workload file"),
        ("multi_turn", {}, Load("closed", {"in_flight": 2, "rate": 1}), "a closed load has no 'rate'"),
    ],
)
def test_what_makes_no_workload_is_one_line(
    family: str, params: dict[str, object], load: Load | None, says: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        generate(family, name="w", seed=1, params=params, load=load, vocabulary=SMALL)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_process_with_another_hash_seed_makes_the_same_workload(family: str) -> None:
    """Tools that seed with hash() gave each process other prompts."""
    script = (
        "import hashlib; from tests.workloads.sharing import WORDS; from workloads.registry import generate;"
        f"w = generate({family!r}, name='w', seed=5, params={{}}, load=None, vocabulary=WORDS);"
        "print(hashlib.sha256(repr(w).encode()).hexdigest())"
    )
    workload = generate(family, name="w", seed=5, params={}, load=None, vocabulary=WORDS)
    here = hashlib.sha256(repr(workload).encode()).hexdigest()
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "99"}
    )
    assert there.stdout.strip() == here
