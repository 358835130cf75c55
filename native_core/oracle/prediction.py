"""What the oracle says: figures with their interval, their grade, and why they are no more certain than they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, TypeVar

from native_core.oracle.queue_bounds import QueueBounds

# live-proven: equal to a running engine; code-parity: equal to the engine's own code, step by step; read: taken from
# its source or derived, not compared.
Grade = Literal["live-proven", "code-parity", "read"]
Mode = Literal["expected", "observed order"]
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Range(Generic[N]):
    """From the least to the greatest over the schedules that were simulated; equal where all agree."""

    low: N
    high: N

    @classmethod
    def over(cls, values: Iterable[N]) -> Range[N]:
        found = list(values)
        return cls(min(found), max(found))


@dataclass(frozen=True)
class ClassPrediction:
    cache_class: str
    requests: int
    prompt_tokens: int
    cached: Range[int]  # tokens


@dataclass(frozen=True)
class Loss:
    """Tokens that an infinite cache of single tokens would have saved, and why they are not saved. Negative: gained."""

    cause: Literal["last-token rule", "page rounding", "order", "capacity", "caching is off"]
    tokens: Range[int]


@dataclass(frozen=True)
class Prediction:
    """Of a workload on an engine that begins with an empty cache. Refused: everything else is left empty."""

    mode: Mode = "expected"
    refused: str | None = None
    exact: bool = False  # of cached tokens: they follow from the workload and the engine's settings alone
    why: str = ""  # why it is exact, or an interval
    grade: Grade | None = None  # of cached tokens, preemptions and usage
    profile: str = ""
    block_size: int = 0
    kv_tokens: int | None = None
    schedules: int = 0
    total: ClassPrediction | None = None
    classes: list[ClassPrediction] = field(default_factory=list)
    at_most: int = 0  # cached tokens: no schedule and no cache size can give more
    at_least: int = 0  # no schedule can give less; 0 where evictions are possible
    ceiling: int = 0  # tokens that an infinite cache of single tokens saves
    losses: list[Loss] = field(default_factory=list)  # ceiling - losses = cached, schedule by schedule
    preemptions: Range[int] | None = None
    peak_usage: Range[float] | None = None  # share of the pool that requests own
    mean_usage: Range[float] | None = None  # weighted by the seconds of the steps
    queue: QueueBounds | None = None
    queue_grade: Grade = "read"
    queue_refused: str | None = None
    assumed: list[str] = field(default_factory=list)
    step_time: dict[str, float] = field(default_factory=dict)  # seconds

    def as_record(self) -> dict[str, Any]:
        return asdict(self)
