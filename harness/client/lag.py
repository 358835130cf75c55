"""How late the client itself was: its event loop, and its sends against the schedule."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from harness.client.alarm import Alarm

_TICK_NS = 20_000_000


class LoopLag:
    """Lateness of a periodic call, which is what any ready read would have waited at that moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.samples: list[int] = []
        self._due = time.monotonic_ns() + _TICK_NS
        self._alarm = Alarm(loop, self._ring)
        self._alarm.set(self._due)

    def _ring(self) -> None:
        now = time.monotonic_ns()
        self.samples.append(now - self._due)
        # Ticks that a stall swallowed would have been late by what was left of it.
        missed = self._due + _TICK_NS
        while missed < now:
            self.samples.append(now - missed)
            missed += _TICK_NS
        self._due = missed
        self._alarm.set(missed)

    def close(self) -> None:
        self._alarm.close()


def p99_ms(samples_ns: Sequence[int]) -> float | None:
    """Nearest-rank 99th percentile in ms, None without samples."""
    if not samples_ns:
        return None
    ordered = sorted(samples_ns)
    rank = -(-len(ordered) * 99 // 100)
    return ordered[rank - 1] / 1e6
