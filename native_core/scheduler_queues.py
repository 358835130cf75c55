"""The waiting requests, under either policy. Every operation is O(log n) or better, an abort in the middle too."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Literal, Protocol

from native_core.request import Request

Policy = Literal["fcfs", "priority"]


class WaitingQueue(Protocol):
    def __len__(self) -> int: ...
    def add(self, request: Request) -> None: ...
    def put_back(self, request: Request) -> None:
        """A preempted request: first in line under fcfs, at its place under priority (V21)."""
        ...

    def head(self) -> Request: ...
    def pop(self) -> Request: ...
    def remove(self, request: Request) -> None: ...


class FcfsQueue:
    """First come, first served; preempted ones come first."""

    def __init__(self) -> None:
        self._line: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, request: Request) -> None:
        self._line[request.request_id] = request

    def put_back(self, request: Request) -> None:
        self.add(request)
        self._line.move_to_end(request.request_id, last=False)

    def head(self) -> Request:
        return next(iter(self._line.values()))

    def pop(self) -> Request:
        return self._line.popitem(last=False)[1]

    def remove(self, request: Request) -> None:
        del self._line[request.request_id]


class PriorityQueue:
    """A heap on (priority, arrival, id), smallest first (V22). A removed request stays in it until it surfaces."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, str], int, Request]] = []
        self._live: dict[str, int] = {}  # request id → ticket of its one valid entry
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, request: Request) -> None:
        self._tickets += 1
        self._live[request.request_id] = self._tickets
        heapq.heappush(self._heap, (request.urgency, self._tickets, request))

    put_back = add

    def head(self) -> Request:
        while self._live.get(self._heap[0][2].request_id) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def pop(self) -> Request:
        request = self.head()
        heapq.heappop(self._heap)
        del self._live[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        del self._live[request.request_id]


def make_queue(policy: Policy) -> WaitingQueue:
    return PriorityQueue() if policy == "priority" else FcfsQueue()
