"""A server that does exactly what a test says: for each request, a list of steps."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from harness.client.exchange import Exchange
from harness.client.job import Timeouts
from harness.client.pool import Pool
from harness.client.record import RawRecord
from harness.client.target import Target
from harness.client.token_watch import TokenWatch
from harness.engines.openai import OpenAIEngine

Step = bytes | float | str  # send | sleep seconds | "close", "reset", "stall" (until the client goes)
ENGINE = OpenAIEngine()
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, finish: str = "null") -> bytes:
    return b'data: {"id":"x","choices":[{"index":0,"text":"%b","finish_reason":%b}]}\n\n' % (
        text.encode(),
        finish.encode(),
    )


def usage(prompt: int, output: int) -> bytes:
    return b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (prompt, output)


DONE = b"data: [DONE]\n\n"
GOOD = [event("a"), event("b"), event("c", '"stop"'), usage(5, 3), DONE]


@dataclass
class Scripted:
    port: int
    requests: list[bytes] = field(default_factory=list)  # heads and bodies as they came
    connections: int = 0


@contextlib.asynccontextmanager
async def serve(
    scripts: Sequence[Sequence[Step]] | Callable[[int], Sequence[Step]], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Scripted]:
    """Answer the k-th request by the k-th script (the last one again after that)."""
    state = Scripted(0)
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        state.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await _one(reader, writer, state, scripts):
                pass
        with contextlib.suppress(Exception):
            writer.close()
        handlers.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls, limit=1 << 24)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


async def _one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    state: Scripted,
    scripts: Sequence[Sequence[Step]] | Callable[[int], Sequence[Step]],
) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    body = await reader.readexactly(size)
    number = len(state.requests)
    state.requests.append(head + body)
    steps = scripts(number) if callable(scripts) else scripts[min(number, len(scripts) - 1)]
    for step in steps:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif isinstance(step, float):
            await asyncio.sleep(step)
        elif step == "stall":
            await reader.read(1)
            return False
        else:
            if step == "reset":
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            return False
    return True


PATIENT = Timeouts(connect=5.0, first_token=5.0, between_tokens=5.0, total=10.0)


async def exchange(pool: Pool, body: bytes = b"{}") -> Exchange:
    request = pool.target.post("/v1/completions", {}, body)
    return await pool.send(request, TokenWatch(ENGINE))


async def one_record(steps: Sequence[Step], timeouts: Timeouts = PATIENT) -> RawRecord:
    async with serve([steps]) as server:
        pool = Pool(Target.parse(f"http://127.0.0.1:{server.port}"), timeouts)
        await pool.open()
        try:
            return RawRecord.of("r0", "measure", 1, await exchange(pool))
        finally:
            pool.close()
