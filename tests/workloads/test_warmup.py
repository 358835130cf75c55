"""A warm-up must give a measured prompt nothing to hit, not even one token."""

from __future__ import annotations

import pytest

from tests.workloads.sharing import WORDS, prompts_of, shared_with_earlier
from workloads.lengths import prompt_lengths
from workloads.model import Load, WorkloadError
from workloads.registry import FAMILIES, generate
from workloads.vocabulary import Vocabulary
from workloads.warmup import warmup_workload


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vocabulary", [WORDS, Vocabulary(size=90, ids=tuple(range(90)))], ids=["large", "tiny"])
def test_no_warm_up_prompt_shares_a_token_with_anything(family: str, vocabulary: Vocabulary) -> None:
    measured = generate(family, name="m", seed=9, params={}, load=None, vocabulary=vocabulary)
    warmup = warmup_workload(measured, vocabulary, seed=9)
    assert shared_with_earlier(prompts_of(warmup)[:60]) == [0] * min(60, len(warmup.requests))
    first = {prompt[0] for prompt in prompts_of(measured)}
    firsts = [prompt[0] for prompt in prompts_of(warmup)]
    assert not first.intersection(firsts)
    assert len(set(firsts)) == len(firsts) == min(len(vocabulary.ids) - len(first), 4096)


def test_the_shape_is_that_of_the_measured_requests_within_limits() -> None:
    measured = generate("long_prompt", name="m", seed=1, params={"short_tokens": 40}, load=None, vocabulary=WORDS)
    warmup = warmup_workload(measured, WORDS, seed=1)
    assert set(prompt_lengths(warmup)) == {40}
    assert {request.max_tokens for request in warmup.requests} == {16}
    assert warmup.load == Load("closed", {"in_flight": 8})
    long = generate("prefix_hit", name="m", seed=1, params={"prefix_tokens": 5000}, load=None, vocabulary=WORDS)
    assert set(prompt_lengths(warmup_workload(long, WORDS, seed=1))) == {256}


def test_one_seed_one_warm_up() -> None:
    measured = generate("prefix_hit", name="m", seed=1, params={}, load=None, vocabulary=WORDS)
    assert warmup_workload(measured, WORDS, seed=1) == warmup_workload(measured, WORDS, seed=1)
    assert warmup_workload(measured, WORDS, seed=1) != warmup_workload(measured, WORDS, seed=2)


def test_a_vocabulary_with_no_token_left_is_refused() -> None:
    vocabulary = Vocabulary(size=26, ids=tuple(range(26)))
    params = {"groups": 13, "miss": 13, "full": 0, "partial": 0}
    measured = generate("prefix_hit", name="m", seed=1, params=params, load=None, vocabulary=vocabulary)
    with pytest.raises(WorkloadError, match="set warmup_s = 0"):
        warmup_workload(measured, vocabulary, seed=1)
