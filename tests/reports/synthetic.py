"""Run directories with known truth, written by code: rows, events, tokens and scrapes as an ideal engine gives them.

`Row` says in seconds when things happened; everything else follows from it. Times are exact to the nanosecond.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.records.manifest import (
    Anchor,
    CacheProof,
    EngineInfo,
    Manifest,
    ModelInfo,
    Window,
    WorkerInfo,
    WorkloadInfo,
)
from harness.records.prefixes import longest_prefixes
from harness.records.rundir import CellDir, RunDir
from harness.records.tables import TABLES

ZERO = 1_000_000_000_000  # monotonic ns of second 0


def ns(seconds: float | None) -> int | None:
    return None if seconds is None else ZERO + round(seconds * 1e9)


@dataclass
class Row:
    """One request. `events`: (arrival in s, tokens or None if unknown, kind); times of the row follow from them."""

    name: str
    sent: float | None
    events: Sequence[tuple[float, int | None, str]] = ()
    done: float | None = None
    intended: float | None = None
    prompt: Sequence[int] = ()
    answer: Sequence[int] | None = None  # None: as many made-up ids as the events carry tokens
    cached: int | None = 0
    status: str = "ok"
    error_kind: str | None = None
    phase: str = "measure"
    cache_class: str = "none"
    lateness: float | None = 0.0001  # user-space read minus kernel stamp, s; None: no stamp
    queue: float | None = None
    session: str = "s"
    max_tokens: int | None = None
    usage: bool = True
    adapter: str | None = None

    @property
    def tokens(self) -> int:
        return sum(count or 0 for _, count, kind in self.events if kind in ("content", "reasoning", "tool"))

    @property
    def ids(self) -> list[int]:
        if self.answer is not None:
            return list(self.answer)
        return [40_000 + hash_of(self.name) % 5_000 + at for at in range(self.tokens)]

    def bearing(self, *, content: bool = False) -> list[float]:
        kinds = ("content", "tool") if content else ("content", "reasoning", "tool")
        return [at for at, count, kind in self.events if kind in kinds and (count is None or count >= 1)]

    @property
    def end(self) -> float | None:
        return self.done if self.done is not None else self.events[-1][0] if self.events else None


def hash_of(text: str) -> int:
    """A hash that is the same in every process."""
    value = 0
    for letter in text:
        value = (value * 131 + ord(letter)) % 2_147_483_647
    return value


def steady(name: str, sent: float, *, ttft: float = 0.1, tokens: int = 11, gap: float = 0.02, **more: Any) -> Row:
    """A request whose tokens come one by one, evenly."""
    events = [(sent + ttft + gap * at, 1, "content") for at in range(tokens)]
    return Row(name, sent, events, prompt=more.pop("prompt", (hash_of(name) % 30_000, *range(1, 32))), **more)


@dataclass
class Scrape:
    """One scrape: metric (with JSON labels after a space, if any) -> value."""

    at: float
    values: Mapping[str, float]


@dataclass
class CellSpec:
    """What to write. The manifest's parts can be changed one by one."""

    rows: Sequence[Row]
    name: str = "native.steady.r1"
    engine: dict[str, Any] = field(default_factory=dict)
    workload: str = "steady"
    load: dict[str, Any] = field(default_factory=lambda: {"mode": "closed", "in_flight": 1})
    cache: dict[str, Any] = field(default_factory=dict)
    slo: dict[str, float] = field(default_factory=dict)
    scrapes: Sequence[Scrape] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()  # tables that are not written
    redacted: bool = False
    repeat: int = 1


def write_run(root: Path, *cells: CellSpec) -> RunDir:
    run = RunDir.create(root)
    for spec in cells:
        write_cell(run.new_cell(spec.name), spec)
    return run


def write_cell(cell: CellDir, spec: CellSpec) -> CellDir:
    cell.write_manifest(_manifest(spec))
    tables = {
        "requests": _requests(spec.rows),
        "chunks": _chunks(spec.rows),
        "tokens": _tokens(spec.rows, spec.redacted),
        "server": _server(spec),
        "host": TABLES["host"].empty_table(),
    }
    for name, table in tables.items():
        if name not in spec.without:
            cell.write_table(name, table)
    return cell


def _manifest(spec: CellSpec) -> Manifest:
    engine: dict[str, Any] = {
        "kind": "native",
        "name": "native",
        "version": "0.1.0",
        "block_size": 16,
        "kv_tokens": 100_000,
    }
    engine |= {"prefix_caching": True, "resolved": {"profile": "vllm-0.32.0"}, **spec.engine}
    cache: dict[str, Any] = {
        "state": "flushed",
        "method": "POST /reset_prefix_cache",
        "proven": True,
        "evidence": "status 200",
    }
    worker = WorkerInfo(
        worker=0, cpu_s=0.1, wall_s=1.0, loop_lag_p99_ms=0.2, dispatch_lag_p99_ms=0.2, kernel_stamps="all"
    )
    measured = [row for row in spec.rows if row.phase == "measure"]
    known: dict[str, Any] = {
        "tool_version": "0.1.0",
        "cell": spec.name,
        "repeat": spec.repeat,
        "created_utc": "2026-01-01T00:00:00Z",
        "engine": EngineInfo(**engine),
        "model": ModelInfo(name="tiny"),
        "workload": WorkloadInfo(
            name=spec.workload, family="prefix_hit", seed=7, load=spec.load, requests=len(measured)
        ),
        "evidence": "full",
        "cache": CacheProof(**{**cache, **spec.cache}),
        "slo": spec.slo,
        "window": Window(t_begin=ZERO, t_measure=ZERO),
        "anchor": Anchor(monotonic_ns=ZERO, unix_ns=1_767_225_600_000_000_000),
        "workers": [worker],
        "redacted": spec.redacted,
    }
    return Manifest(**{**known, **spec.manifest})


def _table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = TABLES[name]
    columns = {}
    for column in schema:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        array = pa.array([row.get(column.name) for row in rows], kind)
        columns[column.name] = array.dictionary_encode() if pa.types.is_dictionary(column.type) else array
    return pa.table(columns).cast(schema)


def _requests(rows: Sequence[Row]) -> pa.Table:
    return _table("requests", [_request(row) for row in rows])


def _request(row: Row) -> dict[str, Any]:
    bearing, content = row.bearing(), row.bearing(content=True)
    done = row.status == "ok" and row.usage
    return {
        "request_id": row.name,
        "session_id": row.session,
        "turn": 0,
        "family": "prefix_hit",
        "cache_class": row.cache_class,
        "phase": row.phase,
        "worker": 0,
        "t_intended": ns(row.intended if row.intended is not None else row.sent),
        "t_sent": ns(row.sent),
        "t_first_byte": ns(row.events[0][0]) if row.events else None,
        "t_first_token": ns(bearing[0]) if bearing else None,
        "t_first_content": ns(content[0]) if content else None,
        "t_last_token": ns(bearing[-1]) if bearing else None,
        "t_done": ns(row.end),
        "prompt_tokens": len(row.prompt) if done else None,
        "output_tokens": row.tokens if done else None,
        "cached_tokens": row.cached if done else None,
        "max_tokens": row.max_tokens if row.max_tokens is not None else row.tokens,
        "token_source": "ids",
        "shared_tokens": 0,
        "adapter": row.adapter,
        "finish_reason": "length" if row.status == "ok" else None,
        "status": row.status,
        "error_kind": row.error_kind,
        "server_queue_ns": None if row.queue is None else round(row.queue * 1e9),
    }


def _chunks(rows: Sequence[Row]) -> pa.Table:
    return _table(
        "chunks",
        [
            {
                "request_id": row.name,
                "seq": seq,
                "t_arrival": ns(at),
                "t_kernel": None if row.lateness is None else ns(at - row.lateness),
                "n_tokens": count,
                "kind": kind,
                "bytes": 100,
                "source": "ids" if count is not None else "text",
            }
            for row in rows
            for seq, (at, count, kind) in enumerate(row.events)
        ],
    )


def _tokens(rows: Sequence[Row], redacted: bool) -> pa.Table:
    sent = sorted((row for row in rows if row.sent is not None), key=lambda row: (row.sent, row.name))
    shared = longest_prefixes((row.name, row.prompt, row.ids) for row in sent)
    return _table(
        "tokens",
        [
            {
                "request_id": row.name,
                "prompt_ids": None if redacted else list(row.prompt),
                "output_ids": None if redacted else row.ids,
                "lcp_request_id": owner,
                "lcp_tokens": length,
            }
            for row, (owner, length) in zip(sent, shared, strict=True)
        ],
    )


def _server(spec: CellSpec) -> pa.Table:
    rows = []
    for scrape in spec.scrapes:
        for series, value in scrape.values.items():
            metric, _, labels = series.partition(" ")
            rows.append(
                {
                    "t_start": ns(scrape.at),
                    "t_end": ns(scrape.at),
                    "target": "http://127.0.0.1:1",
                    "engine": spec.engine.get("name", "native"),
                    "metric": metric,
                    "labels": labels or json.dumps({}),
                    "value": value,
                }
            )
    return _table("server", rows)
