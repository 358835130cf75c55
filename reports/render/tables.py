"""The report's tables as rows of text; console, Markdown and HTML only dress them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.judgements import ExpectedClass
from reports.metrics import BY_ID, METRICS, PERCENTILES, Measured
from reports.render import words
from reports.report import CellReport, RunReport

# (metric, percentile or None for the mean or the figure itself, label)
COMPARED: tuple[tuple[str, float | None, str], ...] = (
    ("ttft", 0.5, "TTFT P50"),
    ("ttft", 0.99, "TTFT P99"),
    ("ttft_intended", 0.99, "TTFT P99 from intended"),
    ("tpot", None, "TPOT mean"),
    ("tpot", 0.5, "TPOT P50"),
    ("tpot", 0.99, "TPOT P99"),
    ("chunk_gap", 0.99, "chunk gap P99"),
    ("e2e", 0.5, "E2E P50"),
    ("queue_time", 0.5, "queue time P50"),
    ("output_throughput", None, "output tokens/s"),
    ("request_rate", None, "requests/s"),
    ("goodput", None, "goodput, requests/s"),
    ("hit_rate", None, "hit rate, usage"),
    ("hit_rate_counters", None, "hit rate, counters"),
    ("kv_usage_max", None, "KV usage, peak"),
)


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def comparison(report: RunReport) -> list[Table]:
    """One table a workload: metrics down, engines across."""
    return [_compared(report, workload) for workload in report.workloads]


def _compared(report: RunReport, workload: str) -> Table:
    engines = [engine for engine in report.engines if report.of(workload, engine)]
    groups = [report.of(workload, engine) for engine in engines]
    rows: list[tuple[str, ...]] = [("answered / measured", *(_answered(group) for group in groups))]
    for metric, q, label in COMPARED:
        cells = [_shown(group, metric, q) for group in groups]
        if any(cell != "-" for cell in cells):
            unit = words.unit_of(BY_ID[metric].unit)
            rows.append((f"{label}, {unit}" if unit in ("ms", "%") else label, *cells))
    load = groups[0][0].cell.manifest.workload.load
    note = f"load: {_load(load)}"
    if any(len(group) > 1 for group in groups):
        note += "; several repeats: median (lowest to highest)"
    return Table(workload, ("", *engines), tuple(rows), note)


def _load(load: dict[str, object]) -> str:
    parts = {key: value for key, value in load.items() if key not in ("mode", "params")}
    inner = load.get("params")
    parts |= inner if isinstance(inner, dict) else {}
    words_of = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in parts.items()]
    return ", ".join([str(load.get("mode", "unknown")), *words_of])


def _answered(group: Sequence[CellReport]) -> str:
    return ", ".join(f"{len(cell.cell.ok)} / {len(cell.cell.measured)}" for cell in group)


def _shown(group: Sequence[CellReport], metric: str, q: float | None) -> str:
    unit = BY_ID[metric].unit
    found = [estimate for cell in group if (estimate := cell.measured[metric].estimate(q)) is not None]
    if not found:
        return "-"
    return words.estimate(found[0], unit) if len(group) == 1 else words.repeats([e.value for e in found], unit)


def cached(report: RunReport) -> Table:
    """Cached tokens of each cell by both witnesses, beside what they must be."""
    rows = [
        (
            cell.cell.name,
            _bounds(cell.expected.total),
            _tokens(cell.expected.total.usage),
            _tokens(cell.expected.total.counters),
            cell.expected.verdict,
            cell.expected.grade or "-",
        )
        for cell in report.cells
    ]
    note = "over the whole cell, warm-up included; grade says how the reuse rules of this release were checked"
    columns = ("cell", "expected", "usage", "counters", "verdict", "grade")
    return Table("Cached tokens, expected and measured", columns, tuple(rows), note)


def cached_by_class(cell: CellReport) -> Table:
    """One cell's cached tokens per cache class."""
    rows = [
        (
            part.cache_class,
            str(part.requests),
            f"{part.prompt_tokens:,}",
            _bounds(part),
            _tokens(part.usage),
        )
        for part in (*cell.expected.classes, cell.expected.total)
    ]
    note = cell.expected.explanation
    if cell.expected.why_interval:
        note += f"; not exact: {cell.expected.why_interval}"
    return Table(
        "Cached tokens by class", ("class", "requests", "prompt tokens", "expected", "usage"), tuple(rows), note
    )


def _bounds(part: ExpectedClass) -> str:
    if part.low is None or part.high is None:
        return "-"
    return f"{part.low:,}" if part.low == part.high else f"{part.low:,} to {part.high:,}"


def _tokens(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def sums(cell: CellReport) -> Table:
    """The client's sums against the engine's counters."""
    rows = [
        (line.what, _tokens(line.client), _tokens(line.engine), line.state.replace("_", " "), line.why)
        for line in cell.lines
    ]
    note = "over the whole cell, warm-up included; both sides must be equal"
    return Table("Client rows and engine counters", ("", "client", "engine", "state", "why"), tuple(rows), note)


def doubts(report: RunReport) -> Table:
    """Checks that did not pass."""
    rows = [
        (cell.cell.name, check.id, check.state, check.why)
        for cell in report.cells
        for check in cell.validity.checks
        if check.state != "ok"
    ]
    passed = sum(check.state == "ok" for cell in report.cells for check in cell.validity.checks)
    return Table("Checks that did not pass", ("cell", "check", "state", "why"), tuple(rows), f"{passed} checks passed")


def checks(cell: CellReport) -> Table:
    rows = [(check.id, check.state, check.why) for check in cell.validity.checks]
    return Table("Can it be believed?", ("check", "state", "why"), tuple(rows))


def distributions(cell: CellReport) -> Table:
    """Every metric of a cell with its intervals, or the reason why it has no value."""
    rows = [_metric_row(cell.measured[metric.id]) for metric in METRICS]
    columns = ("metric", "n", "mean or value", *(f"P{q * 100:g}" for q in PERCENTILES), "remark")
    return Table("All metrics", columns, tuple(rows), words.FOOTNOTE)


def _metric_row(found: Measured) -> tuple[str, ...]:
    metric = found.metric
    unit = words.unit_of(metric.unit)
    name = f"{metric.name}, {unit}" if unit in ("ms", "%") else metric.name
    value = found.estimate()
    percentiles = [words.estimate(found.estimate(q), metric.unit) for q in PERCENTILES]
    if found.distribution is None:
        percentiles = [""] * len(PERCENTILES)
    number = f"{value.n:,}" if value else "0"
    return name, number, words.estimate(value, metric.unit), *percentiles, found.refused or found.note


def glossary() -> Table:
    rows = [(metric.name, metric.words, metric.formula, metric.weighting, metric.source) for metric in METRICS]
    return Table("What the metrics mean", ("metric", "words", "formula", "weighting", "source"), tuple(rows))
