"""When each request may go: pure rules over a virtual `now`, with no clock and no network of their own.

Open loads follow an absolute schedule: a late send goes at once and keeps its intended time, so lateness never shifts
what follows. Closed loads keep a number in flight. Requests that follow others wait for them, then for `think_s`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.errors import UsageError
from workloads.groups import session_groups
from workloads.model import Request, Workload

_NS = 1_000_000_000


@dataclass(slots=True)
class Item:
    """One request of the schedule. `due` is monotonic ns, 0 for "as soon as there is room"."""

    index: int
    request: Request
    waits: int  # requests that must finish first
    due: int = 0


@dataclass(frozen=True)
class Share:
    """What one of `workers` processes sends: whole sessions, and its part of the room in flight."""

    requests: tuple[Request, ...]
    in_flight: int | None  # None: an open load without a cap


def share_of(workload: Workload, worker: int, workers: int) -> Share:
    """The groups of sessions that wait for each other with number % n == worker, in order of their first request.

    n is `workers`, or the number of groups or the load's in_flight where one is smaller: a worker without sessions or
    without room could never send, and would hold room that others need.
    """
    limit = workload.load.params.get("in_flight")
    numbers = session_groups(workload)
    active = max(1, min(workers, len(set(numbers.values()))))
    if limit is not None:
        active = max(1, min(active, int(limit)))
    mine = tuple(r for r in workload.requests if worker < active and numbers[r.session_id] % active == worker)
    if limit is None:
        return Share(mine, None)
    room = int(limit) // active + (1 if worker < int(limit) % active else 0)
    return Share(mine, room if worker < active else 0)


class Schedule:
    """Which requests go now. Feed it `finished` and ask `take`; between the two, `next_due` says when to look again."""

    def __init__(self, requests: Sequence[Request], t0: int, *, in_flight: int | None, by_session: bool) -> None:
        """`t0`: monotonic ns of second 0. `in_flight`: room, counted in sessions under way if `by_session`."""
        self._t0 = t0
        self._limit = in_flight
        self._by_session = by_session
        self._timed: list[tuple[int, int]] = []  # (due, index)
        self._ready: list[int] = []  # indices, in the workload's order
        self._items = [Item(i, request, len(set(request.after))) for i, request in enumerate(requests)]
        self._followers: dict[str, list[int]] = {}
        self._left_in_session: dict[str, int] = {}
        self._sessions: set[str] = set()  # under way
        self.in_flight = 0
        self.unsent = len(self._items)
        self._wire()

    def _wire(self) -> None:
        known = {item.request.request_id for item in self._items}
        for item in self._items:
            session = item.request.session_id
            self._left_in_session[session] = self._left_in_session.get(session, 0) + 1
            for earlier in set(item.request.after):
                if earlier not in known:
                    raise UsageError(
                        f"request {item.request.request_id} follows {earlier}, which another worker sends",
                        mend="run this workload with one worker",
                    )
                self._followers.setdefault(earlier, []).append(item.index)
            if item.waits == 0:
                self._release(item, 0)

    def _release(self, item: Item, earliest: int) -> None:
        """All that it waited for is done; `earliest` is 0 or monotonic ns."""
        arrival = item.request.arrival_s
        item.due = max(earliest, self._t0 + round(arrival * _NS)) if arrival is not None else earliest
        if item.due:
            heapq.heappush(self._timed, (item.due, item.index))
        else:
            heapq.heappush(self._ready, item.index)

    def take(self, now: int, taken_elsewhere: int = 0) -> list[Item]:
        """The requests to send at `now`; each counts as in flight from here on.

        `taken_elsewhere`: room that is held by others (a warm-up that is still being answered).
        """
        while self._timed and self._timed[0][0] <= now:
            heapq.heappush(self._ready, heapq.heappop(self._timed)[1])
        if self._limit is None:
            # An open load sends in the order of intended times, not of the file.
            chosen = sorted((self._items[i] for i in self._ready), key=lambda item: (item.due, item.index))
            self._ready.clear()
        else:
            chosen = self._take_limited(taken_elsewhere)
        self.in_flight += len(chosen)
        self.unsent -= len(chosen)
        return chosen

    def _take_limited(self, taken_elsewhere: int) -> list[Item]:
        assert self._limit is not None
        chosen, waiting = [], []
        used = taken_elsewhere + (len(self._sessions) if self._by_session else self.in_flight)
        while self._ready:
            item = self._items[self._ready[0]]
            session = item.request.session_id
            if self._by_session and session in self._sessions:
                chosen.append(item)
            elif used < self._limit:
                used += 1
                if self._by_session:
                    self._sessions.add(session)
                chosen.append(item)
            elif self._by_session:
                waiting.append(item.index)  # a later one may belong to a session under way
            else:
                break
            heapq.heappop(self._ready)
        for index in waiting:
            heapq.heappush(self._ready, index)
        return chosen

    def finished(self, item: Item, now: int) -> None:
        """The request has ended, well or not."""
        self.in_flight -= 1
        session = item.request.session_id
        self._left_in_session[session] -= 1
        if not self._left_in_session[session]:
            self._sessions.discard(session)
        for index in self._followers.get(item.request.request_id, ()):
            follower = self._items[index]
            follower.waits -= 1
            if follower.waits == 0:
                think = round(follower.request.think_s * _NS)
                self._release(follower, now + think if think or self._limit is None else 0)

    def next_due(self) -> int | None:
        """Monotonic ns of the next timed request, None if none is waiting for a time."""
        return self._timed[0][0] if self._timed else None

    @property
    def done(self) -> bool:
        return self.unsent == 0 and self.in_flight == 0
