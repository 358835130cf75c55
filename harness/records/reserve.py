"""Room on the disk that is taken in advance, so that a disk that fills up does not cost the rows already collected."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 16 << 20  # rows of some 100,000 requests, compressed, and the report on them


class Reserve:
    """A file of blocks that hold nothing. `release` gives them back when there is something that has to be kept.

    Where room cannot be taken (no such call, or the disk is full already) there is simply none to give.
    """

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self.path = path
        self.held = False
        with suppress(OSError, AttributeError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, size)
                self.held = True
            finally:
                os.close(handle)
        if not self.held:
            path.unlink(missing_ok=True)

    def release(self) -> bool:
        """Whether there was room to give back; the second time there is none."""
        held, self.held = self.held, False
        if held:
            self.path.unlink(missing_ok=True)
        return held
