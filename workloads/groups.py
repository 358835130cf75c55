"""Sessions that wait for each other: what a split among client processes must keep together."""

from __future__ import annotations

from workloads.model import Workload


def session_groups(workload: Workload) -> dict[str, int]:
    """Session -> number of its group, from 0 in the order of their first requests.

    Sessions that are tied by `after` are one group: one client process cannot see when the requests of another have
    finished, and would wait for ever. In most workloads every session is a group of its own; multi-turn with
    plant_first is a single one.
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
    numbers: dict[str, int] = {}
    return {session: numbers.setdefault(find(session), len(numbers)) for session in dict.fromkeys(session_of.values())}
