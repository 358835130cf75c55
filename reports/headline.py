"""The verdict of a run, and the three lines under it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.records.judgements import ExpectedClass, MetricVerdict, Part, Verdict, VerdictName
from reports import cache_verdict
from reports.metrics import Measured
from reports.report import CellReport

EXIT: dict[VerdictName, int] = {"ok": 0, "inconclusive": 3, "invalid": 4, "infrastructure": 5}
PRIMARY = ("ttft", "tpot", "chunk_gap", "e2e", "output_throughput", "request_rate", "goodput", "hit_rate")
UNSETTLED = (cache_verdict.UNEXPLAINED, cache_verdict.DISAGREE)


def verdict(cells: Sequence[CellReport], kind: str = "run") -> Verdict:
    """ok; inconclusive where figures contradict each other; invalid where they cannot be believed at all."""
    name, headline = _judged(cells)
    return Verdict(
        kind=kind,
        verdict=name,
        exit_code=EXIT[name],
        headline=headline,
        metrics=[row for cell in cells for row in _metrics(cell)],
        stages=list(cells[0].stages) if len(cells) == 1 else [],
        parts=[Part(name=cell.cell.name, seconds=_seconds(cell)) for cell in cells],
        detail={
            "cells": {
                cell.cell.name: {
                    "engine": cell.engine,
                    "workload": cell.workload,
                    "repeat": cell.cell.manifest.repeat,
                    "validity": cell.validity.state,
                    "cache": cell.expected.verdict,
                }
                for cell in cells
            }
        },
    )


def _judged(cells: Sequence[CellReport]) -> tuple[VerdictName, str]:
    if not cells:
        return "invalid", "invalid: the run holds no cell, so nothing was measured"
    died = [cell for cell in cells if cell.cell.manifest.status == "died"]
    if died:
        return "infrastructure", f"infrastructure: {_first_reason(died[0])} ({died[0].cell.name})"
    void = [cell for cell in cells if cell.validity.state == "void"]
    if void:
        return "invalid", f"invalid: {_first_reason(void[0])} ({_names(void)})"
    contradicted = [cell for cell in cells if _contradiction(cell)]
    if contradicted:
        first = contradicted[0]
        return "inconclusive", f"inconclusive: {_contradiction(first)} ({_names(contradicted)})"
    doubts = [(cell, check) for cell in cells for check in cell.validity.checks if check.state == "suspect"]
    scope = f"{_count(cells, 'engine')}, {_count(cells, 'workload')}, {_plural(len(cells), 'cell')}"
    requests = sum(len(cell.cell.ok) for cell in cells)
    if not doubts:
        return "ok", f"ok: {scope}, {requests:,} requests answered, every check passed"
    cell, check = doubts[0]
    more = f" and {_plural(len(doubts) - 1, 'other doubt')}" if len(doubts) > 1 else ""
    return "ok", f"ok, with doubt: {check.why} ({cell.cell.name}){more}; {scope}, {requests:,} requests answered"


def _first_reason(cell: CellReport) -> str:
    return next((check.why for check in cell.validity.checks if check.state == "void"), "the run ended early")


def _contradiction(cell: CellReport) -> str:
    """Figures that cannot all be true."""
    wrong = [line for line in cell.lines if line.state == "differs"]
    if wrong:
        line = wrong[0]
        return f"{line.what}: the client has {line.client:,}, the engine's counters grew by {line.engine:,}"
    return cell.expected.explanation if cell.expected.verdict in UNSETTLED else ""


def _names(cells: Sequence[CellReport]) -> str:
    rest = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    return cells[0].cell.name + rest


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _count(cells: Sequence[CellReport], what: str) -> str:
    return _plural(len({getattr(cell, what) for cell in cells}), what)


def _seconds(cell: CellReport) -> float:
    whole = cell.cell.whole
    return whole[1] - whole[0] if whole else 0.0


def _metrics(cell: CellReport) -> list[MetricVerdict]:
    """Every primary metric; a distribution gives its mean, P50 and P99."""
    rows = []
    for name in PRIMARY:
        found = cell.measured[name]
        if found.distribution is None:
            rows.append(_metric(cell, found, None, "value"))
        else:
            rows += [_metric(cell, found, q, label) for q, label in ((None, "mean"), (0.5, "p50"), (0.99, "p99"))]
    return [row for row in rows if row.value is not None]


def _metric(cell: CellReport, found: Measured, q: float | None, statistic: str) -> MetricVerdict:
    estimate = found.estimate(q)
    return MetricVerdict(
        metric=found.metric.id,
        unit=found.metric.unit,
        value=estimate.value if estimate else None,
        interval=estimate.interval if estimate else None,
        n=estimate.n if estimate else 0,
        labels={
            "cell": cell.cell.name,
            "engine": cell.engine,
            "workload": cell.workload,
            "repeat": str(cell.cell.manifest.repeat),
            "statistic": statistic,
        },
    )


def three_lines(cells: Sequence[CellReport]) -> list[str]:
    """Cached tokens expected and measured; the client's own error; where the tail of TTFT is.

    With several cells each line speaks of the one that says most, and of how many others agree.
    """
    if not cells:
        return []
    return [_cache_line(cells), _error_line(cells), _tail_line(cells)]


def cache_words(cell: CellReport) -> str:
    expected = cell.expected
    total = expected.total
    return f"{_expected_words(total, expected.block_size)}, usage says {_or_nothing(total.usage)}, counters say " + (
        _or_nothing(total.counters)
    )


def _expected_words(total: ExpectedClass, block_size: int | None) -> str:
    if total.low is None or total.high is None:
        return "no expectation of cached tokens"
    tokens = f"{total.low:,}" if total.low == total.high else f"{total.low:,} to {total.high:,}"
    return f"expected {tokens} cached tokens" + (f" (block {block_size})" if block_size else "")


def _or_nothing(tokens: int | None) -> str:
    return "nothing" if tokens is None else f"{tokens:,}"


def _cache_line(cells: Sequence[CellReport]) -> str:
    """The cell whose measured figure needs a word, else the one with most cached tokens."""
    shown = min(cells, key=lambda cell: (_rank(cell.expected.verdict), -(cell.expected.total.usage or 0)))
    plain = shown.expected.verdict == cache_verdict.AS_EXPECTED
    line = f"{cache_words(shown)}" + (": as expected" if plain else f"; {shown.expected.explanation}")
    if len(cells) == 1:
        return line
    agree = sum(_within(cell.expected.total) for cell in cells)
    return f"{shown.cell.name}: {line} ({agree} of {len(cells)} cells within what is expected)"


def _rank(verdict_name: str) -> int:
    """What is most worth a line comes first."""
    order = (cache_verdict.UNEXPLAINED, cache_verdict.DISAGREE, cache_verdict.EVICTED, cache_verdict.KEY_MISMATCH)
    later = (cache_verdict.AS_EXPECTED,)
    if verdict_name in order:
        return order.index(verdict_name)
    return len(order) if verdict_name in later else len(order) + 1


def _within(total: ExpectedClass) -> bool:
    measured = total.counters if total.usage is None else total.usage
    return None not in (total.low, total.high, measured) and (total.low or 0) <= (measured or 0) <= (total.high or 0)


def _error_line(cells: Sequence[CellReport]) -> str:
    known = [cell for cell in cells if cell.error.ttft_p99 is not None]
    if not known:
        return cells[0].error.line
    worst = max(known, key=lambda cell: cell.error.ttft_p99 or 0.0)
    if len(cells) == 1:
        return worst.error.line
    return f"{worst.error.line}, at worst ({worst.cell.name}); measured in {len(known)} of {len(cells)} cells"


def _tail_line(cells: Sequence[CellReport]) -> str:
    """The tail that has a place in time, the longest against its median first."""

    def weight(cell: CellReport) -> tuple[bool, float]:
        finding, ttft = cell.tails[0], cell.measured["ttft"]
        p99, p50 = ttft.estimate(0.99), ttft.estimate(0.5)
        ratio = p99.value / p50.value if p99 and p50 and p50.value > 0 else -math.inf
        return finding.begin is not None, ratio

    shown = max(cells, key=weight)
    return shown.tails[0].text if len(cells) == 1 else f"{shown.cell.name}: {shown.tails[0].text}"
