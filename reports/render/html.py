"""report.html: one file that stands alone. Everything that is not a chart of ours is escaped by the template engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.render import charts, tables, words
from reports.render.bench_block import NOTE, bench_block
from reports.report import CellReport, RunReport
from reports.triage.ladder import TITLES


def render_html(report: RunReport) -> str:
    """The page. It loads nothing: styles and charts are inside, and there is no script."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["plain"] = words.plain
    return environment.get_template("report.html.jinja").render(
        name=report.path.resolve().name,
        verdict=report.verdict,
        three=report.three,
        comparison=[
            {"table": table, "chart": _distributions(report, table.title, number)}
            for number, table in enumerate(tables.comparison(report))
        ],
        summaries=[tables.cached(report), tables.doubts(report)] if report.cells else [],
        footnote=words.FOOTNOTE,
        cells=[_cell(cell, number) for number, cell in enumerate(report.cells)],
        glossary=tables.glossary(),
        note=NOTE,
    )


def _distributions(report: RunReport, workload: str, number: int) -> str:
    cells = [cell for cell in report.cells if cell.workload == workload]
    return charts.distributions(cells, f"d{number}")


def _cell(cell: CellReport, number: int) -> dict[str, Any]:
    manifest = cell.cell.manifest
    info = manifest.engine
    return {
        "name": cell.cell.name,
        "state": cell.validity.state,
        "facts": [
            ("engine", f"{info.kind} {info.version or 'unknown'}"),
            ("model", manifest.model.name),
            ("workload", f"{manifest.workload.name} ({manifest.workload.family}, seed {manifest.workload.seed})"),
            ("cache", f"{manifest.cache.state} by {manifest.cache.method}"),
            ("evidence", manifest.evidence),
            ("taken", manifest.created_utc),
            ("status", manifest.status + (f": {manifest.died_of}" if manifest.died_of else "")),
        ],
        "lines": [finding.text for finding in cell.tails] + [cell.error.line],
        "chart": charts.over_time(cell, f"t{number}"),
        "stages": [{"title": TITLES[stage.stage], "stage": stage} for stage in cell.stages],
        "tables": [
            tables.cached_by_class(cell),
            tables.sums(cell),
            tables.distributions(cell),
            tables.checks(cell),
        ],
        "block": bench_block(cell.cell),
    }
