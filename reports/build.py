"""Every report of a run, made again from its artefacts alone: no engine is asked anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from harness.records.errors import InvalidRunError, UsageError
from harness.records.judgements import Verdict
from harness.records.rundir import CellDir, RunDir, write_atomic
from reports.cell import load_cell
from reports.client_error import client_error
from reports.expected import expect
from reports.findings import tail
from reports.headline import three_lines, verdict
from reports.join import join, write_joined
from reports.metrics import measure
from reports.reconcile import reconcile
from reports.report import CellReport, RunReport
from reports.signals import signals_of
from reports.triage.ladder import ladder
from reports.validity import validity


def build_report(path: Path) -> RunReport:
    """Work out and write everything: per cell validity.json, expected.json, joined.parquet and triage.json; for the
    run report.md, report.html and verdict.json.

    UsageError for a directory that is none or has a foreign schema, InfrastructureError for a disk that refuses.
    """
    from reports.render.html import render_html
    from reports.render.markdown import render_markdown

    run = RunDir.open(Path(path))
    cells, lost = _readable(run)
    cells.sort(key=lambda report: (report.cell.manifest.anchor.unix_ns, report.cell.name))  # as they were run
    for cell in cells:
        _write_cell(cell)
    report = RunReport(path=run.path, cells=cells, verdict=_with_lost(verdict(cells), lost), three=three_lines(cells))
    write_atomic(run.path / "report.md", render_markdown(report).encode())
    write_atomic(run.path / "report.html", render_html(report).encode())
    write_atomic(run.path / "verdict.json", (report.verdict.model_dump_json(indent=2) + "\n").encode())
    return report


def _readable(run: RunDir) -> tuple[list[CellReport], list[UsageError]]:
    """The cells that can be read, and why others cannot; UsageError if that leaves none."""
    cells: list[CellReport] = []
    lost: list[UsageError] = []
    for directory in run.all_cells():
        try:
            cells.append(_cell_report(directory))
        except UsageError as error:
            lost.append(error)
    if lost and not cells:
        raise lost[0]
    return cells, lost


def _with_lost(found: Verdict, lost: Sequence[UsageError]) -> Verdict:
    """A run without one of its cells is not the run that was asked for, however well the others went."""
    if not lost:
        return found
    headline = f"invalid: cells that cannot be read: {len(lost)} ({lost[0].what}); of the others: {found.headline}"
    return found.model_copy(update={"verdict": "invalid", "exit_code": InvalidRunError.exit_code, "headline": headline})


def _cell_report(directory: CellDir) -> CellReport:
    cell = load_cell(directory)
    signals = signals_of(cell)
    measured = measure(cell, signals)
    error = client_error(cell)
    lines = reconcile(cell, signals)
    return CellReport(
        cell=cell,
        signals=signals,
        measured=measured,
        error=error,
        lines=lines,
        validity=validity(cell, signals, measured, error, lines),
        expected=expect(cell, signals),
        joined=join(cell, signals),
        tails=[tail(cell, signals, measured, metric) for metric in ("ttft", "tpot")],
        stages=ladder(cell, signals, measured),
    )


def _write_cell(report: CellReport) -> None:
    directory = report.cell.dir
    directory.write_model("validity.json", report.validity)
    directory.write_model("expected.json", report.expected)
    if report.joined is not None:
        write_joined(report.cell, report.joined)
    stages = {"schema_version": report.validity.schema_version, "stages": [s.model_dump() for s in report.stages]}
    write_atomic(directory.file("triage.json"), (json.dumps(stages, indent=2) + "\n").encode())
