"""The pool of keep-alive connections: one request in, one finished exchange out, whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable

from harness.client.exchange import Exchange
from harness.client.job import Timeouts
from harness.client.stamps import KernelClock
from harness.client.target import Target
from harness.client.transport import READ_SIZE, Connection, connect_plain, connect_tls
from harness.records.errors import InfrastructureError

LastToken = Callable[[Exchange], int]
"""Monotonic ns of the last event with a token so far, 0 before the first. Asked only when a timeout might be due."""


class Pool:
    """Connections to one target. `send` never raises for what the network or the server does."""

    def __init__(self, target: Target, timeouts: Timeouts, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.timeouts = timeouts
        self.clock = KernelClock()
        if target.tls:
            self.clock.why = "TLS: the kernel sees records, not events"
        self.reconnects = 0
        self._tls = tls or (ssl.create_default_context() if target.tls else None)
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._buffer = bytearray(READ_SIZE)
        self._addresses: list[tuple[socket.AddressFamily, tuple[str, int]]] = []

    async def open(self, connections: int = 0) -> None:
        """Resolve the name once and connect ahead, so that neither is on the timed path.

        InfrastructureError if the name does not resolve. A server that refuses is left to the requests, which then
        become rows.
        """
        target = self.target
        try:
            found = await self._loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise InfrastructureError(
                f"{target.host} does not resolve: {error.strerror or error}", mend="check the engine's URL"
            ) from None
        self._addresses = [(row[0], row[4]) for row in found if row[0] in (socket.AF_INET, socket.AF_INET6)]  # type: ignore[misc]
        for _ in range(connections):
            try:
                async with asyncio.timeout(self.timeouts.connect):
                    self._idle.append(await self._connect())
            except (OSError, TimeoutError):
                return

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def send(
        self,
        request: bytes,
        last_token: LastToken | None = None,
        begin: Callable[[Exchange], None] | None = None,
    ) -> Exchange:
        """Send and wait for the end. A kept-alive connection that the server had closed is replaced once.

        `begin` is given the exchange before anything is sent, for those who watch it grow.
        """
        exchange = self._new(begin)
        connection = self._take_idle()
        reused = connection is not None
        if connection is None:
            connection = await self._fresh(exchange)
        if connection is not None:
            exchange = await self._drive(connection, exchange, request, last_token)
            stale = reused and exchange.end in ("cut", "reset") and not exchange.reads
            if stale:
                self.reconnects += 1
                exchange = self._new(begin)
                connection = await self._fresh(exchange)
                if connection is not None:
                    exchange = await self._drive(connection, exchange, request, last_token)
        return exchange

    def _new(self, begin: Callable[[Exchange], None] | None) -> Exchange:
        exchange = Exchange(self._loop.create_future())
        if begin is not None:
            begin(exchange)
        return exchange

    async def _drive(
        self, connection: Connection, exchange: Exchange, request: bytes, last_token: LastToken | None
    ) -> Exchange:
        connection.start(exchange, request)
        watch = _Watch(self._loop, exchange, self.timeouts, last_token)
        try:
            await exchange.future
        except asyncio.CancelledError:
            # Cancelled by the dispatcher's stop: the row is kept, so the cancellation ends here.
            exchange.finish("cancelled", "stopped", time.monotonic_ns())
        finally:
            watch.cancel()
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.abort()
        return exchange

    async def _fresh(self, exchange: Exchange) -> Connection | None:
        """A new connection; None after a failure, which then is the exchange's end."""
        try:
            async with asyncio.timeout(self.timeouts.connect):
                return await self._connect()
        except TimeoutError:
            exchange.finish("timeout_connect", f"no connection within {self.timeouts.connect:g} s", time.monotonic_ns())
        except ConnectionRefusedError:
            exchange.finish("connect_refused", "connection refused", time.monotonic_ns())
        except OSError as error:
            reason = getattr(error, "verify_message", "") or error.strerror or type(error).__name__
            exchange.finish("connect", str(reason), time.monotonic_ns())
        except asyncio.CancelledError:
            exchange.finish("cancelled", "stopped while connecting", time.monotonic_ns())
        return None

    async def _connect(self) -> Connection:
        if self._tls is not None:
            return await connect_tls(self._loop, self.target.host, self.target.port, self._tls)
        return await connect_plain(self._loop, self._addresses, self._buffer, self.clock)

    def _take_idle(self) -> Connection | None:
        """The most recently used connection that is still open: the least likely to be closed by the server."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None


class _Watch:
    """Timeouts of one exchange by one lazy timer: a read never touches a timer, an expiry looks when it must be set."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Exchange,
        timeouts: Timeouts,
        last_token: LastToken | None,
    ) -> None:
        self._loop = loop
        self._exchange = exchange
        self._timeouts = timeouts
        self._last_token = last_token
        # Looking at least every `between_tokens` finds each last token while its own limit still runs.
        self._handle = loop.call_later(
            min(timeouts.first_token, timeouts.between_tokens, timeouts.total), self._expired
        )

    def cancel(self) -> None:
        self._handle.cancel()

    def _expired(self) -> None:
        exchange, limits = self._exchange, self._timeouts
        now = time.monotonic_ns()
        last = self._newest()
        total = exchange.t_sent + int(limits.total * 1e9)
        if last:
            due, end, seconds = last + int(limits.between_tokens * 1e9), "timeout_between_tokens", limits.between_tokens
        else:
            due, end, seconds = (
                exchange.t_sent + int(limits.first_token * 1e9),
                "timeout_first_token",
                limits.first_token,
            )
        if total <= due:
            due, end, seconds = total, "timeout_total", limits.total
        if now >= due:
            words = {
                "timeout_between_tokens": "no further token within",
                "timeout_first_token": "no token within",
                "timeout_total": "not finished within",
            }
            exchange.finish(end, f"{words[end]} {seconds:g} s", now)  # type: ignore[arg-type]
        else:
            wait = min((due - now) / 1e9 + 0.001, limits.between_tokens)
            self._handle = self._loop.call_later(wait, self._expired)

    def _newest(self) -> int:
        if self._last_token is not None:
            return self._last_token(self._exchange)
        return self._exchange.reads[-1][0] if self._exchange.body is not None and self._exchange.reads else 0
