"""Server-sent events out of a stamped stream, after the request is done (WHATWG HTML, "Server-sent events").

An event is complete at its blank line, before which a client must not act on it; it carries the stamps of the read
that brought the last byte of that line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_BLANK = re.compile(rb"\n\r?\n")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event. `size` is its bytes on the wire, framing of SSE included, HTTP's not."""

    data: bytes
    t_arrival: int
    t_kernel: int
    size: int


class SseSplitter:
    """Feed stamped pieces, take events. Lines end in LF or CRLF; a bare CR, which no engine sends, is payload."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0  # of the held bytes, those that begin no blank line
        self._begun = False

    def feed(self, t_arrival: int, t_kernel: int, piece: bytes) -> list[Event]:
        """The events that this piece completes."""
        if (
            self._begun
            and not self._held
            and piece.startswith(b"data:")
            and piece.endswith(b"\n\n")
            and piece.find(b"\n") == len(piece) - 2
        ):  # the common case, kept short: the piece is one whole event of one line
            return [Event(_value(piece[5:-2]), t_arrival, t_kernel, len(piece))]
        if not self._begun:
            piece = bytes(self._held) + piece
            self._held.clear()
            if len(piece) < 3 and _BOM.startswith(piece):
                self._held += piece
                return []
            self._begun = True
            piece = piece.removeprefix(_BOM)
        whole: bytes | bytearray = piece
        if self._held:
            self._held += piece
            whole = self._held
        events = []
        at = 0
        search = self._searched
        while (found := _BLANK.search(whole, search)) is not None:
            data = event_data(bytes(whole[at : found.start()]))
            if data is not None:
                events.append(Event(data, t_arrival, t_kernel, found.end() - at))
            at = search = found.end()
        if whole is self._held:
            del self._held[:at]
        else:
            self._held += whole[at:]
        self._searched = max(0, len(self._held) - 2)  # a blank line has at most 3 bytes
        return events

    def tail(self) -> bytes | None:
        """Data of a last event whose blank line never came, None if there is none."""
        return event_data(bytes(self._held))


def event_data(block: bytes) -> bytes | None:
    """The data of one event's lines, joined by LF; None for comments and events without data."""
    if block.startswith(b"data:") and b"\n" not in block:
        return _value(block[5:])
    parts = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            parts.append(_value(line[5:]))
        elif line.rstrip(b"\r") == b"data":
            parts.append(b"")
    return b"\n".join(parts) if parts else None


def _value(raw: bytes) -> bytes:
    raw = raw.removesuffix(b"\r")
    return raw[1:] if raw.startswith(b" ") else raw


def split(pieces: Iterable[tuple[int, int, bytes]]) -> tuple[list[Event], bytes | None]:
    """All events of a stream and the data of an unfinished last one."""
    splitter = SseSplitter()
    events = [event for piece in pieces for event in splitter.feed(*piece)]
    return events, splitter.tail()
