"""What has to be answered before what: the checks that make `after` and `answer_of` a plan that can be carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workloads.model import Request, WorkloadError


def check_order(requests: Sequence[Request], where: Mapping[str, str]) -> None:
    """Raise WorkloadError for an unknown or circular `after`, and for an answer that may not be there when needed.

    `where` maps a request id to the place to name in the error, such as "file:12".
    """
    known = {request.request_id: request for request in requests}
    for request in requests:
        for earlier in request.after:
            if earlier not in known:
                raise WorkloadError(f"{where[request.request_id]}: `after` names {earlier!r}, which is no request")
    order = _sending_order(requests, where)
    ancestors: dict[str, frozenset[str]] = {}
    needed = {part.request_id for request in requests for part in request.prompt if not isinstance(part, str)}
    for request in order:
        # Only requests whose answer someone needs are worth remembering; sets of all would be quadratic.
        own = frozenset().union(*(ancestors[earlier] | {earlier} for earlier in request.after))
        ancestors[request.request_id] = own & needed
        for part in request.prompt:
            if not isinstance(part, str):
                _check_answer(request, part.request_id, own, known, where[request.request_id])


def _check_answer(
    request: Request, answered: str, ancestors: frozenset[str], known: Mapping[str, Request], where: str
) -> None:
    if answered not in known:
        raise WorkloadError(f"{where}: the prompt needs the answer of {answered!r}, which is no request")
    if answered not in ancestors:
        raise WorkloadError(f"{where}: the prompt needs the answer of {answered!r}; name that request in `after`")
    if known[answered].session_id != request.session_id:
        raise WorkloadError(f"{where}: the prompt needs the answer of {answered!r}, which is in another session")


def _sending_order(requests: Sequence[Request], where: Mapping[str, str]) -> list[Request]:
    """The requests, each after all that it waits for (Kahn's algorithm, file order among the free)."""
    known = {request.request_id: request for request in requests}
    waits = {request.request_id: len(set(request.after)) for request in requests}
    followers: dict[str, list[str]] = {}
    for request in requests:
        for earlier in set(request.after):
            followers.setdefault(earlier, []).append(request.request_id)
    ready = [request.request_id for request in requests if not waits[request.request_id]]
    order = []
    for name in ready:  # grows while it is walked
        order.append(known[name])
        for follower in followers.get(name, ()):
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    if len(order) < len(requests):
        stuck = next(request.request_id for request in requests if waits[request.request_id])
        raise WorkloadError(f"{where[stuck]}: {stuck!r} waits for itself, through its `after`")
    return order
