"""How a cell can end before its load does: by a signal, by the death of an engine, by a server that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from harness.cli.jobs.interrupts import on_interrupt
from harness.cli.jobs.session import Session
from harness.client.target import Target
from harness.engines.process import ending
from harness.records.manifest import Status

LOOK_S = 1.0  # between two looks at whether requests have failed
CONNECT_S = 5.0


@dataclass
class Outcome:
    """How a cell ended. `gone`: nobody is there any more who could be asked for counters."""

    status: Status
    reason: str = ""
    gone: bool = False

    @property
    def interrupted(self) -> bool:
        return self.status == "interrupted"

    def died(self, reason: str, *, gone: bool = False) -> None:
        """The first reason counts: what follows from it fails too."""
        self.gone = self.gone or gone
        if self.status == "complete":
            self.status, self.reason = "died", reason


@contextmanager
def early_ends(session: Session, outcome: Outcome, stop: asyncio.Event) -> Iterator[None]:
    """While inside, a signal or the death of an engine that was started here is noted in `outcome` and sets `stop`.

    That lasts until all is written: who interrupts a run wants what it had.
    """
    loop = asyncio.get_running_loop()
    process = session.process
    inside = True

    def interrupted() -> None:
        outcome.status, outcome.reason = "interrupted", "interrupted by a signal"
        stop.set()

    def died(code: int) -> None:
        if inside:  # the engine of this cell may end long after it
            loop.call_soon_threadsafe(note_death, code)

    def note_death(code: int) -> None:
        words = process.last_words() if process else ""
        outcome.died(f"the engine ended with {ending(code)}; its log ends: {words}", gone=True)
        stop.set()

    if process is not None:
        process.watch(died)
    try:
        with on_interrupt(loop, interrupted):
            yield
    finally:
        inside = False


class Doorbell:
    """Whether a server that was not started here is still there. It is asked only when requests have failed, and then
    only for a connection, so that a healthy one never notices."""

    def __init__(self, session: Session, failed: Callable[[], int], outcome: Outcome) -> None:
        self._target = Target.parse(session.endpoint.base_url) if session.process is None else None
        self._failed = failed
        self._outcome = outcome
        self._seen = 0

    async def watch(self, stop: asyncio.Event) -> None:
        """Set `stop` once nobody answers."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await self.ring():
                stop.set()
                return

    async def ring(self) -> bool:
        """Whether the server is gone, which then is noted."""
        failed = self._failed()
        news, self._seen = failed > self._seen, failed
        if self._target is None or not news or await self._opens(self._target):
            return False
        self._outcome.died(f"nobody listens at {self._target.authority} any more", gone=True)
        return True

    async def _opens(self, target: Target) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(target.host, target.port)
        except OSError:  # a timeout included: it does not accept connections
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
