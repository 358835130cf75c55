"""A workload whose order was observed: each request waits for all that had ended when it was sent, and for no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from native_core.oracle.load import AnswerLike, RequestLike


@dataclass(frozen=True)
class OrderedRequest:
    request_id: str
    session_id: str
    prompt: Sequence[str | AnswerLike]
    max_tokens: int
    cache_class: str
    after: Sequence[str]
    ignore_eos: bool
    sampling: Mapping[str, Any]
    priority: int | None
    adapter: str | None
    grammar: str | None
    think_s: float = 0.0
    arrival_s: float | None = None

    @classmethod
    def of(cls, row: RequestLike, after: Sequence[str]) -> OrderedRequest:
        return cls(
            row.request_id,
            row.session_id,
            row.prompt,
            row.max_tokens,
            row.cache_class,
            after,
            row.ignore_eos,
            row.sampling,
            row.priority,
            row.adapter,
            row.grammar,
        )


@dataclass(frozen=True)
class ObservedLoad:
    mode: str = "observed"
    params: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OrderedWorkload:
    requests: Sequence[RequestLike]
    segments: Mapping[str, Sequence[int]]
    vocab_size: int | None
    load: ObservedLoad = field(default_factory=ObservedLoad)
