"""Where the slow requests are: which ones, when, and how the engine stood at that time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reports.cell import Cell, Floats
from reports.metrics import Measured
from reports.series import Signals

FEWEST_SLOW = 4  # fewer than this lie close together by chance too often to speak of a place in time
FEWEST = 20
SLOW_FACTOR = 1.5  # P99 over the median; below it there is no tail. Slow: nearer to P99 than to the median
NARROW = 0.25  # of the run: what counts as "all of it between"
MOST = 0.8  # of the slow requests, where not all lie together
LONG_FACTOR = 2.0  # computed prompt tokens over the others': then length explains slowness


@dataclass(frozen=True)
class Finding:
    """One sentence, and what it was read from. `begin` and `end`: seconds since the cell's zero, if it has a place."""

    metric: str
    text: str
    begin: float | None = None
    end: float | None = None
    slow: int = 0
    engine: dict[str, float] = field(default_factory=dict)


def tail(cell: Cell, signals: Signals, measured: dict[str, Measured], metric: str = "ttft") -> Finding:
    """The tail of TTFT (or of another per-request metric) placed in time, or an honest word that it has no place."""
    found = measured[metric]
    p99, p50 = found.estimate(0.99), found.estimate(0.5)
    if p99 is None or p50 is None:
        return Finding(metric, f"{found.metric.name}: {found.refused}")
    head = f"{found.metric.name} P99 is {seconds(p99.value)}"
    values, times, rows = found.samples.values, found.samples.times, found.samples.row
    if len(values) < FEWEST:
        return Finding(metric, f"{head}, the largest of {len(values)}: too few to place a tail")
    if p99.value < SLOW_FACTOR * p50.value:
        return Finding(metric, f"{head}, {p99.value / p50.value:.1f} times the median: there is no tail")
    slow = values >= (p50.value + p99.value) / 2.0
    number = int(slow.sum())
    if number < FEWEST_SLOW:
        when = ", ".join(f"{at:.1f} s" for at in times[slow])
        return Finding(metric, f"{head}, from {number} slow requests of {len(values)}, sent at {when}", slow=number)
    length = _by_length(cell, rows, slow)
    place = _placed(cell, times, times + values, slow)
    if place is None:
        why = length or "spread over the run"
        return Finding(metric, f"{head}, {number} slow requests of {len(values)}: {why}", slow=number)
    begin, end, share = place
    engine = _engine_state(cell, signals, begin, end)
    part = "all of it" if share == 1.0 else f"{share:.0%} of it"
    text = f"{head}, {part} between {begin:.0f} s and {end:.0f} s"
    state = _in_words(engine)
    if state:
        text += f", with {state}"
    else:
        text += ", and no engine signal stands out then" if signals.names else ", and the engine was not observed"
    if length:
        text += f"; {length}"
    return Finding(metric, text, begin, end, number, engine)


def _placed(cell: Cell, begins: Floats, ends: Floats, slow: NDArray[np.bool_]) -> tuple[float, float, float] | None:
    """(begin, end, share): the shortest stretch that holds all slow requests, or most; None if that is most of the run.

    Others that were as busy at that time and not slow do not count against it: a stretch is a place, not a cause.
    """
    if cell.span is None:
        return None
    run = cell.span[1] - cell.span[0]
    order = np.argsort(begins[slow])
    first, last = begins[slow][order], ends[slow][order]
    for share in (1.0, MOST):
        need = math.ceil(share * len(first))
        stretches = [(float(last[at : at + need].max()), float(first[at])) for at in range(len(first) - need + 1)]
        end, begin = min(stretches, key=lambda stretch: stretch[0] - stretch[1])
        if end - begin <= NARROW * run:
            return begin, end, need / len(first)
    return None


def _by_length(cell: Cell, rows: NDArray[np.int64], slow: NDArray[np.bool_]) -> str:
    """Slow because they had more to compute? Prompt tokens less cached ones, median of the slow against the rest."""
    everything = cell.requests
    computed = everything["prompt_tokens"][rows] - np.nan_to_num(everything["cached_tokens"][rows])
    mine, others = computed[slow], computed[~slow]
    mine, others = mine[np.isfinite(mine)], others[np.isfinite(others)]
    if not len(mine) or not len(others):
        return ""
    a, b = float(np.median(mine)), float(np.median(others))
    if a < LONG_FACTOR * max(b, 1.0):
        return ""
    return f"the slow ones had more to compute, {a:,.0f} prompt tokens against {b:,.0f}"


def _engine_state(cell: Cell, signals: Signals, begin: float, end: float) -> dict[str, float]:
    """What the engine showed in a stretch: peaks of gauges, growth of counters."""
    state: dict[str, float] = {}
    for name in ("kv_usage", "queue_depth", "running"):
        series = signals.get(name)
        peak = series.maximum(begin, end) if series is not None else None
        if peak is not None:
            state[name] = peak
    for name in ("preemptions", "evicted_tokens", "rejections"):
        series = signals.get(name)
        if series is not None and (grown := series.growth(begin, end)) >= 0.5:
            state[name] = grown
    return state


def _in_words(state: dict[str, float]) -> str:
    words = []
    if "kv_usage" in state:
        words.append(f"KV at {state['kv_usage']:.0%}")
    if state.get("queue_depth", 0.0) >= 1:
        words.append(f"up to {state['queue_depth']:.0f} waiting")
    for name, noun in (
        ("preemptions", "preemptions"),
        ("evicted_tokens", "tokens evicted"),
        ("rejections", "rejected"),
    ):
        if name in state:
            words.append(f"{state[name]:,.0f} {noun}")
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1] if words else ""


def seconds(value: float) -> str:
    """A time as people say it: 3.1 s, 23.4 ms."""
    return f"{value:.2g} s" if 1.0 <= value < 10 else f"{value:.0f} s" if value >= 10 else f"{value * 1e3:.3g} ms"
