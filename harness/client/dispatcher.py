"""Sends a warm-up and then the measured load, without a barrier between them, and hands on what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from harness.client.alarm import Alarm
from harness.client.bodies import Bodies
from harness.client.exchange import Exchange
from harness.client.pacing import Item, Schedule
from harness.client.pool import Pool
from harness.client.record import Phase, RawRecord
from harness.client.token_watch import TokenWatch
from harness.engines.protocol import Engine
from harness.records.manifest import Window

Finished = Callable[[RawRecord], None]
AnswerOfRecord = Callable[[RawRecord], tuple[int, ...] | None]


class Phased:
    """One schedule with the bodies of its workload."""

    def __init__(self, phase: Phase, schedule: Schedule, bodies: Bodies, *, intended: bool) -> None:
        """`intended`: the schedule has times of its own (an open load)."""
        self.phase: Phase = phase
        self.schedule = schedule
        self.bodies = bodies
        self.intended = intended
        self.open = True  # may still send


class Dispatcher:
    """Runs to the end of the load, or to `stop`. Everything that was begun becomes one record."""

    def __init__(
        self,
        pool: Pool,
        engine: Engine,
        measured: Phased,
        *,
        warmup: Phased | None,
        t_begin: int,
        t_measure: int,
        needed: frozenset[str],
        answer: AnswerOfRecord,
        finished: Finished,
    ) -> None:
        """`needed`: requests whose answers later prompts contain. `finished` is called once a record, in order."""
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._engine = engine
        self._measured = measured
        self._warmup = warmup
        self._t_begin = t_begin
        self._t_measure = t_measure
        self._needed = needed
        self._answer = answer
        self._finished = finished
        self._answers: dict[str, tuple[int, ...]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._alarm = Alarm(self._loop, self._ring)
        self._armed = 0
        self._first_send = 0
        self._last_send = 0
        self.stopped = ""
        self.active: dict[str, Exchange] = {}
        self.dispatch_lag: list[int] = []

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    @property
    def phase(self) -> Phase:
        if self._warmup is not None and self._warmup.open and time.monotonic_ns() < self._t_measure:
            return "warmup"
        return "measure" if self._measured.schedule.unsent and self._measured.open else "drain"

    async def run(self) -> Window:
        """Send everything; the window in which it happened."""
        self._armed = self._t_begin
        self._alarm.set(self._t_begin)
        try:
            await self._end
        finally:
            self._alarm.close()
        return Window(
            t_begin=self._first_send or None,
            t_measure=self._t_measure,
            t_stop=self._last_send or None,
            t_end=time.monotonic_ns(),
        )

    def stop(self, reason: str) -> None:
        """Send nothing more and cancel what is in flight."""
        if self.stopped or self._end.done():
            return
        self.stopped = reason
        self._measured.open = False
        if self._warmup is not None:
            self._warmup.open = False
        # One turn later: a task that is cancelled before its first step would never become a record.
        self._loop.call_soon(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._turn()

    def _ring(self) -> None:
        self._armed = 0
        self._turn()

    def _turn(self) -> None:
        """Send what may go now, and set the alarm for what may go later."""
        now = time.monotonic_ns()
        warmup, measured = self._warmup, self._measured
        if warmup is not None and now >= self._t_measure:
            warmup.open = False
        warming = warmup.schedule.in_flight if warmup is not None else 0
        due: int | None = None
        if warmup is not None and warmup.open:
            self._launch(warmup, warmup.schedule.take(now), now)
            due = self._t_measure
        elif measured.open:
            if now < self._t_measure:
                due = self._t_measure
            else:
                self._launch(measured, measured.schedule.take(now, warming), now)
                due = measured.schedule.next_due()
        if due is not None:
            if due != self._armed:
                self._armed = due
                self._alarm.set(due)
        elif not self._tasks and (not measured.open or measured.schedule.done) and not self._end.done():
            self._end.set_result(None)

    def _launch(self, phased: Phased, items: list[Item], now: int) -> None:
        for item in items:
            if phased.phase == "measure":
                self._last_send = now
            self._first_send = self._first_send or now
            task = self._loop.create_task(self._one(phased, item))
            self._tasks.add(task)

    async def _one(self, phased: Phased, item: Item) -> None:
        record = await self._record(phased, item)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.discard(task)
        if record.request_id in self._needed:
            ids = self._answer(record)
            if ids is not None:
                self._answers[record.request_id] = ids
        self._finished(record)
        phased.schedule.finished(item, time.monotonic_ns())
        self._turn()

    async def _record(self, phased: Phased, item: Item) -> RawRecord:
        request_id = item.request.request_id
        begun = time.monotonic_ns()
        intended = item.due if phased.intended else 0
        try:
            body = phased.bodies.take(item.request, self._answers)
        except KeyError as missing:
            why = f"never sent: the answer to {missing.args[0]}, which its prompt contains, is missing"
            return RawRecord.unsent(request_id, phased.phase, begun, "dependency", why)
        exchange = await self._pool.send(body, TokenWatch(self._engine), self._track(request_id))
        self.active.pop(request_id, None)
        if intended and exchange.t_sent:
            self.dispatch_lag.append(exchange.t_sent - intended)
        return RawRecord.of(request_id, phased.phase, intended or exchange.t_sent or begun, exchange)

    def _track(self, request_id: str) -> Callable[[Exchange], None]:
        def begin(exchange: Exchange) -> None:
            self.active[request_id] = exchange

        return begin
