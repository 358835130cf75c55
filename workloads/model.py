"""A workload in memory: token-exact requests built from shared segments, equal on every machine for one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CacheClass = Literal["full", "partial", "miss", "none"]


class WorkloadError(ValueError):
    """Parameters that make no workload, or a file that is none. One line, with the mend."""


@dataclass(frozen=True)
class AnswerOf:
    """A prompt part that is known only at run time: the answer to an earlier request of the same session."""

    request_id: str


@dataclass(frozen=True)
class Request:
    """One row. The prompt is its parts in order: segment ids (str) and answers of earlier requests."""

    request_id: str
    session_id: str
    turn: int
    prompt: tuple[str | AnswerOf, ...]
    max_tokens: int
    cache_class: CacheClass = "none"
    shared_tokens: int = 0  # tokens that `cache_class` promises to share with an earlier prompt
    after: tuple[str, ...] = ()  # sent only when all of these have finished (ok or not); see groups.py for splitting
    think_s: float = 0.0  # pause after the last of `after`
    # Seconds from the start of the load; None in a closed loop, and for turns that only follow an answer. A request
    # with both `after` and `arrival_s` is sent at the later of the two.
    arrival_s: float | None = None
    ignore_eos: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)  # empty is greedy
    priority: int | None = None
    adapter: str | None = None
    grammar: str | None = None


@dataclass(frozen=True)
class Load:
    """How requests enter: closed {in_flight} | constant {rate} | poisson {rate} | gamma {rate, burstiness}
    | ramp {rate_from, rate_to, seconds} | sessions {in_flight} | trace {}. Rates are requests per second.
    closed counts requests in flight, sessions counts sessions under way; the others give rows an `arrival_s`."""

    mode: str
    params: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """Header fields, the segments, and the requests in their intended order."""

    name: str
    family: str
    seed: int
    params: Mapping[str, Any]
    load: Load
    segments: Mapping[str, tuple[int, ...]]
    requests: tuple[Request, ...]
    tokenizer_sha256: str | None = None
    vocab_size: int | None = None  # ids are below it; None where it is not known (an imported trace)
    generator: str = "servescope"

    def prompt_ids(self, request: Request, answers: Mapping[str, tuple[int, ...]] | None = None) -> tuple[int, ...]:
        """The token ids of a prompt. Raises KeyError while an answer that it needs is not in `answers`."""
        ids: list[int] = []
        for part in request.prompt:
            ids.extend(self.segments[part] if isinstance(part, str) else (answers or {})[part.request_id])
        return tuple(ids)
