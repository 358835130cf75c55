"""The end of a log: its last lines, and those of them that say why it ended."""

from __future__ import annotations

import re
from pathlib import Path

TAIL_BYTES = 64_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# "ValueError: …", "torch.OutOfMemoryError: …", "error: unrecognized arguments …" name a cause; a stack frame does not.
_CAUSE = re.compile(r"(\b[\w.]*(?:Error|Exception|Interrupt)\b: ?\S)|(\berror: )|(\bKilled\b)|(No space left)")
_WRAPPER = re.compile(r"Engine core initialization failed|failed core proc|See root cause above|Engine process failed")
_NOISE = re.compile(r"^\s*$|^\s+[\^~]+\s*$|^\s*File \"|leaked \w+ objects|\bWARNING\b|Warning: ")
# What loggers put first: "(EngineCore pid=7) ERROR 12-01 01:13:43 [core.py:1510] ",
# "[2026-12-01 01:13:43] ".
_PREFIX = re.compile(
    r"^(?:\(\w[\w-]* pid=\d+\) )?"
    r"(?:(?:ERROR|INFO|CRITICAL) [\d-]+ [\d:]+ \[[\w.]+:\d+\] )?"
    r"(?:\[[\d-]+ [\d:]+[^\]]*\] )?"
)


def tail(log: Path, lines: int) -> list[str]:
    """The last lines that are not blank, without colours; empty if there is no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    found = [_ANSI.sub("", line).rstrip() for line in text.splitlines()]
    return [line for line in found if not _NOISE.search(line)][-lines:]


def telling_lines(log: Path, lines: int = 2, width: int = 300) -> list[str]:
    """The last lines that name a cause, wrappers of another error left out; else simply the last ones."""
    last = tail(log, 400)
    causes = [line for line in last if _CAUSE.search(line) and not _WRAPPER.search(line)]
    chosen = [_PREFIX.sub("", line).strip()[:width] for line in causes or last]
    return list(dict.fromkeys(chosen))[-lines:]
