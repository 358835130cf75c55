"""Finished requests on disk at once, undecoded: a worker that is killed loses only what was in flight.

Each record is a length (uint32, little-endian) and a marshalled tuple, appended by one write. Decoding comes after the
load, in the worker, or in the parent if the worker died; then the file goes. Room for the rows to come is taken in
advance: on a full disk the record that did not fit goes into it, and so do the rows.
"""

from __future__ import annotations

import marshal
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from harness.client.record import RawRecord
from harness.records.reserve import Reserve

_LENGTH = struct.Struct("<I")


def room_file(spill: Path) -> Path:
    """Where the room of a spill file is held; of a worker that was killed it is left to whoever decodes its spill."""
    return spill.with_suffix(".room")


class Spill:
    """Append-only. OSError from `add` ends the load; what was written stays readable, and on a disk that has just
    become full the record itself is written too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = 0  # bytes of whole records
        self._reserve = Reserve(room_file(path))
        self.count = 0

    def add(self, record: RawRecord) -> None:
        body = marshal.dumps(record.as_tuple())
        packed = _LENGTH.pack(len(body)) + body
        try:
            self._append(packed)
        except OSError:
            os.ftruncate(self._fd, self._size)  # half a record would make all that follow unreadable
            if self._reserve.release():
                self._append(packed)
            raise

    def close(self) -> None:
        """From here on the disk must take the rows as well."""
        os.close(self._fd)
        self._reserve.release()

    def _append(self, packed: bytes) -> None:
        view = memoryview(packed)
        while view:
            view = view[os.write(self._fd, view) :]
        self._size += len(packed)
        self.count += 1


def read_spill(path: Path) -> Iterator[RawRecord]:
    """The records in the order in which they finished; a last one that was cut is left out."""
    with path.open("rb") as stream:
        while len(size := stream.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(size)
            body = stream.read(length)
            if len(body) < length:
                return
            yield RawRecord(*marshal.loads(body))
