"""What prompts share, counted token by token: slow and obvious, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workloads.model import Workload
from workloads.vocabulary import Vocabulary

WORDS = Vocabulary(size=49152, ids=tuple(range(17, 49152)))


def shared_with_earlier(prompts: Sequence[Sequence[int]]) -> list[int]:
    """For each prompt the longest prefix that any earlier one has too, by brute force."""
    return [max((common(prompt, earlier) for earlier in prompts[:i]), default=0) for i, prompt in enumerate(prompts)]


def common(left: Sequence[int], right: Sequence[int]) -> int:
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return n


def prompts_of(workload: Workload, answers: Mapping[str, tuple[int, ...]] | None = None) -> list[tuple[int, ...]]:
    return [workload.prompt_ids(request, answers) for request in workload.requests]
