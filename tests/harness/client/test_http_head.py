"""Framing: any cut gives the same body; what contradicts itself is malformed, never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.http_head import ChunkedBody, CloseBody, LengthBody, MalformedResponse, parse_head
from tests.harness.client.cuts import cut


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=60), st.sampled_from([b"", b";x=1", b" "])), max_size=6),
    st.lists(st.integers(0, 5000), max_size=40),
    st.sampled_from([b"", b"x-trailer: 1\r\n"]),
    st.binary(max_size=5),
)
def test_chunked_under_anycut(
    chunks: list[tuple[bytes, bytes]], cuts: list[int], trailer: bytes, excess: bytes
) -> None:
    wire = b"".join(b"%X%b\r\n%b\r\n" % (len(data), extension, data) for data, extension in chunks)
    wire += b"0\r\n" + trailer + b"\r\n"
    body, sink = ChunkedBody(), list[bytes]()
    states = [body.feed(piece, sink) for piece in cut(wire + excess, cuts)]
    assert b"".join(sink) == b"".join(data for data, _ in chunks)
    assert states[-1]
    assert body.excess == len(excess)
    assert body.close()


@given(
    st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4),
    st.integers(0, 10_000),
)
def test_a_cut_chunked_body_is_never_complete(chunks: list[bytes], at: int) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in chunks) + b"0\r\n\r\n"
    body = ChunkedBody()
    assert not body.feed(wire[: at % len(wire)])
    assert not body.close()


@pytest.mark.parametrize(
    "wire",
    [
        b"xyz\r\n",
        b"-5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b"\r\nhello",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello, more\r\n",
        b"ffffffffffffffffffff\r\n",
        b"5" + b";" * 5000,
    ],
)
def test_lies_about_chunks(wire: bytes) -> None:
    with pytest.raises(MalformedResponse):
        ChunkedBody().feed(wire)
    body = ChunkedBody()
    with pytest.raises(MalformedResponse):
        _ = [body.feed(bytes([byte])) for byte in wire]


def test_a_size_seen_before_is_no_excuse_for_a_lie() -> None:
    body = ChunkedBody()
    body.feed(b"5\r\nhello\r\n")
    with pytest.raises(MalformedResponse):
        body.feed(b"5\r\nhello!\r\n")


def test_length_body_counts_what_is_too_much() -> None:
    body, sink = LengthBody(5), list[bytes]()
    assert not body.feed(b"hel", sink)
    assert body.feed(b"lo!!", sink)
    assert (b"".join(sink), body.excess) == (b"hello", 2)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        (b"content-length: 3", LengthBody),
        (b"Content-Length: 3, 3", LengthBody),
        (b"Transfer-Encoding: Chunked", ChunkedBody),
        (b"x: y", CloseBody),
    ],
)
def test_framing_of_a_head(headers: bytes, kind: type) -> None:
    assert isinstance(parse_head(b"HTTP/1.1 200 OK\r\n" + headers).body(), kind)


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: -1",
        b"content-length: 1\r\ncontent-length: 2",
        b"content-length: 0x10",
        b"content-length: 1_0",
        b"content-length:",
        b"content-length: \xb2",
        b"content-length: 3\r\ntransfer-encoding: chunked",
        b"transfer-encoding: gzip, chunked",
    ],
)
def test_lies_about_length(headers: bytes) -> None:
    with pytest.raises(MalformedResponse):
        parse_head(b"HTTP/1.1 200 OK\r\n" + headers).body()


@pytest.mark.parametrize(
    "raw", [b"", b"SSH-2.0-x", b"HTTP/2 200", b"HTTP/1.1 20", b"HTTP/1.1 999 x", b"HTTP/1.1 200 OK\r\nno colon"]
)
def test_what_is_no_head(raw: bytes) -> None:
    with pytest.raises(MalformedResponse):
        parse_head(raw)


def test_keep_alive() -> None:
    assert parse_head(b"HTTP/1.1 200 OK").keep_alive
    assert not parse_head(b"HTTP/1.1 200 OK\r\nConnection: Close").keep_alive
    assert not parse_head(b"HTTP/1.0 200 OK").keep_alive
