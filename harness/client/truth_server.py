"""A server whose token times are known: it sends on schedule and records when it really sent.

The client's error is then a difference between two stamps of one clock, event by event, with no assumption about how
punctual this server is. It speaks /v1/completions as engines do, one event a token; token times are its arguments.

`python -m harness.client.truth_server [--port N] [--first S] [--gap S]` prints its URL as one line. `GET /truth` gives
{"<index of the answer>": [t_request, [t_send, …]]} in monotonic ns and clears the record; the index is in each event's
`id`. Stamps are taken just before the kernel is given the bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import json
import socket
import sys
import time
from dataclasses import dataclass, field

from harness.client.alarm import Alarm

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Answer:
    """One stream under way."""

    index: int
    sock: socket.socket
    tokens: int
    t_request: int
    prompt_tokens: int
    with_ids: bool  # `return_token_ids` was asked: token number n has id 1000 + n
    sent: list[int] = field(default_factory=list)

    def event(self, number: int) -> bytes:
        finish = b'"length"' if number == self.tokens - 1 else b"null"
        ids = b',"token_ids":[%d]' % (1000 + number) if self.with_ids else b""
        document = (
            b'{"id":"truth-%d","object":"text_completion","created":0,"model":"truth","choices":[{"index":0,'
            b'"text":" t%d","logprobs":null,"finish_reason":%b%b}]}' % (self.index, number, finish, ids)
        )
        return _chunk(b"data: " + document + b"\n\n")

    def end(self) -> bytes:
        usage = (
            b'{"id":"truth-%d","object":"text_completion","created":0,"model":"truth","choices":[],"usage":'
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'
            % (self.index, self.prompt_tokens, self.tokens, self.prompt_tokens + self.tokens)
        )
        return _chunk(b"data: " + usage + b"\n\n") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class TruthServer:
    """Listens on loopback. Sockets are written directly: a transport would send at the end of the loop's turn."""

    def __init__(self, *, first_s: float, gap_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._first = round(first_s * 1e9)
        self._gap = round(gap_s * 1e9)
        self._heap: list[tuple[int, int, int]] = []  # (due ns, answer, token)
        self._answers: dict[int, Answer] = {}
        self._next = 0
        self._armed = 0
        self._alarm = Alarm(self._loop, self._ring)
        self._requests: dict[socket.socket, bytearray] = {}
        self._done: dict[int, tuple[int, list[int]]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)

    def listen(self, port: int = 0) -> str:
        """Begin to serve; the base URL."""
        if port:
            self._listener.close()
            self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._alarm.close()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for sock in list(self._requests):
            self._drop(sock)

    def truth(self) -> dict[int, tuple[int, list[int]]]:
        """Finished answers so far: index -> (t_request, one stamp a token), monotonic ns; then forgets them."""
        done, self._done = self._done, {}
        return done

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._requests[sock] = bytearray()
            self._loop.add_reader(sock.fileno(), self._readable, sock)

    def _readable(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(262_144)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._drop(sock)
            return
        request = self._requests[sock]
        request += data
        end = request.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(request[:end]).lower()
        if head.startswith(b"get "):
            request.clear()
            self._get(sock, head)
            return
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(request) < end + 4 + size:
            return
        body = json.loads(bytes(request[end + 4 : end + 4 + size]))
        del request[: end + 4 + size]
        self._begin(sock, body, time.monotonic_ns())

    def _get(self, sock: socket.socket, head: bytes) -> None:
        body = json.dumps(self.truth() if b"/truth" in head.split(b"\r\n")[0] else {"data": []}).encode()
        sock.setblocking(True)
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
        sock.sendall(b"content-length: %d\r\n\r\n" % len(body) + body)
        self._drop(sock)

    def _begin(self, sock: socket.socket, body: dict[str, object], now: int) -> None:
        prompt = body.get("prompt")
        tokens = int(str(body.get("max_tokens", 16)))
        size = len(prompt) if isinstance(prompt, list | str) else 0
        answer = Answer(self._next, sock, tokens, now, size, bool(body.get("return_token_ids")))
        self._next += 1
        self._answers[answer.index] = answer
        self._send(answer, _HEAD)
        heapq.heappush(self._heap, (now + self._first, answer.index, 0))
        self._arm()

    def _arm(self) -> None:
        if self._heap and self._heap[0][0] != self._armed:
            self._armed = self._heap[0][0]
            self._alarm.set(self._armed)

    def _ring(self) -> None:
        self._armed = 0
        now = time.monotonic_ns()
        while self._heap and self._heap[0][0] <= now:
            due, index, number = heapq.heappop(self._heap)
            answer = self._answers.get(index)
            if answer is None:
                continue
            event = answer.event(number)
            answer.sent.append(time.monotonic_ns())
            if not self._send(answer, event):
                continue
            if number + 1 < answer.tokens:
                heapq.heappush(self._heap, (due + self._gap, index, number + 1))
            elif self._send(answer, answer.end()):
                del self._answers[index]
                self._done[index] = (answer.t_request, answer.sent)
        self._arm()

    def _send(self, answer: Answer, data: bytes) -> bool:
        """False after the client went away. A client that does not read (a full buffer) counts as gone too."""
        try:
            whole = answer.sock.send(data) == len(data)
        except OSError:
            whole = False
        if not whole:
            self._answers.pop(answer.index, None)
            self._drop(answer.sock)
        return whole

    def _drop(self, sock: socket.socket) -> None:
        if self._requests.pop(sock, None) is not None:
            self._loop.remove_reader(sock.fileno())
            sock.close()


def main(argv: list[str]) -> int:
    import uvloop

    parser = argparse.ArgumentParser(prog="truth_server", description="a server whose token times are known")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first", type=float, default=0.1, help="seconds from request to first token")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between tokens")
    options = parser.parse_args(argv)

    async def serve() -> None:
        server = TruthServer(first_s=options.first, gap_s=options.gap)
        print(server.listen(options.port), flush=True)
        gc.freeze()
        gc.disable()
        await asyncio.Event().wait()

    uvloop.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
