"""One cell from cache reset to tables: scrape, drive, wait until the engine is quiet, write everything down."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from harness.cli.jobs.cache import Isolation, isolate
from harness.cli.jobs.ends import Doorbell, Outcome, early_ends
from harness.cli.jobs.prepare import Prepared
from harness.cli.jobs.redact import redacted, without_words
from harness.cli.jobs.session import Session
from harness.cli.jobs.tokens import tokens_table
from harness.cli.live import LiveView
from harness.client.drive import DriveResult, drive
from harness.client.job import ClientJob
from harness.observe.environment import anchor, capture
from harness.observe.host import HostCollector
from harness.observe.scrape import Scraper
from harness.records.errors import InfrastructureError
from harness.records.manifest import Manifest, WorkloadInfo
from harness.records.reserve import Reserve
from harness.records.rundir import CellDir, utc_now, write_atomic
from harness.records.version import tool_version
from workloads.file import write_workload
from workloads.model import Workload, WorkloadError
from workloads.warmup import warmup_workload

QUIET_S = 10.0  # longest wait for counters to settle after the last answer
LIVE_SIGNALS = ("kv_usage", "prefix_hit_tokens", "prefix_query_tokens")


async def run_cell(
    cell: CellDir, prepared: Prepared, session: Session, workload: Workload, repeat: int, view: LiveView
) -> Outcome:
    """Drive one workload against one engine. Whatever happens, what was collected is in the cell when this returns."""
    plan = prepared.plan
    isolation = isolate(session, plan.run.cache, cell.name)
    manifest = _manifest(cell, prepared, session, workload, repeat, isolation)
    cell.write_manifest(manifest)
    scraper = Scraper(
        session.endpoint.metrics_url or f"{session.endpoint.base_url}/metrics",
        kind=session.info.kind,
        headers=session.endpoint.headers,
        interval_s=plan.run.scrape_s,
    )
    host = HostCollector(engine_pid=session.process.pid if session.process else None)
    parts = cell.path / ".client"
    reserve = Reserve(cell.path / ".room")
    outcome = Outcome("complete")
    stop = asyncio.Event()
    written = False
    view.begin(cell.name)
    try:
        jobs = _jobs(cell, parts, prepared, session, workload, isolation)
        with early_ends(session, outcome, stop):
            scraper.snapshot()
            scraper.start()
            host.start()
            result = await _load(jobs, session, scraper, outcome, stop, view)
            if not outcome.gone:  # an engine may count its last tokens after sending them
                await asyncio.to_thread(scraper.settle, QUIET_S)
            scraper.stop()
            host.stop()
            reserve.release()
            await asyncio.to_thread(_write, cell, prepared, manifest, scraper, host, result, outcome)
            written = True
    except (OSError, WorkloadError) as error:
        raise InfrastructureError(f"{cell.name}: {error}", mend=f"what was collected is in {cell.path}") from error
    finally:
        scraper.stop()
        host.stop()
        reserve.release()
        view.end(outcome.status if written else "not finished")
        if written or prepared.options.redact:  # else the raw rows are all there is
            shutil.rmtree(parts, ignore_errors=True)
    return outcome


async def _load(
    jobs: list[ClientJob], session: Session, scraper: Scraper, outcome: Outcome, stop: asyncio.Event, view: LiveView
) -> DriveResult:
    """The load from its first request to its last row; ends early when `stop` is set."""
    bell = Doorbell(session, lambda: view.state.failed, outcome)
    beside = [asyncio.create_task(_show_signals(scraper, view)), asyncio.create_task(bell.watch(stop))]
    try:
        result = await drive(jobs, on_progress=view.progress, stop=stop)
    finally:
        for task in beside:
            task.cancel()
    await bell.ring()
    if not result.complete:
        outcome.died(result.reason)
    return result


async def _show_signals(scraper: Scraper, view: LiveView) -> None:
    while True:
        await asyncio.sleep(1.0)
        view.signals(scraper.latest(LIVE_SIGNALS))


def _jobs(
    cell: CellDir, parts: Path, prepared: Prepared, session: Session, workload: Workload, isolation: Isolation
) -> list[ClientJob]:
    """One job a worker, and the two workload files they read."""
    run = prepared.plan.run
    parts.mkdir()
    write_workload(workload, parts / "workload.jsonl.gz")
    kept = redacted(workload) if prepared.options.redact else workload
    write_workload(kept, cell.file("workload.jsonl.gz"))
    warm_file = None
    if run.warmup_s > 0:
        warm_file = parts / "warmup.jsonl.gz"
        write_workload(warmup_workload(workload, prepared.vocabulary, prepared.plan.seed), warm_file)
    can = session.engine.capabilities
    return [
        ClientJob(
            worker=worker,
            workers=prepared.options.workers,
            engine_kind=session.info.kind,
            base_url=session.endpoint.base_url,
            model=session.endpoint.model,
            api_key_env=session.config.api_key_env,
            workload_file=str(parts / "workload.jsonl.gz"),
            warmup_file=str(warm_file) if warm_file else None,
            warmup_s=run.warmup_s,
            out_dir=str(parts),
            timeouts=prepared.plan.timeouts(),
            salt=isolation.salt,
            want_token_ids=run.evidence == "full" and can.token_ids_back,
            send_text=not can.id_prompts,
            tokenizer=str(prepared.model.path),
        )
        for worker in range(prepared.options.workers)
    ]


def _manifest(
    cell: CellDir, prepared: Prepared, session: Session, workload: Workload, repeat: int, isolation: Isolation
) -> Manifest:
    """The manifest as it stands when the load begins: `interrupted` until the end proves otherwise."""
    return Manifest(
        status="interrupted",
        tool_version=tool_version(),
        cell=cell.name,
        repeat=repeat,
        created_utc=utc_now(),
        engine=session.info,
        model=prepared.model_info,
        workload=WorkloadInfo(
            name=workload.name,
            family=workload.family,
            seed=workload.seed,
            params=dict(workload.params),
            load={"mode": workload.load.mode, **workload.load.params},
            requests=len(workload.requests),
        ),
        evidence=prepared.plan.run.evidence,
        cache=isolation.proof,
        slo=prepared.plan.slo_limits(),
        timeouts_s=prepared.plan.timeouts().model_dump(),
        scrape_s=prepared.plan.run.scrape_s,
        anchor=anchor(),
        redacted=prepared.options.redact,
        **capture(),
    )


def _write(
    cell: CellDir,
    prepared: Prepared,
    manifest: Manifest,
    scraper: Scraper,
    host: HostCollector,
    result: DriveResult,
    outcome: Outcome,
) -> None:
    """Tables first, the manifest that vouches for them last."""
    redact = prepared.options.redact
    cell.write_table("requests", without_words(result.requests) if redact else result.requests)
    cell.write_table("chunks", result.chunks)
    cell.write_table("tokens", tokens_table(result.requests, result.answers, redact=redact))
    cell.write_table("server", scraper.table())
    cell.write_table("host", host.table())
    logs = [path.read_bytes() for path in sorted((cell.path / ".client").glob("client-*.log"))]
    write_atomic(cell.file("client.log"), b"".join(logs))
    manifest = manifest.model_copy(
        update={
            "status": outcome.status,
            "died_at": utc_now() if outcome.status != "complete" else None,
            "died_of": outcome.reason or None,
            "window": result.window,
            "workers": [worker.info for worker in result.results],
            "scrape_errors": scraper.errors,
        }
    )
    cell.write_manifest(manifest)
