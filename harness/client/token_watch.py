"""When the last token of a running stream came: asked only by a timeout that may be due, so it costs reads nothing.

Comments and empty events keep a connection busy without being tokens; a stall behind them must still time out.
"""

from __future__ import annotations

from harness.client.exchange import Exchange
from harness.client.http_head import Body, MalformedResponse
from harness.client.outcome import decode_event
from harness.client.sse import SseSplitter
from harness.client.tokens import ANSWER
from harness.engines.protocol import Engine


class TokenWatch:
    """One per request; reads each byte of the stream once, however often it is asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._splitter = SseSplitter()
        self._body: Body | None = None
        self._next = 0
        self._last = 0

    def __call__(self, exchange: Exchange) -> int:
        """Monotonic ns of the last event that took the answer further, 0 before the first token."""
        if exchange.head is None:
            return 0
        start = 0
        if self._body is None:
            self._body = exchange.head.body()
            self._next, start = exchange.body_read, exchange.body_at
        for t_arrival, t_kernel, data in exchange.reads[self._next :]:
            self._next += 1
            sink: list[bytes] = []
            try:
                self._body.feed(data[start:], sink)
            except MalformedResponse:
                break
            start = 0
            for piece in sink:
                for event in self._splitter.feed(t_arrival, t_kernel, piece):
                    delta = decode_event(self._engine, event.data)
                    token = delta.kind in ANSWER and bool(delta.text or delta.token_ids or delta.n_tokens)
                    # Behind the last token a stream goes on to its finish reason, usage and [DONE].
                    if token or (self._last and (delta.finish_reason or delta.kind in ("usage", "done"))):
                        self._last = event.t_arrival
        return self._last
