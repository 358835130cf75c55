"""An OpenAI-compatible server that misbehaves on purpose: a list says how each generation request is answered."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
STALL_S = 30.0  # beyond every timeout of a test


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def usage(prompt: int, output: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": output}
    return b"data: " + json.dumps({"id": "x", "choices": [], "usage": counts}).encode() + b"\n\n"


GOOD = [event(" a"), event(" b"), event(" c", "length"), usage(5, 3), b"data: [DONE]\n\n"]


class Scripted(ThreadingHTTPServer):
    """`answers`: for the n-th POST an entry: "ok", "half", "stall", "close", or a status. The last one again after
    that."""

    daemon_threads = True

    def __init__(self, answers: Sequence[str | int], *, key: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.key = key
        self.prompts: list[Any] = []
        self.keys: set[str] = set()
        self.ended = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next(self, prompt: Any) -> str | int:
        with self._lock:
            self.prompts.append(prompt)
            return self.answers[min(len(self.prompts), len(self.answers)) - 1]


class _Handler(BaseHTTPRequestHandler):
    server: Scripted
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._may():
            return
        if self.path == "/v1/models":
            self._say(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]})
        else:
            self._say(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self._may():
            return
        answer = self.server.next(body.get("prompt"))
        if isinstance(answer, int):
            # Some servers quote the request, headers and prompt included, in what they say of it.
            quoted = {"authorization": self.headers.get("authorization"), "prompt": body.get("prompt")}
            self._say(answer, {"error": {"message": f"cannot: {json.dumps(quoted)}"}})
            return
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(HEAD)
            if answer == "ok":
                self.wfile.write(b"".join(GOOD))
                return
            self.wfile.write(GOOD[0])
            if answer == "half":
                self.wfile.write(GOOD[1][: len(GOOD[1]) // 2])
            elif answer == "stall":
                self.server.ended.wait(STALL_S)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test looks at what the client made of it."""

    def _may(self) -> bool:
        given = self.headers.get("authorization", "")
        self.server.keys.add(given)
        if self.server.key and given != f"Bearer {self.server.key}":
            self._say(401, {"error": {"message": "no key"}})
            return False
        return True

    def _say(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)


@contextlib.contextmanager
def scripted(*answers: str | int, key: str = "") -> Iterator[Scripted]:
    server = Scripted(answers or ("ok",), key=key)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Plain(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html><body>It works!</body></html>")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def web_server() -> Iterator[str]:
    """The URL of a server that answers everything with a page of HTML."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Plain)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
