"""A finished request as it leaves the timed path: raw, stamped, and nothing decoded yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from harness.client.exchange import Exchange, Read
from harness.client.http_head import MalformedResponse, parse_head
from harness.client.sse import Event, SseSplitter

Phase = Literal["warmup", "measure", "drain"]


@dataclass(slots=True)
class RawRecord:
    """Times are monotonic ns, 0 where the thing did not happen."""

    request_id: str
    phase: Phase
    t_intended: int
    t_sent: int
    t_done: int
    end: str  # exchange.End, or "dependency": never sent, since an answer it needs is missing
    detail: str
    head: bytes  # status line and headers as far as they came, empty before the first byte
    http_status: int  # 0 before a whole head
    body_at: int  # the body begins at this offset of the first of `reads`
    reads: list[Read]  # from the read that ends the head on

    @classmethod
    def of(cls, request_id: str, phase: Phase, t_intended: int, exchange: Exchange) -> RawRecord:
        head = exchange.head
        raw = b"" if head is None else b"".join(read[2] for read in exchange.reads[: exchange.body_read + 1])
        return cls(
            request_id,
            phase,
            t_intended,
            exchange.t_sent,
            exchange.t_done,
            exchange.end or "cancelled",
            exchange.detail,
            raw[: len(raw) - len(exchange.reads[exchange.body_read][2]) + exchange.body_at] if head else b"",
            head.status if head else 0,
            exchange.body_at,
            exchange.reads[exchange.body_read :] if head else [],
        )

    @classmethod
    def unsent(cls, request_id: str, phase: Phase, t: int, end: str, detail: str) -> RawRecord:
        return cls(request_id, phase, t, 0, t, end, detail, b"", 0, 0, [])

    def as_tuple(self) -> tuple[Any, ...]:
        return (
            self.request_id,
            self.phase,
            self.t_intended,
            self.t_sent,
            self.t_done,
            self.end,
            self.detail,
            self.head,
            self.http_status,
            self.body_at,
            self.reads,
        )


def payload(head: bytes, body_at: int, reads: list[Read]) -> Iterator[Read]:
    """The stamped pieces of the body, HTTP's framing taken off; stops where the framing breaks."""
    if not head:
        return
    final = head[:-4].split(b"\r\n\r\n")[-1]  # after interim responses
    body = parse_head(final).body()
    start = body_at
    for t_arrival, t_kernel, data in reads:
        sink: list[bytes] = []
        try:
            done = body.feed(data[start:] if start else data, sink)
        except MalformedResponse:
            done = True
        start = 0
        for piece in sink:
            yield t_arrival, t_kernel, piece
        if done:
            return


def events(record: RawRecord) -> tuple[list[Event], bytes | None]:
    """All events of a record, and the data of an unfinished last one."""
    splitter = SseSplitter()
    found = [event for piece in payload(record.head, record.body_at, record.reads) for event in splitter.feed(*piece)]
    return found, splitter.tail()
