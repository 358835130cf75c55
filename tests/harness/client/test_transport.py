"""Real sockets: framing, keep-alive, stamps, timeouts, failures. Every case ends as one exchange."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from harness.client.job import Timeouts
from harness.client.outcome import decode_outcome
from harness.client.pool import Pool
from harness.client.record import RawRecord, events
from harness.client.target import Target
from harness.records.errors import InfrastructureError, UsageError
from tests.harness.client.scripted import (
    DONE,
    ENGINE,
    GOOD,
    LAST,
    PATIENT,
    SSE_HEAD,
    chunk,
    event,
    exchange,
    one_record,
    serve,
)

WHOLE = b"".join(GOOD)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return uvloop.run(main)


@pytest.mark.parametrize(
    "steps",
    [
        [SSE_HEAD, *(chunk(part) for part in GOOD), LAST],
        [SSE_HEAD + b"".join(chunk(part) for part in GOOD) + LAST],
        [SSE_HEAD + chunk(WHOLE[:50]), 0.01, chunk(WHOLE[50:]) + LAST],
        [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(WHOLE), WHOLE],
        [b"HTTP/1.1 200 OK\r\n\r\n", WHOLE, "close"],
        [b"HTTP/1.0 200 OK\r\nserver: old\r\n\r\n" + WHOLE, "close"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", SSE_HEAD, chunk(WHOLE), LAST],
        [SSE_HEAD[:10], 0.01, SSE_HEAD[10:] + chunk(WHOLE)[:30], 0.01, chunk(WHOLE)[30:] + b"0\r\n", 0.01, b"\r\n"],
    ],
    ids=["chunked", "one read", "cut event", "length", "close", "http/1.0", "100", "cut framing"],
)
def test_every_framing_gives_the_same_answer(steps: list[Any]) -> None:
    record = run(one_record(steps))
    outcome = decode_outcome(record, ENGINE)
    assert (outcome.status, outcome.error) == ("ok", None)
    assert (outcome.text, outcome.output_tokens, outcome.finish_reason) == ("abc", 3, "stop")
    assert [c.n_tokens for c in outcome.chunks] == [1, 1, 1, 0]


def test_stamps_are_ordered_and_the_kernels_come_first() -> None:
    record = run(one_record([SSE_HEAD, *itertools.chain(*((0.005, chunk(part)) for part in GOOD)), LAST]))
    found, _ = events(record)
    arrivals = [e.t_arrival for e in found]
    assert arrivals == sorted(arrivals)
    assert record.t_sent < arrivals[0]
    assert arrivals[-1] <= record.t_done
    assert len(set(arrivals)) == len(GOOD), "parts that were sent apart arrived apart"
    if sys.platform == "linux":
        for e in found:
            assert record.t_sent < e.t_kernel <= e.t_arrival + 200_000


def test_keep_alive_and_base_path_and_headers() -> None:
    async def main() -> None:
        async with serve([[SSE_HEAD, chunk(WHOLE), LAST]]) as server:
            target = Target.parse(f"http://127.0.0.1:{server.port}/base/", {"authorization": "Bearer sk-secret"})
            assert "secret" not in repr(target)
            pool = Pool(target, PATIENT)
            await pool.open(2)
            for _ in range(5):
                done = await exchange(pool, b'{"n":1}')
                assert done.end == "complete"
            assert server.connections <= 2
            for request in server.requests:
                assert request.startswith(b"POST /base/v1/completions HTTP/1.1\r\n")
                assert b"\r\nauthorization: Bearer sk-secret\r\n" in request
                assert request.endswith(b'\r\n\r\n{"n":1}')
            pool.close()

    run(main())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_kept_alive_connection_that_was_closed_is_replaced_once(ending: str) -> None:
    async def main() -> None:
        answer = [SSE_HEAD, chunk(WHOLE), LAST]
        # The second request meets a server that closes without a byte, as one does whose keep-alive ran out.
        async with serve([answer, [ending], answer, [ending], [ending]]) as server:
            pool = Pool(Target.parse(f"http://127.0.0.1:{server.port}"), PATIENT)
            await pool.open()
            assert (await exchange(pool)).end == "complete"
            assert (await exchange(pool)).end == "complete"
            assert pool.reconnects == 1
            last = await exchange(pool)
            assert last.end in ("cut", "reset"), "the second failure is the server's answer"
            pool.close()

    run(main())


def test_an_idle_connection_that_the_server_closes_is_not_used() -> None:
    async def main() -> None:
        async with serve([[SSE_HEAD, chunk(WHOLE), LAST, 0.01, "close"]]) as server:
            pool = Pool(Target.parse(f"http://127.0.0.1:{server.port}"), PATIENT)
            await pool.open()
            await exchange(pool)
            await asyncio.sleep(0.05)
            assert (await exchange(pool)).end == "complete"
            assert (pool.reconnects, server.connections) == (0, 2)
            pool.close()

    run(main())


def test_a_large_body_goes_out_whole() -> None:
    async def main() -> None:
        async with serve([[SSE_HEAD, chunk(WHOLE), LAST]]) as server:
            pool = Pool(Target.parse(f"http://127.0.0.1:{server.port}"), PATIENT)
            await pool.open()
            body = bytes(range(256)) * 40_000  # 10 MB
            assert (await exchange(pool, body)).end == "complete"
            assert server.requests[0].endswith(body)
            pool.close()

    run(main())


PING = chunk(b": ping\n\n")


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (["stall"], "first_token"),
        ([SSE_HEAD, "stall"], "first_token"),
        ([SSE_HEAD, *([PING, 0.02] * 50), "stall"], "first_token"),
        ([SSE_HEAD, chunk(event("a")), "stall"], "between_tokens"),
        ([SSE_HEAD, chunk(event("a")), *([PING, 0.02] * 50), "stall"], "between_tokens"),
        ([SSE_HEAD, *([chunk(event("a")), 0.02] * 100)], "total"),
    ],
    ids=["silence", "head only", "pings are no tokens", "stall", "pings after a token", "endless"],
)
def test_timeouts_are_told_apart(steps: list[Any], kind: str) -> None:
    began = time.monotonic()
    # Only the limit in question is short: on a busy machine the others must not come first.
    limits = {"first_token": 5.0, "between_tokens": 5.0, "total": 10.0} | {kind: 0.15}
    outcome = decode_outcome(run(one_record(steps, Timeouts(connect=5.0, **limits))), ENGINE)
    assert (outcome.status, outcome.error_kind) == ("timeout", kind)
    assert time.monotonic() - began < 4.9, "another limit ended it"
    assert (outcome.t_first_token is not None) == (kind != "first_token")


def test_a_slow_stream_within_its_limits_is_no_timeout() -> None:
    """Longer than each limit in all, shorter between tokens; usage and [DONE] count as going on."""
    steps = [SSE_HEAD, *itertools.chain(*((0.2, chunk(part)) for part in GOOD)), LAST]
    limits = Timeouts(connect=5.0, first_token=0.6, between_tokens=0.6, total=20.0)
    assert decode_outcome(run(one_record(steps, limits)), ENGINE).status == "ok"


@pytest.mark.parametrize(
    ("steps", "status", "kind"),
    [
        (["close"], "error", "cut"),
        (["reset"], "error", "reset"),
        ([SSE_HEAD, chunk(event("a")), "close"], "error", "cut"),
        ([SSE_HEAD, chunk(event("a"))[:20], "close"], "error", "cut"),
        ([SSE_HEAD, chunk(event("a")), 0.02, "reset"], "error", "reset"),
        ([SSE_HEAD, chunk(event("a")), LAST], "error", "cut"),
        ([SSE_HEAD, LAST], "error", "cut"),
        ([b"SSH-2.0-OpenSSH\r\n", "close"], "error", "malformed"),
        ([SSE_HEAD, b"zz\r\n", "stall"], "error", "malformed"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: -4\r\n\r\n", "stall"], "error", "malformed"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"], "error", "malformed"),
        ([b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy"], "refused", "http_429"),
        ([b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"], "refused", "http_503"),
        ([b"HTTP/1.1 404 No\r\ncontent-length: 8\r\n\r\nno model"], "error", "http"),
        ([b"HTTP/1.1 500 Oops\r\n\r\n", "close"], "error", "http"),
        (
            [SSE_HEAD, chunk(b'data: {"error":{"message":"out of memory"}}\n\n'), chunk(DONE), LAST],
            "error",
            "stream_error",
        ),
        ([SSE_HEAD, chunk(event("a")), chunk(b'data: {"choices": [{"te\n\n'), chunk(DONE), LAST], "error", "malformed"),
    ],
)
def test_failures_are_rows(steps: list[Any], status: str, kind: str) -> None:
    outcome = decode_outcome(run(one_record(steps)), ENGINE)
    assert (outcome.status, outcome.error_kind) == (status, kind)
    assert outcome.error
    assert "\n" not in outcome.error


def test_retry_after_and_excerpts_are_kept() -> None:
    busy = [b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy"]
    outcome = decode_outcome(run(one_record(busy)), ENGINE)
    assert outcome.error == "HTTP 429: busy (Retry-After: 7)"


def test_a_key_that_a_server_echoes_is_struck_out() -> None:
    steps = [b"HTTP/1.1 401 No\r\ncontent-length: 23\r\n\r\nbad key sk-secret given!"[:-1]]
    outcome = decode_outcome(run(one_record(steps)), ENGINE, secrets=("sk-secret",))
    assert outcome.error == "HTTP 401: bad key *** given"


def test_nobody_listens() -> None:
    async def main() -> RawRecord:
        async with serve([[]]) as server:
            port = server.port
        pool = Pool(Target.parse(f"http://127.0.0.1:{port}"), PATIENT)
        await pool.open(3)
        return RawRecord.of("r0", "measure", 1, await exchange(pool))

    outcome = decode_outcome(run(main()), ENGINE)
    assert (outcome.status, outcome.error_kind) == ("refused", "connect")


def test_a_connect_that_hangs_times_out() -> None:
    async def main() -> RawRecord:
        pool = Pool(Target.parse("http://127.0.0.1:9"), Timeouts(connect=0.05))
        await pool.open()

        async def never() -> Any:
            await asyncio.sleep(60)

        pool._connect = never  # type: ignore[method-assign]  # a full accept queue cannot be had portably
        return RawRecord.of("r0", "measure", 1, await exchange(pool))

    outcome = decode_outcome(run(main()), ENGINE)
    assert (outcome.status, outcome.error_kind) == ("timeout", "connect")


@pytest.mark.parametrize("state", ["sent", "streaming"])
def test_cancelling_leaves_a_row(state: str) -> None:
    async def main() -> RawRecord:
        steps = ["stall"] if state == "sent" else [SSE_HEAD, chunk(event("a")), "stall"]
        async with serve([steps]) as server:  # type: ignore[list-item]
            pool = Pool(Target.parse(f"http://127.0.0.1:{server.port}"), PATIENT)
            await pool.open()
            task = asyncio.ensure_future(exchange(pool))
            await asyncio.sleep(0.05)
            task.cancel()
            done = await asyncio.wait_for(task, 5)
            pool.close()
            return RawRecord.of("r0", "measure", 1, done)

    outcome = decode_outcome(run(main()), ENGINE)
    assert (outcome.status, outcome.error_kind) == ("cancelled", "cancelled")
    assert (outcome.t_first_token is not None) == (state == "streaming")


def test_tls_streams_without_kernel_stamps(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("needs the openssl command to make a certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def main() -> None:
        steps = [SSE_HEAD, chunk(GOOD[0]), 0.02, *(chunk(part) for part in GOOD[1:]), LAST]
        async with serve([steps, steps, ["close"], [SSE_HEAD, "stall"]], tls=context) as server:
            target = Target.parse(f"https://localhost:{server.port}")
            limits = Timeouts(connect=5.0, first_token=1.0, between_tokens=5.0, total=10.0)
            pool = Pool(target, limits, tls=ssl.create_default_context(cafile=str(cert)))
            await pool.open()
            for _ in range(2):
                record = RawRecord.of("r0", "measure", 1, await exchange(pool))
                assert decode_outcome(record, ENGINE).text == "abc"
                assert all(read[1] == 0 for read in record.reads)
            assert server.connections == 1
            assert pool.clock.verdict()[0] == "none"
            assert "TLS" in pool.clock.verdict()[1]
            record = RawRecord.of("r0", "measure", 1, await exchange(pool))
            assert decode_outcome(record, ENGINE).error_kind == "first_token", "replaced once, then it stalls"
            distrustful = Pool(target, limits)
            await distrustful.open()
            record = RawRecord.of("r0", "measure", 1, await exchange(distrustful))
            assert decode_outcome(record, ENGINE).error_kind == "connect"
            pool.close()

    run(main())


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "127.0.0.1:8000", "http://u:p@h", "http://h:99999", "http://h/?a=1"]
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Target.parse(url)
    assert "u:p" not in str(caught.value)


def test_a_name_that_does_not_resolve() -> None:
    async def main() -> None:
        await Pool(Target.parse("http://no-such-host.invalid"), PATIENT).open()

    with pytest.raises(InfrastructureError, match="does not resolve"):
        run(main())


def test_a_header_cannot_smuggle_a_line() -> None:
    with pytest.raises(UsageError, match="line break"):
        Target.parse("http://h", {"authorization": "Bearer a\r\nx: y"}).post("/v1", {}, b"")
