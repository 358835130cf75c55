"""A server that answers like an engine, page by page as a test writes them, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Scripted:
    """`pages` are served one a scrape, the last one over and over. `documents`: path -> JSON; `key`: what it wants."""

    pages: Sequence[str] = ()
    documents: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    scrapes: int = 0
    hold: int = 1  # how many scrapes of detection and description get the first page before the watch begins

    def page(self) -> str | None:
        if not self.pages:
            return None
        at = max(self.scrapes - self.hold, 0)
        self.scrapes += 1
        return self.pages[min(at, len(self.pages) - 1)]


@contextmanager
def serving(script: Scripted) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            script.asked.append((self.command, path))
            if script.key and self.headers.get("authorization") != f"Bearer {script.key}":
                return self._send(401, b'{"error": "unauthorized"}')
            if path == "/metrics":
                page = script.page()
                return self._send(404, b"") if page is None else self._send(200, page.encode())
            if path in script.documents:
                return self._send(200, json.dumps(script.documents[path]).encode())
            return self._send(404, b"{}")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def page(values: Mapping[str, float]) -> str:
    """Exposition text; a key is a name with its labels, as on the wire."""
    return "".join(f"{name} {value}\n" for name, value in values.items())
