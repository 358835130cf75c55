"""The contract between a run and its client processes: what to send in, what comes back.

A worker is `python -m harness.client.worker JOB.json`: its own process, so that scraping, drawing and parsing in the
parent never delay a read. It writes its rows as Parquet parts into `out_dir` and, a few times a second, one JSON line
of `Progress` on stdout. SIGINT or SIGTERM, or a line `stop` on stdin, end it early with everything kept.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.records.manifest import Record, Window, WorkerInfo


class Timeouts(Record):
    """Seconds; each ends a request as a row with status `timeout`, never as an exception."""

    connect: float = 5.0
    first_token: float = 60.0
    between_tokens: float = 30.0
    total: float = 300.0


class ClientJob(Record):
    """Everything a worker needs. The API key comes by environment variable name, never by value."""

    worker: int = 0
    workers: int = 1
    engine_kind: str
    base_url: str
    model: str
    api_key_env: str | None = None
    workload_file: str  # workload.jsonl.gz; the worker takes the sessions with index % workers == worker
    warmup_file: str | None = (
        None  # a workload sent first, in a closed loop, for warmup_s, flowing into the measurement
    )
    warmup_s: float = 0.0
    out_dir: str
    timeouts: Timeouts = Field(default_factory=Timeouts)
    salt: str | None = None
    want_token_ids: bool = False
    want_continuous_usage: bool = False
    send_text: bool = False  # the engine takes no ids: prompts are sent as text, decoded with `tokenizer`
    tokenizer: str | None = None  # directory, needed for send_text
    t_start: int | None = None  # monotonic ns at which the warm-up begins; None is now


class Progress(Record):
    """One line of live state."""

    worker: int
    t: int  # monotonic ns
    planned: int
    done: int
    in_flight: int
    failed: int
    output_tokens: int  # events with content so far, before exact counting
    ttft_p50_ms: float | None = None
    tpot_p50_ms: float | None = None
    phase: Literal["warmup", "measure", "drain", "end"] = "measure"


class WorkerResult(Record):
    """`worker-<k>.json`, written last. Tables beside it: requests-<k>.parquet, chunks-<k>.parquet, answers-<k>.parquet
    (request_id, prompt_ids, output_ids)."""

    worker: int
    complete: bool
    reason: str = ""
    window: Window
    info: WorkerInfo
