"""Rows as Parquet parts of one worker: requests-<k>, chunks-<k> and answers-<k>, written in row groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.client.outcome import Outcome, decode_outcome
from harness.client.record import RawRecord
from harness.client.spill import read_spill
from harness.engines.protocol import Engine
from harness.records.tables import CHUNKS, REQUESTS, SCHEMA_VERSION
from workloads.model import AnswerOf, Request, Workload

ANSWERS = pa.schema(
    [
        ("request_id", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("output_ids", pa.list_(pa.int32())),
    ],
    metadata={"servescope": str(SCHEMA_VERSION)},
)
PARTS: dict[str, pa.Schema] = {"requests": REQUESTS, "chunks": CHUNKS, "answers": ANSWERS}
_GROUP_REQUESTS = 5_000
_GROUP_CHUNKS = 8_192  # rows wait as Python objects, and a worker is to stay small


def part_file(out_dir: Path, table: str, worker: int) -> Path:
    return out_dir / f"{table}-{worker}.parquet"


class _Table:
    """Columns of one table that grow row by row and go out as row groups; the file appears when it is whole."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        self._temporary = path.with_name(f".{path.name}.part")
        self._writer = pq.ParquetWriter(self._temporary, schema, compression="zstd")

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def flush(self) -> None:
        if self.rows:
            arrays = [_array(self.columns[field.name], field.type) for field in self.schema]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self.schema))
            for column in self.columns.values():
                column.clear()

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._temporary.replace(self.path)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


class PartWriter:
    """Takes raw records in the order in which they finished and writes their rows."""

    def __init__(
        self,
        out_dir: Path,
        worker: int,
        engine: Engine,
        workloads: Sequence[Workload],
        *,
        secrets: Sequence[str] = (),
        count_text: Callable[[str], int] | None = None,
        answer_ids: Callable[[str], tuple[int, ...]] | None = None,
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._secrets = secrets
        self._count_text = count_text
        self._answer_ids = answer_ids
        self._requests: dict[str, tuple[Workload, Request]] = {
            request.request_id: (workload, request) for workload in workloads for request in workload.requests
        }
        self._needed = {
            part.request_id
            for _, request in self._requests.values()
            for part in request.prompt
            if isinstance(part, AnswerOf)
        }
        self._answers: dict[str, tuple[int, ...]] = {}
        self._tables = {name: _Table(part_file(out_dir, name, worker), schema) for name, schema in PARTS.items()}

    def add(self, record: RawRecord) -> Outcome:
        workload, request = self._requests[record.request_id]
        outcome = decode_outcome(record, self._engine, secrets=self._secrets, count_text=self._count_text)
        if request.request_id in self._needed:
            ids = answer_of(outcome, self._answer_ids)
            if ids is not None:
                self._answers[request.request_id] = ids
        self._add_request(record, workload, request, outcome)
        self._add_chunks(request.request_id, outcome)
        self._add_answer(workload, request, outcome)
        if self._tables["requests"].rows >= _GROUP_REQUESTS or self._tables["chunks"].rows >= _GROUP_CHUNKS:
            for table in self._tables.values():
                table.flush()
        return outcome

    def close(self) -> None:
        for table in self._tables.values():
            table.close()

    def _add_request(self, record: RawRecord, workload: Workload, request: Request, outcome: Outcome) -> None:
        columns = self._tables["requests"].columns
        for name, value in request_row(record, workload, request, outcome, self._worker).items():
            columns[name].append(value)

    def _add_chunks(self, request_id: str, outcome: Outcome) -> None:
        columns = self._tables["chunks"].columns
        chunks = outcome.chunks
        columns["request_id"].extend([request_id] * len(chunks))
        columns["seq"].extend([chunk.seq for chunk in chunks])
        columns["t_arrival"].extend([chunk.t_arrival for chunk in chunks])
        columns["t_kernel"].extend([chunk.t_kernel or None for chunk in chunks])
        columns["n_tokens"].extend([chunk.n_tokens for chunk in chunks])
        columns["kind"].extend([chunk.kind for chunk in chunks])
        columns["bytes"].extend([chunk.size for chunk in chunks])
        columns["source"].extend([chunk.source for chunk in chunks])

    def _add_answer(self, workload: Workload, request: Request, outcome: Outcome) -> None:
        columns = self._tables["answers"].columns
        try:
            prompt = workload.prompt_ids(request, self._answers)
        except KeyError:  # it was never sent
            prompt = None
        columns["request_id"].append(request.request_id)
        columns["prompt_ids"].append(prompt)
        columns["output_ids"].append(outcome.output_ids)


def answer_of(outcome: Outcome, answer_ids: Callable[[str], tuple[int, ...]] | None) -> tuple[int, ...] | None:
    """The ids of an answer that a later prompt contains; None where there is no whole answer or no way to its ids."""
    if outcome.status != "ok":
        return None
    if outcome.output_ids is not None:
        return outcome.output_ids
    return answer_ids(outcome.text) if answer_ids is not None else None


def request_row(
    record: RawRecord, workload: Workload, request: Request, outcome: Outcome, worker: int
) -> dict[str, Any]:
    """One row of requests.parquet."""
    return {
        "request_id": request.request_id,
        "session_id": request.session_id,
        "turn": request.turn,
        "family": workload.family,
        "cache_class": request.cache_class,
        "phase": record.phase,
        "worker": worker,
        "t_intended": record.t_intended or None,
        "t_sent": record.t_sent or None,
        "t_first_byte": outcome.t_first_byte,
        "t_first_token": outcome.t_first_token,
        "t_first_content": outcome.t_first_content,
        "t_last_token": outcome.t_last_token,
        "t_done": record.t_done or None,
        "prompt_tokens": outcome.usage.prompt_tokens,
        "output_tokens": outcome.output_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
        "reasoning_tokens": outcome.usage.reasoning_tokens,
        "max_tokens": request.max_tokens,
        "token_source": outcome.token_source,
        "shared_tokens": request.shared_tokens,
        "priority": request.priority,
        "adapter": request.adapter,
        "finish_reason": outcome.finish_reason,
        "status": outcome.status,
        "error_kind": outcome.error_kind,
        "error": outcome.error,
        "http_status": record.http_status or None,
        "engine_request_id": outcome.engine_request_id,
        "server_queue_ns": outcome.server_queue_ns,
        "server_preemptions": outcome.server_preemptions,
    }


def decode_spill(spill: Path, writer: PartWriter) -> int:
    """Write all records of a spill file; the number of them."""
    number = 0
    for record in read_spill(spill):
        writer.add(record)
        number += 1
    writer.close()
    return number
