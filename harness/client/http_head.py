"""Response heads and body framing of HTTP/1.1 (RFC 9112), cheap enough for the timed path, strict about lies.

The same framing runs twice: in line, only to see where a body ends, and again after the request is done, with a sink,
to take the payload out of the chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

HEAD_LIMIT = 65536  # bytes; a longer head is not one
_CHUNK_LINE_LIMIT = 4096
_HEX = frozenset(b"0123456789abcdefABCDEF")
_DIGITS = frozenset(b"0123456789")
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


_SIZES: dict[bytes, int] = {}  # size lines that were found valid; at most 4 bytes, so at most 65,535 x 3 of them


class MalformedResponse(Exception):
    """The peer does not speak HTTP/1.1: what is wrong, in a few words."""


class Body(Protocol):
    """Finds the end of a body."""

    def feed(self, data: bytes, sink: list[bytes] | None = None) -> bool:
        """Take the next bytes; True once the body is complete. Payload goes to `sink`."""
        ...

    def close(self) -> bool:
        """The peer closed its side: True if the body is complete by that."""
        ...

    excess: int  # bytes after the end of the body


class LengthBody:
    """content-length: exactly `remaining` bytes."""

    def __init__(self, length: int) -> None:
        self.remaining = length
        self.excess = 0

    def feed(self, data: bytes, sink: list[bytes] | None = None) -> bool:
        size = len(data)
        if size > self.remaining:
            self.excess += size - self.remaining
            data, size = data[: self.remaining], self.remaining
        if sink is not None and size:
            sink.append(data)
        self.remaining -= size
        return self.remaining == 0

    def close(self) -> bool:
        return self.remaining == 0


class CloseBody:
    """No framing: the body ends when the peer closes."""

    excess = 0

    def feed(self, data: bytes, sink: list[bytes] | None = None) -> bool:
        if sink is not None and data:
            sink.append(data)
        return False

    def close(self) -> bool:
        return True


class ChunkedBody:
    """transfer-encoding: chunked. Servers usually send one event a chunk, so the common read is one whole chunk."""

    def __init__(self) -> None:
        self.excess = 0
        self._between = True  # a size line is due
        self._remaining = 0  # payload bytes left in this chunk
        self._crlf = False  # the CRLF after a chunk's payload is due
        self._trailer = False  # after the last chunk
        self._line = b""  # a line that was cut
        self._done = False

    def feed(self, data: bytes, sink: list[bytes] | None = None) -> bool:
        if self._line:
            data = self._line + data
            self._line = b""
        at, size = 0, len(data)
        while self._between and at < size:
            # The common case, kept short: a whole chunk, whose size line was seen before, is in this read.
            end = data.find(b"\r\n", at)
            length = _SIZES.get(data[at:end], 0)
            stop = end + 2 + length
            if end < 0 or not length or data[stop : stop + 2] != b"\r\n":
                break
            if sink is not None:
                sink.append(data[end + 2 : stop])
            at = stop + 2
        while at < size and not self._done:
            if self._remaining:
                take = min(self._remaining, size - at)
                if sink is not None:
                    sink.append(data[at : at + take])
                at += take
                self._remaining -= take
                self._crlf = self._remaining == 0
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._cut(data[at:])
                return False
            self._take_line(data[at:end])
            at = end + 2
        if self._done:
            self.excess += size - at
        return self._done

    def _cut(self, line: bytes) -> None:
        if self._crlf and line != b"\r":
            raise MalformedResponse("a chunk is longer than its size says")
        if len(line) > _CHUNK_LINE_LIMIT:
            raise MalformedResponse("a chunk size line has no end")
        if not (self._crlf or self._trailer) and line[0] not in _HEX:
            raise MalformedResponse(f"a chunk size is not hexadecimal: {line[:16]!r}")
        self._line = line

    def _take_line(self, line: bytes) -> None:
        if self._crlf:
            if line:
                raise MalformedResponse("a chunk is longer than its size says")
            self._crlf = False
            self._between = True
        elif self._trailer:
            if not line:
                self._done = True
            elif len(line) > _CHUNK_LINE_LIMIT:
                raise MalformedResponse("a trailer line is too long")
        else:
            digits = line.partition(b";")[0].rstrip(b" \t")
            if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
                raise MalformedResponse(f"a chunk size is not hexadecimal: {line[:16]!r}")
            self._remaining = int(digits, 16)
            self._trailer = self._remaining == 0
            self._between = False
            if len(line) <= 4 and self._remaining:
                _SIZES[bytes(line)] = self._remaining

    def close(self) -> bool:
        return self._done


@dataclass(frozen=True)
class Head:
    """A response head. Header names are lower case; repeated ones are joined by a comma."""

    status: int
    version: bytes
    headers: Mapping[str, str]

    @property
    def keep_alive(self) -> bool:
        tokens = {part.strip().lower() for part in self.headers.get("connection", "").split(",")}
        if self.version == b"HTTP/1.0":
            return "keep-alive" in tokens
        return "close" not in tokens

    def body(self) -> Body:
        """How this response's body ends. MalformedResponse for framing that contradicts itself."""
        if self.status in (204, 304):
            return LengthBody(0)
        length = self.headers.get("content-length")
        coding = self.headers.get("transfer-encoding")
        if coding is not None:
            if length is not None:
                raise MalformedResponse("both transfer-encoding and content-length")
            if coding.strip().lower() != "chunked":
                raise MalformedResponse(f"transfer-encoding {coding[:40]!r} is not chunked")
            return ChunkedBody()
        if length is None:
            return CloseBody()
        values = {part.strip() for part in length.split(",")}
        value = values.pop()
        if values or not value or len(value) > 18 or not _DIGITS.issuperset(value.encode("latin-1")):
            raise MalformedResponse(f"content-length {length[:40]!r} is not one number")
        return LengthBody(int(value))


def parse_head(raw: bytes) -> Head:
    """Parse a head without its final blank line. MalformedResponse if it is none."""
    status_line, *lines = raw.split(b"\r\n")
    version, _, rest = status_line.partition(b" ")
    code, _, _ = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not _DIGITS.issuperset(code):
        raise MalformedResponse(f"not an HTTP/1.1 status line: {status_line[:40]!r}")
    if not 100 <= int(code) <= 599:
        raise MalformedResponse(f"status {int(code)} does not exist")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or not _TOKEN.issuperset(name):
            raise MalformedResponse(f"not a header line: {line[:40]!r}")
        key = name.decode("ascii").lower()
        text = value.strip(b" \t").decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return Head(int(code), version, headers)
