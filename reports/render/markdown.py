"""report.md: the same report for a terminal without colours, a job summary or a ticket."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.records.judgements import Stage
from reports.render import tables, words
from reports.render.bench_block import NOTE, bench_block
from reports.render.tables import Table
from reports.report import CellReport, RunReport
from reports.triage.ladder import TITLES

MOST_CHARACTERS = 65_000  # what job summaries take
_SPECIAL = re.compile(r"([\\`*_{}\[\]|#~$])")


def render_markdown(report: RunReport) -> str:
    """The report. One that would grow too long leaves out the details of later cells, and says how many."""
    parts = [f"# servescope: {escape(report.path.resolve().name)}", f"**{escape(report.verdict.headline)}**"]
    parts += ["\n".join(f"- {escape(line)}" for line in report.three)]
    parts += [_table(table) for table in tables.comparison(report)]
    if report.cells:
        parts += [escape(words.FOOTNOTE), _table(tables.cached(report)), _table(tables.doubts(report))]
    size = sum(len(part) + 2 for part in parts)
    left_out = 0
    for cell in report.cells:
        detail = _detail(cell)
        size += len(detail) + 2
        if left_out or size > MOST_CHARACTERS - 6_000:
            left_out += 1
            continue
        parts.append(detail)
    if left_out:
        shown = len(report.cells) - left_out
        parts.append(f"Details of {shown} of {len(report.cells)} cells are shown; report.html has all of them.")
    parts.append(_table(tables.glossary()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _detail(cell: CellReport) -> str:
    """One cell: the block, the ladder, the sums and the checks."""
    parts = [f"## {escape(cell.cell.name)}", _findings(cell)]
    block = bench_block(cell.cell)
    if block:
        parts.append(f"```\n{block}\n```\n\n{escape(NOTE)}")
    parts += [_ladder(cell.stages), _table(tables.cached_by_class(cell)), _table(tables.sums(cell))]
    parts += [_table(tables.distributions(cell)), _table(tables.checks(cell))]
    return "\n\n".join(parts)


def _findings(cell: CellReport) -> str:
    return "\n".join(f"- {escape(finding.text)}" for finding in cell.tails) + f"\n- {escape(cell.error.line)}"


def _ladder(stages: Sequence[Stage]) -> str:
    lines = ["### Evidence ladder", ""]
    for number, stage in enumerate(stages, start=1):
        lines.append(f"{number}. **{TITLES[stage.stage]}**: {escape(stage.headline)}")
        lines += [f"   - to see more: {escape(more)}" for more in stage.to_see_more]
    return "\n".join(lines)


def _table(table: Table) -> str:
    if not table.rows:
        return f"### {escape(table.title)}\n\n{escape(table.note) or 'nothing to show'}"
    lines = [f"### {escape(table.title)}", ""]
    lines.append("| " + " | ".join(escape(column) for column in table.columns) + " |")
    lines.append("|" + " --- |" * len(table.columns))
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + (f"\n\n{escape(table.note)}" if table.note else "")


def escape(text: str) -> str:
    """Text that Markdown shows as it is: one line, no markup, no HTML."""
    text = words.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)
