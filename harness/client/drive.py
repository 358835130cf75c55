"""The client processes of one cell, from the parent's side: start, relay, stop, and gather the rows.

A worker that dies is reported, never hidden: what it had finished is decoded here from its spill file, and only what
it had in flight is lost.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from harness.client.job import ClientJob, Progress, WorkerResult
from harness.client.parts import PARTS, decode_spill, part_file
from harness.client.spill import room_file
from harness.client.worker import Work, result_file, spill_file
from harness.engines.registry import adapter
from harness.records.errors import ServescopeError
from harness.records.manifest import Window
from workloads.model import WorkloadError

START_S = 2.0  # a worker imports, reads its workload and encodes requests in about half of it
_LOG_TAIL = 3  # lines


@dataclass(frozen=True)
class DeadWorker:
    """A worker without a result. Negative exit codes are signals; `why` ends with the last lines of its log."""

    worker: int
    exit_code: int
    why: str
    rows_kept: int


@dataclass(frozen=True)
class DriveResult:
    """Rows of all workers in the contract's schemas; `answers` has request_id, prompt_ids, output_ids."""

    requests: pa.Table
    chunks: pa.Table
    answers: pa.Table
    results: list[WorkerResult] = field(default_factory=list)
    dead: list[DeadWorker] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.dead and all(result.complete for result in self.results)

    @property
    def reason(self) -> str:
        """Why it is not complete, in one line; empty if it is."""
        reasons = [f"client worker {dead.worker}: {dead.why}" for dead in self.dead]
        reasons += [result.reason for result in self.results if result.reason]
        return "; ".join(dict.fromkeys(reasons))

    @property
    def window(self) -> Window:
        """The union of the workers' windows."""
        windows = [result.window for result in self.results]
        begin = [w.t_begin for w in windows if w.t_begin is not None]
        measure = [w.t_measure for w in windows if w.t_measure is not None]
        stop = [w.t_stop for w in windows if w.t_stop is not None]
        end = [w.t_end for w in windows if w.t_end is not None]
        return Window(
            t_begin=min(begin, default=None),
            t_measure=min(measure, default=None),
            t_stop=max(stop, default=None),
            t_end=max(end, default=None),
        )


OnProgress = Callable[[Progress], None]


async def drive(
    jobs: Sequence[ClientJob], *, on_progress: OnProgress | None = None, stop: asyncio.Event | None = None
) -> DriveResult:
    """Run one process a job to its end and gather the rows.

    Setting `stop` ends the load early: what is in flight becomes rows with status `cancelled`. Cancelling this
    coroutine kills the processes. The rows of jobs that share an out_dir must differ in `worker`.
    """
    workers = [_Worker(job, on_progress) for job in _together(jobs)]
    try:
        for worker in workers:
            await worker.start()
        ending = asyncio.ensure_future(_stop_all(workers, stop)) if stop is not None else None
        try:
            await asyncio.gather(*(worker.wait() for worker in workers))
        finally:
            if ending is not None:
                ending.cancel()
    finally:
        for worker in workers:
            worker.kill()
    return await asyncio.to_thread(_gather, workers)


def _together(jobs: Sequence[ClientJob]) -> list[ClientJob]:
    """Several workers begin at one instant, or their schedules would be shifted by how long each took to start."""
    if len(jobs) < 2:
        return list(jobs)
    begin = time.monotonic_ns() + round(START_S * 1e9)
    return [job if job.t_start is not None else job.model_copy(update={"t_start": begin}) for job in jobs]


async def _stop_all(workers: list[_Worker], stop: asyncio.Event) -> None:
    await stop.wait()
    for worker in workers:
        worker.stop()


class _Worker:
    def __init__(self, job: ClientJob, on_progress: OnProgress | None) -> None:
        self.job = job
        self.exit_code = 0
        self.log = Path(job.out_dir) / f"client-{job.worker}.log"
        self._on_progress = on_progress
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        out_dir = Path(self.job.out_dir)
        out_dir.mkdir(parents=True, exist_ok=True)
        stale = [result_file(out_dir, self.job.worker), *(part_file(out_dir, name, self.job.worker) for name in PARTS)]
        for file in stale:  # an earlier attempt's rows must not pass for this one's
            file.unlink(missing_ok=True)
        path = out_dir / f"job-{self.job.worker}.json"
        path.write_text(self.job.model_dump_json(indent=2))
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "harness.client.worker",
                str(path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                # Ctrl-C reaches the parent alone, which then stops its workers in order.
                start_new_session=True,
            )

    async def wait(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        async for line in process.stdout:
            with suppress(ValidationError):
                progress = Progress.model_validate_json(line)
                if self._on_progress is not None:
                    self._on_progress(progress)
        self.exit_code = await process.wait()

    def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None or process.stdin is None:
            return
        with suppress(OSError, RuntimeError):
            process.stdin.write(b"stop\n")

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def result(self) -> WorkerResult | None:
        try:
            return WorkerResult.model_validate_json(result_file(Path(self.job.out_dir), self.job.worker).read_bytes())
        except (OSError, ValidationError):
            return None

    def salvage(self) -> DeadWorker:
        """Decode what a dead worker had finished, and say why it died."""
        kept = 0
        spill = spill_file(Path(self.job.out_dir), self.job.worker)
        room_file(spill).unlink(missing_ok=True)
        try:
            if spill.is_file():
                kept = decode_spill(spill, Work(self.job, adapter(self.job.engine_kind)).part_writer())
                spill.unlink()
        except (OSError, ServescopeError, WorkloadError) as error:
            return DeadWorker(self.job.worker, self.exit_code, f"{self._why()}; its rows are lost: {error}", 0)
        return DeadWorker(self.job.worker, self.exit_code, self._why(), kept)

    def _why(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()[-_LOG_TAIL:]
        except OSError:
            lines = []
        how = f"killed by signal {-self.exit_code}" if self.exit_code < 0 else f"ended with code {self.exit_code}"
        return f"{how}: {' | '.join(lines)}" if lines else how


def _gather(workers: list[_Worker]) -> DriveResult:
    results, dead = [], []
    for worker in workers:
        result = worker.result()
        if result is not None and worker.exit_code == 0:
            results.append(result)
        else:
            dead.append(worker.salvage())
    tables = {}
    for name, schema in PARTS.items():
        files = [part_file(Path(worker.job.out_dir), name, worker.job.worker) for worker in workers]
        parts = [pq.read_table(file, schema=schema) for file in files if file.is_file()]
        whole = pa.concat_tables(parts) if parts else schema.empty_table()
        tables[name] = whole.unify_dictionaries().replace_schema_metadata(schema.metadata)
    return DriveResult(tables["requests"], tables["chunks"], tables["answers"], results, dead)
