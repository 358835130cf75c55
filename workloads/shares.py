"""Splitting a workload among client processes, so that what waits for each other stays together."""

from __future__ import annotations

from workloads.model import Request, Workload


def shares(workload: Workload, workers: int) -> list[list[Request]]:
    """The requests of each of `workers` clients, in request order.

    Sessions that are tied by `after` form a group, since one process cannot see the answers of another; group i goes
    to worker i % workers. With fewer groups than workers the last workers get nothing.
    """
    head: dict[str, str] = {}

    def find(session: str) -> str:
        while head.setdefault(session, session) != session:
            head[session] = head[head[session]]  # halve the path on the way
            session = head[session]
        return session

    session_of = {request.request_id: request.session_id for request in workload.requests}
    for request in workload.requests:
        for earlier in request.after:
            head[find(request.session_id)] = find(session_of[earlier])
    order: dict[str, int] = {}
    split: list[list[Request]] = [[] for _ in range(workers)]
    for request in workload.requests:
        split[order.setdefault(find(request.session_id), len(order)) % workers].append(request)
    return split
