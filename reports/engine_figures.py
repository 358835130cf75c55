"""Figures that only the engine can give: hit rate by its counters, KV usage, acceptance."""

from __future__ import annotations

import numpy as np

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
    """Of the measured requests. Counters know no phases, so the growth over the whole cell is taken, which is exact,
    and the warm-up's share, which its answers state, taken out; between two scrapes it would be a guess."""
    hits, queries = signals.get("prefix_hit_tokens"), signals.get("prefix_query_tokens")
    if hits is None or queries is None:
        return _missing(signals, "prefix_hit_tokens" if hits is None else "prefix_query_tokens")
    warmup = cell.requests.where(cell.requests["phase"] == "warmup")
    if np.isnan(warmup["prompt_tokens"]).any() or np.isnan(warmup["cached_tokens"]).any():
        return Figure.refuse("the warm-up's answers do not say how many tokens were cached")
    base = queries.growth() - warmup.sum("prompt_tokens")
    if base <= 0:
        return Figure.refuse("undefined: prefix_query_tokens did not grow beyond the warm-up")
    return Figure.plain((hits.growth() - warmup.sum("cached_tokens")) / base, round(base), "ratio of counters")


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
