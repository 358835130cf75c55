"""An executor that keeps account of its own time: what is left of a step is the scheduler's share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from native_core.executor import Executor, StepResult, Work


@dataclass(frozen=True, slots=True)
class Meter:
    """Cumulative: wall seconds inside `execute`, and seconds of the model's parts as the executor states them."""

    wall_s: float = 0.0
    parts_s: Mapping[str, float] = field(default_factory=dict)


class MeteredExecutor:
    """Passes everything on. Used by the engine thread alone, but for `now`, which any thread may ask."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._wall_s = 0.0
        self._parts_s: dict[str, float] = {}

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._inner.allocate(num_blocks, block_size)

    def execute(self, work: Sequence[Work]) -> StepResult:
        before = time.perf_counter()
        result = self._inner.execute(work)
        self._wall_s += time.perf_counter() - before
        for part, seconds in result.parts.items():
            self._parts_s[part] = self._parts_s.get(part, 0.0) + seconds
        return result

    def now(self) -> float:
        return self._inner.now()

    def meter(self) -> Meter:
        return Meter(self._wall_s, dict(self._parts_s))
