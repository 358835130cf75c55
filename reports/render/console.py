"""The report on a terminal: verdict, the three lines, tables, the block, the ladder. Reads well at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from harness.records.judgements import Stage
from reports.render import tables, words
from reports.render.bench_block import NOTE, bench_block
from reports.render.tables import Table
from reports.report import RunReport
from reports.triage.ladder import TITLES

STYLES = {"ok": "bold green", "inconclusive": "bold yellow", "invalid": "bold red", "infrastructure": "bold red"}


def render_console(report: RunReport, console: Console) -> None:
    """Print the report. rich leaves colours out where the output is no terminal."""
    for part in _parts(report, console.width):
        console.print(part)


def _parts(report: RunReport, width: int) -> Iterator[RenderableType]:
    yield _text(report.verdict.headline, STYLES.get(report.verdict.verdict, "bold"))
    for line in report.three:
        yield Text("· ").append_text(_text(line))
    for table in tables.comparison(report):
        yield from _fitted(table, width)
    if report.cells:
        yield _text(words.FOOTNOTE, "dim")
        yield from _fitted(tables.cached(report), width)
        yield _dressed(tables.doubts(report))
    yield from _blocks(report)
    if len(report.cells) == 1:
        yield _ladder(report.cells[0].stages)
    elif report.cells:
        yield _text("The evidence ladder and the block of each cell stand in report.md and report.html.", "dim")
    yield _text(f"report: {report.html}")


def _blocks(report: RunReport) -> Iterator[RenderableType]:
    """With several cells only the first block is printed, so that the screen stays readable."""
    for cell in report.cells[:1]:
        block = bench_block(cell.cell)
        if block:
            yield Text()
            yield Group(
                *([_text(cell.cell.name, "bold")] if len(report.cells) > 1 else []), Text(block), _text(NOTE, "dim")
            )


def _fitted(table: Table, width: int) -> Iterator[RenderableType]:
    """A table, cut into several where its columns do not fit side by side; the first column is repeated."""
    widths = [max(len(cell) for cell in column) for column in zip(table.columns, *table.rows, strict=True)]
    groups: list[list[int]] = [[]]
    used = widths[0]
    for column in range(1, len(widths)):
        if groups[-1] and used + widths[column] + 2 > width - 2:
            groups.append([])
            used = widths[0]
        groups[-1].append(column)
        used += widths[column] + 2
    for number, group in enumerate(groups):
        keep = [0, *group]
        part = Table(
            table.title if number == 0 else f"{table.title} (continued)",
            tuple(table.columns[at] for at in keep),
            tuple(tuple(row[at] for at in keep) for row in table.rows),
            table.note if number == len(groups) - 1 else "",
        )
        yield _dressed(part)


def _dressed(table: Table) -> RenderableType:
    title = _text(table.title, "bold")
    note = [_text(table.note, "dim")] if table.note else []
    if not table.rows:
        return Group(Text(), Text.assemble(title, ": none"), *note)
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for column in table.columns:
        shown.add_column(_text(column), overflow="fold")
    for row in table.rows:
        shown.add_row(*(_text(cell) for cell in row))
    return Group(Text(), title, shown, *note)


def _ladder(stages: Sequence[Stage]) -> RenderableType:
    lines: list[RenderableType] = [Text(), _text("Evidence ladder", "bold")]
    for number, stage in enumerate(stages, start=1):
        style = "dim" if stage.state == "not_observable" else ""
        lines.append(
            Text(f"{number} ").append(TITLES[stage.stage], "bold").append_text(_text(f": {stage.headline}", style))
        )
    return Group(*lines)


def _text(text: str, style: str = "") -> Text:
    """Text as it is: never markup, never a control sequence."""
    return Text(words.plain(text), style)
