"""Ends an engine whose parent is gone. Run by file name, standard library only; nothing imports it but its test.

It reads its standard input, the other end of which only the parent holds: one line names the engine's session, a line
`done` means that the parent has stopped the engine itself. End of file without it means that the parent was killed,
and the whole session is ended, SIGTERM first. That works from any thread, on any Unix, and for grandchildren too,
which a parent-death signal does not.
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_S = 5.0


def members(session: int) -> list[int]:
    """Process ids of the session, read from /proc; the leader alone where there is no /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        pids = [session]
    found = []
    for pid in pids:
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except OSError:
            continue
    return found


def running(session: int) -> list[int]:
    """Members that are not zombies: those only wait to be reaped."""
    alive = []
    for pid in members(session):
        try:
            with open(f"/proc/{pid}/stat", "rb") as stream:
                state = stream.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            state = b"?"
        if state not in (b"Z", b"X"):
            alive.append(pid)
    return alive


def signal_session(session: int, number: int) -> None:
    """Send a signal to every member, those that left the leader's process group included."""
    for pid in members(session):
        try:
            os.kill(pid, number)
        except OSError:
            continue


def end_session(session: int, grace_s: float = GRACE_S) -> None:
    """SIGTERM, and SIGKILL to what is left after `grace_s` seconds."""
    signal_session(session, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        if not running(session):
            return
        time.sleep(0.05)
    signal_session(session, signal.SIGKILL)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the parent's end counts
    session = 0
    for line in sys.stdin:
        if line.strip() == "done":
            return 0
        session = int(line)
    if session > 1:
        end_session(session)
    return 0


if __name__ == "__main__":
    sys.exit(main())
