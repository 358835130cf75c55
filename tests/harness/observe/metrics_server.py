"""A real HTTP server on loopback that answers with what a test puts into it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes]


@dataclass
class MetricsServer:
    """`answer` is asked once a request and given its number, from 1."""

    answer: Callable[[int], Answer]
    gzipped: bool = False
    cut_at: int | None = None  # bytes sent of those announced
    drip_s: float = 0.0  # pause after each byte
    drip_headers: bool = False  # begin to drip with a header without end
    url: str = ""
    requests: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(state: MetricsServer) -> Iterator[MetricsServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests += 1
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, body = state.answer(state.requests)
            body = gzip.compress(body) if state.gzipped else body
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            if state.drip_headers:
                self.flush_headers()
                body = b"x-slow: " + b"a" * 10_000
            elif state.gzipped:
                self.send_header("content-encoding", "gzip")
            if not state.drip_headers:
                self.end_headers()
            if not state.drip_s:
                self.wfile.write(body[: state.cut_at])
                return
            for at in range(len(body)):
                if state.closing.wait(state.drip_s):
                    return
                self.wfile.write(body[at : at + 1])

        def log_message(self, *_: object) -> None:
            """Nothing on the test's output."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Clients that hang up are what some tests are about."""

    server = Quiet(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/metrics"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
