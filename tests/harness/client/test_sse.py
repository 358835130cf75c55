"""Events come out whole and with the right stamp, wherever the stream is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.client.sse import SseSplitter, split
from tests.harness.client.cuts import cut

_LINE = st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))
_EVENT = st.tuples(
    st.lists(_LINE, min_size=1, max_size=3),  # data lines
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),  # a space after "data:"
    st.sampled_from([b"", b": ping", b"event: message", b"id: 7", b"retry: 10"]),
)


def _wire(event: tuple[list[bytes], bytes, bool, bytes]) -> bytes:
    lines, end, space, extra = event
    out = extra + end if extra else b""
    for line in lines:
        # A value that begins with a space needs the optional one before it, which is then taken off.
        gap = b" " if space or line.startswith(b" ") else b""
        out += b"data:" + gap + line + end
    return out + end


@given(st.lists(_EVENT, max_size=8), st.lists(st.integers(0, 10_000), max_size=30), st.booleans())
def test_any_cut_gives_the_same_events(
    wanted: list[tuple[list[bytes], bytes, bool, bytes]], cuts: list[int], bom: bool
) -> None:
    wires = [_wire(event) for event in wanted]
    stream = (b"\xef\xbb\xbf" if bom else b"") + b"".join(wires)
    pieces = cut(stream, cuts)
    events, tail = split((100 + i, 0, piece) for i, piece in enumerate(pieces))
    assert [event.data for event in events] == [b"\n".join(event[0]) for event in wanted]
    assert tail is None
    # The stamp is that of the read with the event's last byte.
    ends, total = [], 3 if bom else 0
    for wire in wires:
        total += len(wire)
        ends.append(total)
    reach, expected = 0, []
    for i, piece in enumerate(pieces):
        before, reach = reach, reach + len(piece)
        expected += [100 + i for end in ends if before < end <= reach]
    assert [event.t_arrival for event in events] == expected


@given(st.lists(st.sampled_from([b"data: a", b"\n", b"\r", b"\r\n", b"data", b":x", b"\n\n", b"z"]), max_size=30))
def test_junk_never_raises_and_cuts_never_matter(parts: list[bytes]) -> None:
    whole, tail = split([(1, 0, b"".join(parts))])
    bytewise, tail_bytewise = split([(1, 0, bytes([byte])) for byte in b"".join(parts)])
    assert [event.data for event in whole] == [event.data for event in bytewise]
    assert tail == tail_bytewise


def test_several_events_in_one_read_share_its_stamp() -> None:
    events, _ = split([(5, 4, b"data: a\n\ndata:b\n\ndata: c\r\n\r\n")])
    assert [(event.data, event.t_arrival, event.t_kernel) for event in events] == [
        (b"a", 5, 4),
        (b"b", 5, 4),
        (b"c", 5, 4),
    ]


def test_comments_are_no_events() -> None:
    assert split([(1, 0, b": keep-alive\n\n: again\n\nevent: x\n\n")]) == ([], None)


def test_an_unfinished_event_is_the_tail() -> None:
    events, tail = split([(1, 0, b'data: {"a":1}\n\ndata: {"b"'), (2, 0, b":2}\n")])
    assert [event.data for event in events] == [b'{"a":1}']
    assert tail == b'{"b":2}'


def test_an_event_of_several_megabytes_in_small_reads() -> None:
    payload = b"x" * (4 << 20)
    stream = b"data: " + payload + b"\n\ndata: [DONE]\n\n"
    splitter = SseSplitter()
    found = []
    for at in range(0, len(stream), 16_384):
        found += splitter.feed(at, 0, stream[at : at + 16_384])
    assert [len(event.data) for event in found] == [len(payload), 6]
    assert sum(event.size for event in found) == len(stream)
