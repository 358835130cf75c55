"""Kernel receive stamps, so that the client's own lateness is measured inside every run.

Linux stamps a TCP segment with the wall clock when it enters the network stack (SO_TIMESTAMPNS, software stamps) and
hands the stamp of the last segment of a read to `recvmsg`. t_arrival - t_kernel is then what the client added: the
wake-up, the event loop's queue, the read itself. When one read takes several segments, only the last one's stamp is
known, so the lateness of the earlier ones is understated.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; SCM_TIMESTAMPNS has the same value
ANCILLARY = socket.CMSG_SPACE(16)
_TIMESPEC = struct.Struct("qq")
EARLY_NS = 200_000  # a stamp this much after the read that delivered it comes from a clock that was moved
LATE_NS = 120_000_000_000


class KernelClock:
    """Turns kernel stamps (CLOCK_REALTIME) into this host's monotonic clock, and counts those that cannot be."""

    def __init__(self) -> None:
        self.offset = 0
        self.read = 0
        self.missing = 0
        self.insane = 0
        self.why = "" if sys.platform == "linux" else f"{sys.platform} gives no receive stamps"
        self.refresh()

    def refresh(self) -> None:
        """Sample monotonic - realtime anew: the tightest of a few brackets. Call a few times a second."""
        best: int | None = None
        for _ in range(4):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            if best is None or after - before < best:
                best = after - before
                self.offset = (before + after) // 2 - wall

    def enable(self, sock: socket.socket) -> None:
        """Ask for stamps on this socket; a refusal is kept as the reason, not raised."""
        if self.why:
            return
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError as error:
            self.why = f"the kernel refuses SO_TIMESTAMPNS: {error.strerror}"

    def stamp(self, ancillary: list[tuple[int, int, bytes]], arrival: int) -> int:
        """Monotonic ns of the kernel's receive stamp, 0 where there is none that makes sense."""
        self.read += 1
        if not ancillary:
            self.missing += 1
            return 0
        data = ancillary[0][2]
        if len(data) != 16:
            self.missing += 1
            return 0
        seconds, nanoseconds = _TIMESPEC.unpack(data)
        at: int = seconds * 1_000_000_000 + nanoseconds + self.offset
        if -EARLY_NS <= arrival - at <= LATE_NS:
            return at
        self.insane += 1
        return 0

    def verdict(self) -> tuple[str, str]:
        """(all | sampled | none, why): how many reads of this worker carry a stamp."""
        good = self.read - self.missing - self.insane
        if good == 0:
            return "none", self.why or ("no read carried a receive stamp" if self.read else "nothing was read")
        if good == self.read:
            return "all", ""
        return "sampled", f"{self.missing} of {self.read} reads without a stamp, {self.insane} with an impossible one"
