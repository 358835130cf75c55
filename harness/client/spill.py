"""Finished requests on disk at once, undecoded: a worker that is killed loses only what was in flight.

Each record is a length (uint32, little-endian) and a marshalled tuple, appended by one write. Decoding comes after the
load, in the worker, or in the parent if the worker died; then the file goes.
"""

from __future__ import annotations

import marshal
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from harness.client.record import RawRecord

_LENGTH = struct.Struct("<I")


class Spill:
    """Append-only. OSError from `add` (a full disk) ends the load; what was written stays readable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.count = 0

    def add(self, record: RawRecord) -> None:
        body = marshal.dumps(record.as_tuple())
        view = memoryview(_LENGTH.pack(len(body)) + body)
        while view:
            view = view[os.write(self._fd, view) :]
        self.count += 1

    def close(self) -> None:
        os.close(self._fd)


def read_spill(path: Path) -> Iterator[RawRecord]:
    """The records in the order in which they finished; a last one that was cut is left out."""
    with path.open("rb") as stream:
        while len(size := stream.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(size)
            body = stream.read(length)
            if len(body) < length:
                return
            yield RawRecord(*marshal.loads(body))
