"""A call at a given monotonic nanosecond. uvloop's own timers count whole milliseconds, which at 500 requests a second
is an error as large as the gap; on Linux the kernel's timerfd wakes the loop to the microsecond instead.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000
_TFD_TIMER_ABSTIME = 1
_ITIMERSPEC = struct.Struct("qqqq")  # interval (s, ns), value (s, ns): 64-bit Linux


class Alarm:
    """One pending call at most; setting a new time replaces the old one. The call comes at or after its time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._due = 0
        self._handle: asyncio.TimerHandle | None = None
        self._fd = _timerfd()
        if self._fd >= 0:
            loop.add_reader(self._fd, self._ring)

    def set(self, t: int) -> None:
        """Ring at monotonic ns `t`, at once if that is past."""
        self._due = t
        if self._fd >= 0:
            # A value of zero would disarm the timer.
            at = max(t, 1)
            spec = _ITIMERSPEC.pack(0, 0, at // 1_000_000_000, at % 1_000_000_000)
            _libc().timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, spec, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0.0, (t - time.monotonic_ns()) / 1e9), self._tick)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._call()

    def _tick(self) -> None:
        if time.monotonic_ns() < self._due:  # a timer that is rounded down
            self._handle = self._loop.call_later(0.001, self._tick)
        else:
            self._call()


def _timerfd() -> int:
    """A timer's descriptor, -1 where the platform has none."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return -1
    try:
        fd: int = _libc().timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
    except (OSError, AttributeError):
        return -1
    return fd


_LIBC: list[ctypes.CDLL] = []


def _libc() -> ctypes.CDLL:
    if not _LIBC:
        _LIBC.append(ctypes.CDLL(None, use_errno=True))
    return _LIBC[0]
