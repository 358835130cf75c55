"""The engine's event log: its only side channel. Metrics, predictions, timelines and tests are folds over it.

Every event carries `time` (seconds on the executor's clock), `step` (number of the step it belongs to, from 1; 0
before the first) and `request_id` (None for what concerns the whole engine). Blocks are counted, not listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    time: float
    step: int
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Arrive(Event):
    prompt_tokens: int
    max_tokens: int
    priority: int


@dataclass(frozen=True, slots=True)
class Admit(Event):
    """Waiting → running. `hit_tokens` come from the cache; `waited` are the seconds since arrival or preemption."""

    hit_tokens: int
    query_tokens: int  # tokens that were looked up: prompt, and after a preemption the outputs too; 0: caching is off
    waited: float
    resumed: bool  # after a preemption


@dataclass(frozen=True, slots=True)
class Alloc(Event):
    """`blocks` taken from the free queue, and `reused` hit blocks that now have one owner more."""

    blocks: int
    reused: int


@dataclass(frozen=True, slots=True)
class Evict(Event):
    """Cached tokens that became unfindable because their blocks were taken; `request_id` is the one that took them."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Free(Event):
    blocks: int  # references given back; blocks that others share stay in use


@dataclass(frozen=True, slots=True)
class Chunk(Event):
    """Tokens start … start + count - 1 of a request are computed in this step."""

    start: int
    count: int
    decode: bool


@dataclass(frozen=True, slots=True)
class Preempt(Event):
    computed: int  # tokens whose K and V are given up


@dataclass(frozen=True, slots=True)
class Step(Event):
    """The state once a step's tokens are scheduled, and what the step took. used + evictable + free blocks = pool."""

    prefill_tokens: int
    decode_tokens: int
    context_tokens: int  # sum over the batch of the tokens that attention reads
    batch: int
    running: int
    waiting: int
    used: int
    evictable: int
    free: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Token(Event):
    token_id: int
    index: int  # 0 is the first output token


@dataclass(frozen=True, slots=True)
class Finish(Event):
    reason: str
    output_tokens: int


class EventLog:
    """Stamps events with the engine's time and step, and hands them to whoever listens."""

    def __init__(self, listener: Callable[[Event], None] | None = None) -> None:
        self.listener = listener
        self.now = 0.0
        self.step = 0

    def __call__(self, kind: Callable[..., Event], request_id: str | None, *fields: Any) -> None:
        if self.listener is not None:
            self.listener(kind(self.now, self.step, request_id, *fields))


def as_record(event: Event) -> dict[str, Any]:
    """One JSON line's worth: the fields, and `kind`, the event's name in lower case."""
    return {"kind": type(event).__name__.lower(), **asdict(event)}
