"""`run`: plan in, run directory and report out. Engines one after the other, cells in the plan's order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from harness.cli.jobs.cell import run_cell
from harness.cli.jobs.prepare import Prepared, RunOptions, prepare
from harness.cli.jobs.report import show
from harness.cli.jobs.session import Session, session
from harness.cli.live import LiveView
from harness.engines.protocol import EngineConfig
from harness.records.errors import InfrastructureError, InvalidRunError, ServescopeError
from harness.records.rundir import CellDir, RunDir, write_atomic
from workloads.model import Workload

__all__ = ["RunOptions", "run_command"]


def run_command(options: RunOptions, *, as_json: bool) -> int:
    """Exit codes: 0 a valid run; 4 invalid or interrupted; 5 an engine or the disk failed."""
    console = Console(stderr=True)
    prepared = prepare(options)
    run = RunDir.create(options.out)
    write_atomic(run.path / "plan.toml", prepared.plan.to_toml().encode())
    view = LiveView(console)
    failure = _drive(run, prepared, view)
    if not any(True for _ in run.cells()):
        raise failure or InvalidRunError(f"{run.path}: no cell was run")
    code = show(run.path, as_json=as_json)
    if failure is not None:
        raise failure
    return code


def _drive(run: RunDir, prepared: Prepared, view: LiveView) -> ServescopeError | None:
    """Every cell; the first failure that ends the run, if there is one. What was collected is kept in any case.

    Engines start and stop outside the event loop, which would hold a Ctrl-C back until a wait of minutes is over.
    """
    try:
        with asyncio.Runner() as runner:
            for config in prepared.configs:
                launches = list(_launches(prepared, config))
                for number, cells in enumerate(launches, start=1):
                    suffix = f"-{number}" if len(launches) > 1 else ""
                    log = run.path / "logs" / f"{config.name}{suffix}.log"
                    with session(config, prepared.model, log, view) as live:
                        _cells(run, prepared, live, cells, runner, view)
    except ServescopeError as error:
        return error
    except OSError as error:
        return InfrastructureError(f"{error.filename or run.path}: {error.strerror or error}", mend="check the disk")
    except KeyboardInterrupt:
        return InvalidRunError("interrupted", mend=f"what was collected is in {run.path}")
    return None


def _launches(prepared: Prepared, config: EngineConfig) -> Iterator[list[tuple[Workload, int]]]:
    """The cells of an engine, grouped by the process they share."""
    repeats = range(1, prepared.plan.run.repeats + 1)
    cells = [(workload, repeat) for repeat in repeats for workload in prepared.workloads]
    if prepared.plan.run.launch == "per-cell" and config.url is None:
        yield from ([cell] for cell in cells)
    else:
        yield cells


def _cells(
    run: RunDir,
    prepared: Prepared,
    live: Session,
    cells: list[tuple[Workload, int]],
    runner: asyncio.Runner,
    view: LiveView,
) -> None:
    """The cells that one process of an engine serves, each with its part of the log; raises when one fails."""
    logged = 0
    for workload, repeat in cells:
        cell = run.new_cell(f"{live.config.name}.{workload.name}.r{repeat}")
        try:
            runner.run(_cell(run, cell, prepared, live, workload, repeat, view))
        finally:
            logged = _copy_log(live.log, logged, cell)


async def _cell(
    run: RunDir, cell: CellDir, prepared: Prepared, live: Session, workload: Workload, repeat: int, view: LiveView
) -> None:
    """One cell; raises when the run cannot go on."""
    engine = next(part for part in prepared.plan.engines if part.name == live.config.name)
    prepared.plan.check_fits(workload, engine, live.info.max_model_len)
    outcome = await run_cell(cell, prepared, live, workload, repeat, view)
    if outcome.interrupted:
        raise InvalidRunError(f"interrupted in {cell.name}", mend=f"what was collected is in {run.path}")
    if outcome.status == "died":
        raise InfrastructureError(f"{cell.name}: {outcome.reason}", mend=f"what was collected is in {run.path}")


def _copy_log(log: Path | None, start: int, cell: CellDir) -> int:
    """The engine's log from byte `start` on, which is what belongs to this cell, start-up included for the first.
    The byte at which the next cell begins. A server that was there before has no log."""
    if log is None:
        return start
    with suppress(OSError, InfrastructureError):  # on a full disk logs/ still has it
        with log.open("rb") as stream:
            stream.seek(start)
            text = stream.read()
        write_atomic(cell.file("engine.log"), text)
        return start + len(text)
    return start
