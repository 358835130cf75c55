"""`report`: every report again, from artefacts alone."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def report_command(directory: Path, *, as_json: bool) -> int:
    return show(directory, as_json=as_json)


def show(directory: Path, *, as_json: bool) -> int:
    """Build all reports of a run and print the short one; the exit code is the verdict's."""
    from reports.build import build_report
    from reports.render.console import render_console

    report = build_report(directory)
    if as_json:
        print(report.verdict.model_dump_json(indent=2))
    else:
        render_console(report, Console())
    return report.verdict.exit_code
