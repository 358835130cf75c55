"""A server that cuts, merges, delays, lies, stalls and resets: always one outcome, in time, with rows that fit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.client.job import Timeouts
from harness.client.outcome import Outcome
from harness.client.parts import PARTS, PartWriter, part_file
from harness.client.pool import Pool
from harness.client.record import RawRecord
from harness.client.spill import Spill, read_spill
from harness.client.target import Target
from tests.harness.client.cuts import cut
from tests.harness.client.scripted import DONE, ENGINE, LAST, SSE_HEAD, Step, chunk, event, exchange, serve, usage
from workloads.model import Load, Request, Workload

_LIMITS = Timeouts(connect=2.0, first_token=0.05, between_tokens=0.05, total=0.2)
_STATUS = {"ok", "error", "timeout", "cancelled", "refused"}

_PAYLOAD = st.sampled_from(
    [
        event("a"),
        event(""),
        event("b", '"stop"'),
        event("c", '"length"'),
        usage(5, 3),
        usage(5, 0),
        usage(2**40, 2**40),
        DONE,
        b": ping\n\n",
        b"data: {}\n\n",
        b"data: []\n\n",
        b"data: null\n\n",
        b'data: {"choices": 3}\n\n',
        b'data: {"choices": [null]}\n\n',
        b'data: {"choices": [{"text": 5, "token_ids": "x"}]}\n\n',
        b'data: {"choices": [{"text": "", "token_ids": [1, 2, 99999999999999]}]}\n\n',
        b'data: {"choices": [{"text": "a", "token_ids": [1, -2]}]}\n\n',
        b'data: {"usage": {"prompt_tokens": -1, "completion_tokens": "many"}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}}\n\n',
        b'data: {"error": {"message": "boom"}}\n\n',
        b'data: {"choices": [{"te\n\n',
        b"data: \xff\xfe\n\n",
        b"event: x\r\ndata:1\r\n\r\n",
    ]
)
_HEADS = st.sampled_from(
    [
        SSE_HEAD,
        SSE_HEAD,
        SSE_HEAD,
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 429 No\r\ncontent-length: 4\r\nretry-after: soon\r\n\r\n",
        b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 100 Go\r\n\r\n" + SSE_HEAD,
        b"HTTP/1.1 204 None\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ]
)
_ENDS = st.sampled_from(["close", "reset", "stall", "keep"])


@st.composite
def _script(draw: st.DrawFn) -> list[Step]:
    payloads = draw(st.lists(_PAYLOAD, max_size=6))
    framed = draw(st.sampled_from([chunk, chunk, chunk, bytes]))
    wire = draw(_HEADS) + b"".join(framed(part) for part in payloads)
    wire += draw(st.sampled_from([LAST, LAST, b"", b"0\r\n", b"-1\r\n", b"5\r\nabc"]))
    steps: list[Step] = []
    for piece in cut(wire, draw(st.lists(st.integers(0, 2000), max_size=6))):
        steps.append(piece)
        if draw(st.booleans()):
            steps.append(draw(st.sampled_from([0.0, 0.001])))
    end = draw(_ENDS)
    return steps if end == "keep" else [*steps, end]


async def _drive(scripts: list[list[Step]]) -> list[RawRecord]:
    records = []
    async with serve(lambda k: scripts[k % len(scripts)]) as server:
        pool = Pool(Target.parse(f"http://127.0.0.1:{server.port}"), _LIMITS)
        await pool.open()
        for k in range(len(scripts)):  # in turn, so that a kept-alive connection meets the next script
            done = await asyncio.wait_for(exchange(pool), 5)
            records.append(RawRecord.of(f"r{k}", "measure", 0, done))
        pool.close()
    return records


def _check(record: RawRecord, outcome: Outcome) -> None:
    assert outcome.status in _STATUS
    assert (outcome.status == "ok") == (outcome.error_kind is None)
    assert record.t_sent <= record.t_done
    marks = [outcome.t_first_token, outcome.t_first_content, outcome.t_last_token]
    known = [t for t in marks if t is not None]
    assert all(record.t_sent <= t <= record.t_done for t in known)
    assert (outcome.t_first_token is None) == (outcome.t_last_token is None)
    if outcome.status == "ok":
        assert record.http_status == 200
        assert record.end == "complete"
        counts = [chunk.n_tokens for chunk in outcome.chunks]
        if outcome.output_tokens is not None and outcome.chunks and outcome.chunks[0].source == "event":
            assert sum(n or 0 for n in counts) == outcome.output_tokens
    arrivals = [chunk.t_arrival for chunk in outcome.chunks]
    assert arrivals == sorted(arrivals)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_script(), min_size=1, max_size=4))
def test_one_outcome_each_and_rows_that_fit(tmp_path: Path, scripts: list[list[Step]]) -> None:
    records = uvloop.run(_drive(scripts))
    assert [record.request_id for record in records] == [f"r{k}" for k in range(len(scripts))]
    requests = tuple(Request(f"r{k}", f"s{k}", 0, ("p",), 3) for k in range(len(scripts)))
    workload = Workload("h", "hostile", 1, {}, Load("closed", {"in_flight": 1.0}), {"p": (1, 2)}, requests)
    spill = Spill(tmp_path / "raw.spill")
    for record in records:
        spill.add(record)
    spill.close()
    back = list(read_spill(spill.path))
    assert back == records
    writer = PartWriter(tmp_path, 0, ENGINE, [workload])
    for record in back:
        _check(record, writer.add(record))
    writer.close()

    import pyarrow.parquet as pq

    for name, schema in PARTS.items():
        table = pq.read_table(part_file(tmp_path, name, 0), schema=schema)
        assert name == "chunks" or table.num_rows == len(scripts)
