"""Connections of the timed path. Plain TCP is read from the socket itself, for the kernel's receive stamps; TLS goes
through an asyncio protocol, without stamps. Either stamps user-space arrival before it does anything else.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import Protocol, cast

from harness.client.exchange import Exchange
from harness.client.http_head import MalformedResponse
from harness.client.stamps import ANCILLARY, KernelClock

READ_SIZE = 262_144  # bytes; one read takes all that waits, short of events of several MB

_monotonic_ns = time.monotonic_ns


class Connection(Protocol):
    """One keep-alive connection, one exchange at a time."""

    usable: bool  # open, idle and clean: may carry another exchange

    def start(self, exchange: Exchange, request: bytes) -> None:
        """Send `request` now and fill `exchange`. Errors end the exchange; none is raised."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class _Channel:
    """What both kinds share: from bytes to the end of an exchange."""

    def __init__(self) -> None:
        self.usable = True
        self.exchange: Exchange | None = None

    def _take(self, t_arrival: int, t_kernel: int, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # bytes that nobody asked for: the connection is out of step
            self.abort()
            return
        try:
            complete = exchange.feed(t_arrival, t_kernel, data)
        except MalformedResponse as error:
            self.exchange = None
            exchange.finish("malformed", str(error), t_arrival)
            self.abort()
            return
        if complete:
            self.exchange = None
            exchange.finish("complete", "", t_arrival)
            head, body = exchange.head, exchange.body
            if head is None or body is None or not head.keep_alive or body.excess or self._sending():
                self.abort()
            else:
                self.usable = True

    def _peer_closed(self, detail: str, *, broken: bool) -> None:
        now = _monotonic_ns()
        exchange = self.exchange
        if exchange is not None:
            self.exchange = None
            exchange.closed(detail, now, broken=broken)
        self.abort()

    def _sending(self) -> bool:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError


class PlainConnection(_Channel):
    """A connected non-blocking TCP socket."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, buffer: bytearray, clock: KernelClock
    ) -> None:
        super().__init__()
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._buffer = memoryview(buffer)  # shared by all connections of a loop: a read is copied out before the next
        self._buffers = [self._buffer]
        self._clock = clock
        self._outgoing: memoryview | None = None
        clock.enable(sock)
        loop.add_reader(self._fd, self._readable)

    def start(self, exchange: Exchange, request: bytes) -> None:
        self.usable = False
        self.exchange = exchange
        exchange.t_sent = _monotonic_ns()
        try:
            sent = self._sock.send(request)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._peer_closed(error.strerror or type(error).__name__, broken=True)
            return
        if sent < len(request):
            self._outgoing = memoryview(request)[sent:]
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        if self._outgoing is None:
            return
        try:
            sent = self._sock.send(self._outgoing)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # The peer may have answered before it closed (413, 400): the reader says how this ended.
            self._loop.remove_writer(self._fd)
            return
        self._outgoing = self._outgoing[sent:] if sent < len(self._outgoing) else None
        if self._outgoing is None:
            self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        try:
            size, ancillary, _, _ = self._sock.recvmsg_into(self._buffers, ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._peer_closed(error.strerror or type(error).__name__, broken=True)
            return
        arrival = _monotonic_ns()
        if size:
            self._take(arrival, self._clock.stamp(ancillary, arrival), bytes(self._buffer[:size]))
        else:
            self._peer_closed("the server closed the connection", broken=False)

    def _sending(self) -> bool:
        return self._outgoing is not None

    def abort(self) -> None:
        self.usable = False
        self.exchange = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
            self._sock.close()


class TlsConnection(_Channel, asyncio.Protocol):
    """A TLS connection. Its stamps are user-space only: the kernel sees records, not the bytes inside."""

    def __init__(self) -> None:
        super().__init__()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but not by class

    def start(self, exchange: Exchange, request: bytes) -> None:
        self.usable = False
        self.exchange = exchange
        exchange.t_sent = _monotonic_ns()
        if self._transport is None or self._transport.is_closing():
            self._peer_closed("the connection was closed", broken=True)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        arrival = _monotonic_ns()
        self._take(arrival, 0, bytes(data))

    def eof_received(self) -> bool:
        self._peer_closed("the server closed the connection", broken=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_closed(str(exc) if exc else "the server closed the connection", broken=exc is not None)

    def _sending(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def abort(self) -> None:
        self.usable = False
        self.exchange = None
        if self._transport is not None:
            self._transport.abort()


async def connect_plain(
    loop: asyncio.AbstractEventLoop,
    addresses: list[tuple[socket.AddressFamily, tuple[str, int]]],
    buffer: bytearray,
    clock: KernelClock,
) -> PlainConnection:
    """Connect to the first address that answers; OSError of the last one if none does."""
    failure: OSError = OSError("the name has no address")
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return PlainConnection(loop, sock, buffer, clock)
    raise failure


async def connect_tls(loop: asyncio.AbstractEventLoop, host: str, port: int, context: ssl.SSLContext) -> TlsConnection:
    """OSError (ssl.SSLError included) if no verified connection comes about."""
    _, protocol = await loop.create_connection(TlsConnection, host, port, ssl=context, server_hostname=host)
    return protocol
