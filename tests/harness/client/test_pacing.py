"""The schedule on a clock of its own: everything once, in room and on time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.client.pacing import Item, Schedule, share_of
from harness.records.errors import UsageError
from workloads.model import Load, Request, Workload

T0 = 1_000_000_000_000
MS = 1_000_000


def _request(i: int, *, session: str = "", after: tuple[str, ...] = (), think: float = 0.0, at: float | None = None):  # type: ignore[no-untyped-def]
    return Request(f"r{i}", session or f"s{i}", 0, ("p",), 1, after=after, think_s=think, arrival_s=at)


def _names(items: list[Item]) -> list[str]:
    return [item.request.request_id for item in items]


def test_open_load_keeps_the_intended_time_of_a_late_send() -> None:
    schedule = Schedule([_request(i, at=i * 0.01) for i in range(4)], T0, in_flight=None, by_session=False)
    assert _names(schedule.take(T0)) == ["r0"]
    assert schedule.next_due() == T0 + 10 * MS
    late = schedule.take(T0 + 25 * MS)  # a stall of two gaps
    assert [(item.request.request_id, item.due) for item in late] == [("r1", T0 + 10 * MS), ("r2", T0 + 20 * MS)]
    assert schedule.next_due() == T0 + 30 * MS  # and the next is not shifted


def test_closed_load_refills_as_requests_finish() -> None:
    schedule = Schedule([_request(i) for i in range(5)], T0, in_flight=2, by_session=False)
    first = schedule.take(T0)
    assert _names(first) == ["r0", "r1"]
    assert schedule.take(T0) == []
    schedule.finished(first[1], T0 + 1)
    assert _names(schedule.take(T0 + 1)) == ["r2"]


def test_warmup_in_flight_takes_room() -> None:
    schedule = Schedule([_request(i) for i in range(5)], T0, in_flight=3, by_session=False)
    assert _names(schedule.take(T0, 2)) == ["r0"]
    assert _names(schedule.take(T0, 1)) == ["r1"]
    assert _names(schedule.take(T0, 0)) == ["r2"]


def test_a_follower_waits_and_thinks() -> None:
    requests = [_request(0, session="a"), _request(1, session="a", after=("r0",), think=0.5)]
    schedule = Schedule(requests, T0, in_flight=4, by_session=False)
    (first,) = schedule.take(T0)
    assert schedule.take(T0 + 10 * MS) == []
    schedule.finished(first, T0 + 20 * MS)
    assert schedule.take(T0 + 519 * MS) == []
    assert schedule.next_due() == T0 + 520 * MS
    assert _names(schedule.take(T0 + 520 * MS)) == ["r1"]


def test_a_follower_with_an_arrival_goes_at_the_later_time() -> None:
    requests = [_request(0, session="a", at=0.0), _request(1, session="a", after=("r0",), at=1.0)]
    schedule = Schedule(requests, T0, in_flight=None, by_session=False)
    (first,) = schedule.take(T0)
    schedule.finished(first, T0 + 20 * MS)
    assert schedule.next_due() == T0 + 1000 * MS


def test_sessions_limit_sessions_not_requests() -> None:
    requests = [
        _request(0, session="a"),
        _request(1, session="b"),
        _request(2, session="a", after=("r0",)),
        _request(3, session="b", after=("r1",)),
    ]
    schedule = Schedule(requests, T0, in_flight=1, by_session=True)
    (r0,) = schedule.take(T0)
    schedule.finished(r0, T0)
    (r2,) = schedule.take(T0)
    assert r2.request.request_id == "r2"  # b must wait for the end of a
    schedule.finished(r2, T0)
    assert _names(schedule.take(T0)) == ["r1"]


def test_following_another_workers_request_is_refused() -> None:
    with pytest.raises(UsageError, match="one worker"):
        Schedule([_request(1, after=("elsewhere",))], T0, in_flight=1, by_session=False)


@settings(max_examples=60)
@given(st.data())
def test_everything_goes_once_in_order_and_within_its_room(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    requests = []
    for i in range(n):
        after = data.draw(st.lists(st.sampled_from([f"r{j}" for j in range(i)]), max_size=2)) if i else []
        session = data.draw(st.sampled_from("abc"))
        requests.append(_request(i, session=session, after=tuple(after), think=data.draw(st.sampled_from([0, 0.01]))))
    limit = data.draw(st.integers(1, 4))
    by_session = data.draw(st.booleans())
    if by_session:  # a session that waits for another could not begin: the workload's readers refuse it
        own: dict[str, str] = {r.request_id: r.session_id for r in requests}
        requests = [
            Request(
                r.request_id, r.session_id, 0, r.prompt, 1, after=tuple(a for a in r.after if own[a] == r.session_id)
            )
            for r in requests
        ]
    schedule = Schedule(requests, T0, in_flight=limit, by_session=by_session)
    now, flying, sent, ended = T0, list[Item](), list[str](), set[str]()
    while not schedule.done:
        for item in schedule.take(now):
            assert set(item.request.after) <= ended
            assert item.due <= now
            flying.append(item)
            sent.append(item.request.request_id)
        if by_session:
            assert len({item.request.session_id for item in flying}) <= limit
        else:
            assert len(flying) <= limit
        if flying:
            item = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            ended.add(item.request.request_id)
            schedule.finished(item, now)
        else:
            due = schedule.next_due()
            assert due is not None, "nothing in flight, nothing due, and not done: a hang"
            now = due
    assert sorted(sent) == sorted(request.request_id for request in requests)


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 6) | st.none())
def test_shares_split_sessions_never(n: int, workers: int, in_flight: int | None) -> None:
    load = Load("constant", {"rate": 1.0}) if in_flight is None else Load("closed", {"in_flight": float(in_flight)})
    requests = tuple(_request(i, session=f"s{i % 7}") for i in range(n))
    workload = Workload("w", "w", 1, {}, load, {"p": (1,)}, requests)
    shares = [share_of(workload, worker, workers) for worker in range(workers)]
    assert sorted(r.request_id for share in shares for r in share.requests) == sorted(r.request_id for r in requests)
    owners: dict[str, set[int]] = {}
    for worker, share in enumerate(shares):
        for request in share.requests:
            owners.setdefault(request.session_id, set()).add(worker)
    assert all(len(owner) == 1 for owner in owners.values())
    if in_flight is not None:
        assert sum(share.in_flight or 0 for share in shares) == in_flight
        assert all(share.in_flight for share in shares if share.requests)
