"""Figures that only the engine can give: hit rate by its counters, KV usage, acceptance."""

from __future__ import annotations

from reports.cell import Cell
from reports.rates import Figure
from reports.series import Series, Signals


def _missing(signals: Signals, name: str) -> Figure:
    absent = signals.absent(name)
    return Figure.refuse(f"not observable: {absent.why}" + (f"; {absent.flag} would show it" if absent.flag else ""))


def ratio(signals: Signals, over: str, under: str, begin: float | None = None, end: float | None = None) -> Figure:
    """Growth of one counter over that of another."""
    top, bottom = signals.get(over), signals.get(under)
    if top is None or bottom is None:
        return _missing(signals, over if top is None else under)
    base = bottom.growth(begin, end)
    if base <= 0:
        return Figure.refuse(f"undefined: {under} did not grow")
    return Figure.plain(top.growth(begin, end) / base, round(base), "ratio of counters")


def hit_rate_counters(cell: Cell, signals: Signals) -> Figure:
    return ratio(signals, "prefix_hit_tokens", "prefix_query_tokens")


def acceptance(cell: Cell, signals: Signals) -> Figure:
    return ratio(signals, "accepted_tokens", "drafted_tokens")


def _gauge(cell: Cell, signals: Signals, name: str) -> tuple[Series, float, float] | Figure:
    series = signals.get(name)
    if series is None:
        return _missing(signals, name)
    if cell.span is None:
        return Figure.refuse("no measured request was answered")
    return series, *cell.span


def _time_mean(cell: Cell, signals: Signals, name: str) -> Figure:
    found = _gauge(cell, signals, name)
    if isinstance(found, Figure):
        return found
    series, begin, end = found
    value = series.time_mean(begin, end)
    if value is None:
        return Figure.refuse("no scrape fell into the measured run")
    return Figure.plain(value, len(series.inside(begin, end)), "time-weighted over scrapes", series.note)


def kv_usage_mean(cell: Cell, signals: Signals) -> Figure:
    return _time_mean(cell, signals, "kv_usage")


def kv_evictable_mean(cell: Cell, signals: Signals) -> Figure:
    return _time_mean(cell, signals, "kv_evictable")


def kv_usage_max(cell: Cell, signals: Signals) -> Figure:
    found = _gauge(cell, signals, "kv_usage")
    if isinstance(found, Figure):
        return found
    series, begin, end = found
    value = series.maximum(begin, end)
    if value is None:
        return Figure.refuse("no scrape fell into the measured run")
    return Figure.plain(value, len(series.inside(begin, end)), "highest scrape", series.note)
