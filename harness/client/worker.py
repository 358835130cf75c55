"""One client process: `python -m harness.client.worker JOB.json`.

On the timed path it sends, stamps and appends, no more. Rows are made when the load is over, from the spill file.
Exit codes: 0 with rows written (also after a stop), 2 for a job that cannot be run, 5 for a disk or a name that fails.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from harness.client.bodies import Bodies, TextCodec
from harness.client.dispatcher import Dispatcher, Phased
from harness.client.job import ClientJob, WorkerResult
from harness.client.lag import LoopLag, p99_ms
from harness.client.live import LineWriter, Live
from harness.client.no_pandas import keep_pandas_out
from harness.client.outcome import decode_outcome
from harness.client.pacing import Schedule, Share, share_of
from harness.client.parts import PartWriter, answer_of, decode_spill
from harness.client.pool import Pool
from harness.client.record import Phase, RawRecord
from harness.client.spill import Spill
from harness.client.target import Target
from harness.engines.protocol import Engine
from harness.records.errors import InfrastructureError, ServescopeError, UsageError
from harness.records.manifest import Window, WorkerInfo
from harness.records.rundir import write_atomic
from workloads.file import read_workload
from workloads.model import AnswerOf, Workload, WorkloadError

PROGRESS_S = 0.25
_WARMUP_IN_FLIGHT = 4  # for an open load, whose warm-up names no number itself


def spill_file(out_dir: Path, worker: int) -> Path:
    return out_dir / f"raw-{worker}.spill"


def result_file(out_dir: Path, worker: int) -> Path:
    return out_dir / f"worker-{worker}.json"


class Work:
    """A job with everything loaded that it needs, before any clock starts."""

    def __init__(self, job: ClientJob, engine: Engine) -> None:
        """UsageError or WorkloadError for a job that cannot be run."""
        self.job = job
        self.engine = engine
        self.out_dir = Path(job.out_dir)
        self.key = ""
        if job.api_key_env:
            self.key = os.environ.get(job.api_key_env, "")
            if not self.key:
                raise UsageError(f"the variable {job.api_key_env} is not set", mend="export the engine's API key in it")
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        self.target = Target.parse(job.base_url, headers)
        self.codec = TextCodec.load(job.tokenizer) if job.tokenizer else None
        self.workload = read_workload(Path(job.workload_file))
        self.warmup = read_workload(Path(job.warmup_file)) if job.warmup_file and job.warmup_s > 0 else None
        self._distinct()

    def _distinct(self) -> None:
        if self.warmup is not None:
            names = {request.request_id for request in self.workload.requests}
            if any(request.request_id in names for request in self.warmup.requests):
                raise UsageError("warm-up and workload share a request id", mend="rename the warm-up's requests")

    @property
    def workloads(self) -> list[Workload]:
        return [self.workload] if self.warmup is None else [self.workload, self.warmup]

    @property
    def count_text(self) -> Callable[[str], int] | None:
        codec = self.codec
        return None if codec is None else lambda text: len(codec.encode(text))

    def answer(self, record: RawRecord) -> tuple[int, ...] | None:
        """The ids of an answer, while the load runs: only for requests whose answer a later prompt contains."""
        outcome = decode_outcome(record, self.engine, secrets=(self.key,), count_text=self.count_text)
        return answer_of(outcome, self.codec.encode if self.codec else None)

    def part_writer(self) -> PartWriter:
        return PartWriter(
            self.out_dir,
            self.job.worker,
            self.engine,
            self.workloads,
            secrets=(self.key,),
            count_text=self.count_text,
            answer_ids=self.codec.encode if self.codec else None,
        )


class LoadRun:
    """The timed part of a job."""

    def __init__(self, work: Work, progress: LineWriter | None) -> None:
        self.work = work
        self.progress = progress
        self.reason = ""
        job = work.job
        self._share = share_of(work.workload, job.worker, job.workers)
        self._live = Live(job.worker, len(self._share.requests), work.engine)
        self._spill = Spill(spill_file(work.out_dir, job.worker))
        self._dispatcher: Dispatcher | None = None
        self._pool: Pool | None = None
        self._lag: LoopLag | None = None

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._dispatcher is not None:
            self._dispatcher.stop(reason)

    async def run(self) -> Window:
        """Send the load; the window in which it happened. Every record is on disk when this returns."""
        job, work = self.work.job, self.work
        loop = asyncio.get_running_loop()
        self._pool = Pool(work.target, job.timeouts)
        room = self._share.in_flight
        measured_bodies = self._bodies(work.workload, self._share)
        warm_share, warm_bodies = self._warmup_share(room)
        await self._pool.open(room or (warm_share.in_flight if warm_share else 0) or 0)
        gc.collect()
        gc.freeze()
        gc.disable()  # a full collection stops every stream for its length
        t_begin = max(job.t_start or 0, time.monotonic_ns())
        t_measure = t_begin + round((job.warmup_s if work.warmup else 0.0) * 1e9)
        by_session = work.workload.load.mode == "sessions"
        schedule = Schedule(self._share.requests, t_measure, in_flight=room, by_session=by_session)
        self._dispatcher = Dispatcher(
            self._pool,
            work.engine,
            Phased("measure", schedule, measured_bodies, intended=room is None),
            warmup=_phased_warmup(warm_share, warm_bodies, t_begin),
            t_begin=t_begin,
            t_measure=t_measure,
            needed=_needed(work.workload),
            answer=work.answer,
            finished=self._finished,
        )
        if self.reason:  # stopped while loading
            self._dispatcher.stop(self.reason)
        self._lag = LoopLag(loop)
        beat = loop.create_task(self._beat())
        try:
            return await self._dispatcher.run()
        finally:
            beat.cancel()
            self._lag.close()
            self._pool.close()
            self._spill.close()

    def info(self, cpu_s: float, wall_s: float) -> WorkerInfo:
        stamps, why = self._pool.clock.verdict() if self._pool else ("none", "nothing was sent")
        return WorkerInfo(
            worker=self.work.job.worker,
            cpu_s=cpu_s,
            wall_s=wall_s,
            loop_lag_p99_ms=p99_ms(self._lag.samples if self._lag else []),
            dispatch_lag_p99_ms=p99_ms(self._dispatcher.dispatch_lag if self._dispatcher else []),
            kernel_stamps=stamps,  # type: ignore[arg-type]
            kernel_stamps_why=why,
        )

    def _bodies(self, workload: Workload, share: Share) -> Bodies:
        work = self.work
        bodies = Bodies(workload, work.job, work.target, work.engine, work.codec)
        bodies.prepare(share.requests)
        return bodies

    def _warmup_share(self, room: int | None) -> tuple[Share | None, Bodies | None]:
        """The warm-up runs with the room of the measured load, so that the one flows into the other."""
        warmup = self.work.warmup
        if warmup is None:
            return None, None
        own = share_of(warmup, self.work.job.worker, self.work.job.workers)
        number = room if room is not None else own.in_flight
        share = Share(own.requests, _WARMUP_IN_FLIGHT if number is None else number)
        return share, self._bodies(warmup, share)

    def _finished(self, record: RawRecord) -> None:
        try:
            self._spill.add(record)
        except OSError as error:
            self.stop(f"cannot write {self._spill.path.name}: {error.strerror}")
        self._live.add(record)

    async def _beat(self) -> None:
        assert self._dispatcher is not None
        assert self._pool is not None
        while True:
            self._pool.clock.refresh()
            self.say(self._dispatcher.in_flight, self._dispatcher.phase)
            await asyncio.sleep(PROGRESS_S)

    def say(self, in_flight: int, phase: str) -> None:
        if self.progress is not None:
            self.progress.write(self._live.line(time.monotonic_ns(), in_flight, phase))


def _phased_warmup(share: Share | None, bodies: Bodies | None, t_begin: int) -> Phased | None:
    if share is None or bodies is None:
        return None
    phase: Phase = "warmup"
    schedule = Schedule(share.requests, t_begin, in_flight=share.in_flight, by_session=False)
    return Phased(phase, schedule, bodies, intended=False)


def _needed(workload: Workload) -> frozenset[str]:
    return frozenset(
        part.request_id for request in workload.requests for part in request.prompt if isinstance(part, AnswerOf)
    )


def _listen(loop: asyncio.AbstractEventLoop, run: LoadRun) -> None:
    """End on SIGINT, SIGTERM, a line `stop` on stdin, or the death of the parent that holds stdin's other end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, run.stop, f"stopped by {number.name}")
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return
    os.set_blocking(0, False)

    def read() -> None:
        try:
            text = os.read(0, 4096)
        except BlockingIOError:
            return
        except OSError:
            text = b""
        if not text:
            loop.remove_reader(0)
            run.stop("the parent is gone")
        elif b"stop" in text:
            run.stop("stopped by the parent")

    loop.add_reader(0, read)


def _raise_file_limit() -> None:
    """One connection per request in flight; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))


def run_job(job: ClientJob, engine: Engine, progress: LineWriter | None = None, *, listen: bool = True) -> WorkerResult:
    """The whole job in this process: load, rows, result. UsageError, WorkloadError, InfrastructureError."""
    try:
        return _run_job(job, engine, progress, listen=listen)
    finally:
        gc.unfreeze()
        gc.enable()


def _run_job(job: ClientJob, engine: Engine, progress: LineWriter | None, *, listen: bool) -> WorkerResult:
    import uvloop

    began = time.monotonic()
    _raise_file_limit()
    work = Work(job, engine)
    run: LoadRun | None = None

    async def main() -> tuple[LoadRun, Window]:
        nonlocal run
        run = LoadRun(work, progress)
        if listen:
            _listen(asyncio.get_running_loop(), run)
        return run, await run.run()

    try:
        run, window = uvloop.run(main())
    except OSError as error:
        raise InfrastructureError(f"the client failed: {error}", mend="check the disk and the engine's URL") from error
    info = run.info(time.process_time(), time.monotonic() - began)
    spill = spill_file(work.out_dir, job.worker)
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own pools keep tens of MB that are never used again
    try:
        decode_spill(spill, work.part_writer())
    except OSError as error:
        raise InfrastructureError(f"cannot write rows: {error}", mend="free some space") from error
    # Only now, with every row in place, may the raw bytes go.
    spill.unlink()
    result = WorkerResult(worker=job.worker, complete=not run.reason, reason=run.reason, window=window, info=info)
    result.info.cpu_s = time.process_time()
    write_atomic(result_file(work.out_dir, job.worker), (result.model_dump_json(indent=2) + "\n").encode())
    run.say(0, "end")
    return result


def read_job(path: Path) -> ClientJob:
    try:
        return ClientJob.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: {where}: {first['msg']}") from None


def main(argv: list[str]) -> int:
    from harness.engines.registry import adapter

    keep_pandas_out()
    if len(argv) != 1:
        print("usage: python -m harness.client.worker JOB.json", file=sys.stderr)
        return 2
    try:
        job = read_job(Path(argv[0]))
        writer = LineWriter(sys.stdout.fileno())
        try:
            run_job(job, adapter(job.engine_kind), writer)
        finally:
            writer.close()
    except WorkloadError as error:
        print(error, file=sys.stderr)
        return 2
    except ServescopeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
