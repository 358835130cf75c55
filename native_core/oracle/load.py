"""What the oracle asks of a workload and of an engine's self-description, and when each request is sent.

The protocols are those of servescope's own records; anything of the same shape will do, and nothing is imported.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class AnswerLike(Protocol):
    """A prompt part that is the answer to an earlier request."""

    @property
    def request_id(self) -> str: ...


class RequestLike(Protocol):
    @property
    def request_id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def prompt(self) -> Sequence[str | AnswerLike]: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def cache_class(self) -> str: ...
    @property
    def after(self) -> Sequence[str]: ...
    @property
    def think_s(self) -> float: ...
    @property
    def arrival_s(self) -> float | None: ...
    @property
    def ignore_eos(self) -> bool: ...
    @property
    def sampling(self) -> Mapping[str, Any]: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def adapter(self) -> str | None: ...
    @property
    def grammar(self) -> str | None: ...


class LoadLike(Protocol):
    @property
    def mode(self) -> str: ...
    @property
    def params(self) -> Mapping[str, float]: ...


class WorkloadLike(Protocol):
    @property
    def requests(self) -> Sequence[RequestLike]: ...
    @property
    def segments(self) -> Mapping[str, Sequence[int]]: ...
    @property
    def load(self) -> LoadLike: ...
    @property
    def vocab_size(self) -> int | None: ...


class InfoLike(Protocol):
    """`None` means that the engine does not say. kv_tokens are those that requests can occupy."""

    @property
    def kind(self) -> str: ...
    @property
    def version(self) -> str | None: ...
    @property
    def block_size(self) -> int | None: ...
    @property
    def kv_tokens(self) -> int | None: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def prefix_caching(self) -> bool | None: ...
    @property
    def scheduler(self) -> str | None: ...
    @property
    def async_loop(self) -> bool | None: ...
    @property
    def max_num_seqs(self) -> int | None: ...
    @property
    def max_batched_tokens(self) -> int | None: ...
    @property
    def resolved(self) -> Mapping[str, Any]: ...


def in_flight(load: LoadLike) -> int | None:
    """Most requests (mode "sessions": most sessions) under way at once; None: no limit, as in open loads."""
    limit = load.params.get("in_flight")
    return None if limit is None else int(limit)


@dataclass(slots=True)
class _Item:
    request: RequestLike
    waits: int  # requests that must finish first
    due: float = 0.0


class Pacing:
    """Which requests go now, on any clock in seconds: `take(now)`, and `finished(request_id, now)` for each that ends.

    The rules of servescope's client: a request waits for all of `after`, then for think_s and its arrival; a closed
    load sends in the workload's order as room allows; an open one sends whatever is due.
    """

    def __init__(self, requests: Sequence[RequestLike], load: LoadLike) -> None:
        self._limit = in_flight(load)
        self._by_session = load.mode == "sessions"
        self._items = [_Item(request, len(set(request.after))) for request in requests]
        self._timed: list[tuple[float, int]] = []
        self._ready: list[int] = []
        self._followers: dict[str, list[int]] = {}
        self._left: dict[str, int] = {}  # requests of a session that have not finished
        self._under_way: set[str] = set()  # sessions
        self._running = 0
        self._session_of = {request.request_id: request.session_id for request in requests}
        for index, item in enumerate(self._items):
            session = item.request.session_id
            self._left[session] = self._left.get(session, 0) + 1
            for earlier in set(item.request.after):
                self._followers.setdefault(earlier, []).append(index)
            if not item.waits:
                self._release(index, 0.0)

    def _release(self, index: int, earliest: float) -> None:
        item = self._items[index]
        item.due = max(earliest, item.request.arrival_s or 0.0)
        if item.due:
            heapq.heappush(self._timed, (item.due, index))
        else:
            heapq.heappush(self._ready, index)

    def take(self, now: float) -> list[tuple[RequestLike, float]]:
        """Requests to send, each with its time of arrival: its own in an open load, 0 for now in a closed one."""
        while self._timed and self._timed[0][0] <= now:
            heapq.heappush(self._ready, heapq.heappop(self._timed)[1])
        if self._limit is None:
            chosen = sorted(self._ready, key=lambda index: (self._items[index].due, index))
            self._ready.clear()
        else:
            chosen = self._take_limited(self._limit)
        self._running += len(chosen)
        timed = self._limit is None
        return [(self._items[index].request, self._items[index].due if timed else 0.0) for index in chosen]

    def _take_limited(self, limit: int) -> list[int]:
        chosen: list[int] = []
        kept: list[int] = []
        used = len(self._under_way) if self._by_session else self._running
        while self._ready:
            index = heapq.heappop(self._ready)
            session = self._items[index].request.session_id
            if self._by_session and session in self._under_way:
                chosen.append(index)
            elif used < limit:
                used += 1
                if self._by_session:
                    self._under_way.add(session)
                chosen.append(index)
            else:
                kept.append(index)
                if not self._by_session:
                    break  # a later one cannot go either; a later turn of a session under way could
        for index in kept:
            heapq.heappush(self._ready, index)
        return chosen

    def finished(self, request_id: str, now: float) -> None:
        self._running -= 1
        session = self._session_of[request_id]
        self._left[session] -= 1
        if not self._left[session]:
            self._under_way.discard(session)
        for index in self._followers.get(request_id, ()):
            item = self._items[index]
            item.waits -= 1
            if not item.waits:
                timed = item.request.think_s or self._limit is None
                self._release(index, now + item.request.think_s if timed else 0.0)

    def next_due(self) -> float | None:
        return self._timed[0][0] if self._timed else None
