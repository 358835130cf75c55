"""The border between scheduling and arithmetic: numpy on a wall clock, or no arithmetic on a virtual one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. temperature 0 is greedy; a seed makes a request reproducible on its own."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None  # how many alternatives to report beside the chosen token


@dataclass(frozen=True, slots=True)
class Work:
    """One request's share of a step: compute `token_ids` at positions start, start + 1, …

    The K and V of position p live in block `block_table[p // block_size]`, row p % block_size. The scheduler owns the
    table; the executor only reads it. `sampling` is None while a prompt is only partly computed: no token comes out.
    `step_index` counts the tokens this request has produced so far (seeds a per-request random stream).
    `banned` are ids that must not be sampled in this step: those that would end the request before `min_tokens`.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sampling: SamplingParams | None
    step_index: int = 0
    banned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token with, if asked for, its log probability and the best alternatives as (token, logprob)."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """One entry per Work, None where none was asked for; `seconds` is what the step took on the executor's clock."""

    sampled: Sequence[Sampled | None]
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)  # attention, mlp, logits, sample … in seconds


class Executor(Protocol):
    """Three methods, so that engine and oracle are one code."""

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make room for the K and V of `num_blocks` blocks. Called once, before the first step."""
        ...

    def execute(self, work: Sequence[Work]) -> StepResult:
        """Compute one step for a mixed batch of prefill chunks and decodes."""
        ...

    def now(self) -> float:
        """Seconds on this executor's clock: monotonic for real ones, simulated for the virtual one."""
        ...
