"""An executor without arithmetic: a clock that a step-time model moves, and tokens that depend on the whole prefix.

Its "K and V" are a running hash of the tokens up to a position, kept in the blocks like a model's. A next token is
drawn from the hash that the block table leads to. So its answers are wrong exactly when a model's would be: if a block
is read that was never filled, that holds another prefix, or that somebody else was given.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from native_core.executor import Sampled, StepResult, Work

_EMPTY = 0x9E3779B97F4A7C15  # hash of the empty prefix
_MULTIPLIER = 0xD1342543DE82EF95  # odd, so multiplication permutes the 64-bit numbers
_MASK = (1 << 64) - 1
_NEVER_FILLED = 0


class UnfilledBlockError(AssertionError):
    """K and V were read that nobody has computed."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: fixed + per sequence + per token that attention reads + per token of a prefill chunk."""

    fixed: float = 0.010
    per_sequence: float = 0.0005
    per_context_token: float = 0.0000002
    per_prefill_token: float = 0.0002

    def seconds(self, work: Sequence[Work]) -> float:
        context = sum(item.start + len(item.token_ids) for item in work)
        prefill = sum(len(item.token_ids) for item in work if len(item.token_ids) > 1 or item.sampling is None)
        return (
            self.fixed
            + self.per_sequence * len(work)
            + self.per_context_token * context
            + self.per_prefill_token * prefill
        )


class VirtualExecutor:
    """Satisfies `executor.Executor`. Ids are drawn from 0 … vocab_size - 1; the same seed draws the same ones."""

    def __init__(self, step_time: StepTime | None = None, *, vocab_size: int = 32000, seed: int = 0) -> None:
        self.step_time = step_time or StepTime()
        self._vocab_size = vocab_size
        self._seed = seed
        self._now = 0.0
        self._block_size = 0
        self._hashes = array("Q")

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._hashes = array("Q", bytes(8 * num_blocks * block_size))

    def now(self) -> float:
        return self._now

    def wait_until(self, time: float) -> None:
        """Let an idle clock go on to `time` seconds; never back."""
        self._now = max(self._now, time)

    def execute(self, work: Sequence[Work]) -> StepResult:
        """Items in order, so that one can share what an earlier one of the same batch fills."""
        sampled = [self._sample(item, self._fill(item)) for item in work]
        seconds = self.step_time.seconds(work)
        self._now += seconds
        return StepResult(sampled, seconds)

    def _row(self, item: Work, position: int) -> int:
        return item.block_table[position // self._block_size] * self._block_size + position % self._block_size

    def _fill(self, item: Work) -> int:
        """Write the item's positions; returns the hash of its last one."""
        value = _EMPTY
        if item.start:
            value = self._hashes[self._row(item, item.start - 1)]
            if value == _NEVER_FILLED:
                raise UnfilledBlockError(f"{item.request_id}: position {item.start - 1} was never computed")
        for position, token in enumerate(item.token_ids, item.start):
            value = ((value ^ (token + 1)) * _MULTIPLIER + 1) & _MASK
            value = value ^ (value >> 29) or 1
            self._hashes[self._row(item, position)] = value
        return value

    def _sample(self, item: Work, value: int) -> Sampled | None:
        """The id that this prefix leads to; with a temperature, one for the request's seed and step. Never banned."""
        if item.sampling is None:
            return None
        value ^= self._seed * _MULTIPLIER & _MASK
        if item.sampling.temperature > 0:
            for part in (item.sampling.seed or 0, item.step_index):
                value = ((value ^ part) * _EMPTY + 1) & _MASK
                value ^= value >> 29
        while True:
            value = ((value ^ (value >> 32)) * _MULTIPLIER + 1) & _MASK
            token = (value >> 33) % self._vocab_size
            if token not in item.banned:
                return Sampled(token)
