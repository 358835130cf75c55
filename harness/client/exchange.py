"""One request and its response on the timed path: bytes are stamped and appended, nothing else is looked at."""

from __future__ import annotations

import asyncio
from typing import Literal

from harness.client.http_head import HEAD_LIMIT, Body, Head, MalformedResponse, parse_head

Read = tuple[int, int, bytes]  # t_arrival, t_kernel (monotonic ns; 0 is no stamp), bytes as they came
End = Literal[
    "complete",  # the response's framing says that it is whole
    "cut",  # the peer closed before the end
    "reset",  # the connection broke before the end
    "connect",  # no connection
    "connect_refused",
    "malformed",  # not HTTP
    "timeout_connect",
    "timeout_first_token",
    "timeout_between_tokens",
    "timeout_total",
    "cancelled",
]


class Exchange:
    """Filled by a connection. `future` resolves, without a value, when `end` is set."""

    __slots__ = (
        "_seen",
        "body",
        "body_at",
        "body_read",
        "detail",
        "end",
        "future",
        "head",
        "reads",
        "t_done",
        "t_sent",
    )

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.reads: list[Read] = []
        self.head: Head | None = None
        self.body: Body | None = None
        self.body_read = 0  # the body begins in this read …
        self.body_at = 0  # … at this offset
        self.t_sent = 0
        self.t_done = 0
        self.end: End | None = None
        self.detail = ""
        self._seen = 0  # bytes before the current read, while the head is incomplete

    def feed(self, t_arrival: int, t_kernel: int, data: bytes) -> bool:
        """Take one read; True when the response is complete. MalformedResponse if it is not HTTP."""
        self.reads.append((t_arrival, t_kernel, data))
        if self.body is not None:
            return self.body.feed(data)
        return self._feed_head(data)

    def _feed_head(self, data: bytes) -> bool:
        raw = data if len(self.reads) == 1 else b"".join(read[2] for read in self.reads)
        start = 0
        while True:
            end = raw.find(b"\r\n\r\n", start)
            if end < 0:
                if len(raw) - start > HEAD_LIMIT:
                    raise MalformedResponse("the response head has no end")
                if len(raw) - start >= 5 and not raw.startswith(b"HTTP/", start):
                    raise MalformedResponse(f"not an HTTP/1.1 status line: {raw[start : start + 40]!r}")
                self._seen += len(data)
                return False
            head = parse_head(raw[start:end])
            if head.status == 101:
                raise MalformedResponse("the server switched protocols")
            start = end + 4
            if head.status >= 200:
                break
        self.head = head
        self.body = head.body()
        self.body_read = len(self.reads) - 1
        self.body_at = start - self._seen
        rest = raw[start:]
        return self.body.feed(rest)

    def closed(self, detail: str, t_done: int, *, broken: bool) -> None:
        """The peer ended the connection (`broken`: by a reset)."""
        if self.body is not None and self.body.close() and not broken:
            self.finish("complete", "", t_done)
        else:
            self.finish("reset" if broken else "cut", detail, t_done)

    def finish(self, end: End, detail: str, t_done: int) -> None:
        """Set the outcome once; later calls change nothing."""
        if self.end is None:
            self.end = end
            self.detail = detail
            self.t_done = t_done
            if not self.future.done():
                self.future.set_result(None)
