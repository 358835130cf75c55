"""The steady window: when the load stood at its full height. Ramp-up and ramp-down are kept out of rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.cell import Cell, Rows


@dataclass(frozen=True)
class Window:
    """Seconds since the cell's zero."""

    begin: float
    end: float
    why: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def in_flight_steps(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(times, requests in flight from that time on), for all rows that were sent. A row without an end never ends."""
    sent = rows["t_sent"]
    begins = sent[np.isfinite(sent)]
    ends = rows["t_done"][np.isfinite(sent) & np.isfinite(rows["t_done"])]
    times = np.concatenate([begins, ends])
    steps = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
    order = np.lexsort((-steps, times))  # a send at the instant of an end counts first
    return times[order], np.cumsum(steps[order])


def mean_in_flight(rows: Rows, begin: float, end: float) -> float | None:
    """Time-weighted mean of requests in flight between two times; None for an empty interval."""
    if end <= begin:
        return None
    sent, done = rows["t_sent"], rows["t_done"]
    use = np.isfinite(sent)
    overlap = np.minimum(np.where(np.isfinite(done[use]), done[use], end), end) - np.maximum(sent[use], begin)
    return float(np.clip(overlap, 0.0, None).sum() / (end - begin))


def steady_window(cell: Cell) -> Window | None:
    """From the time the load first stood at full height to the last measured send; None without measured sends.

    Closed loops: full height is 95 % of what the load keeps in flight, or of the most that was reached where the
    workload's own order never lets it get there. Open loops have no height to reach: they begin with the first
    measured send.
    """
    sent = cell.measured["t_sent"]
    sent = sent[np.isfinite(sent)]
    if len(sent) == 0:
        return None
    first, last = float(sent.min()), float(sent.max())
    if last <= first:
        span = cell.span
        return Window(first, span[1], "one send: the whole run") if span and span[1] > first else None
    if not cell.closed_loop:
        return Window(first, last, "first to last measured send")
    times, height = in_flight_steps(cell.requests)
    inside = (times >= first) & (times <= last)
    peak = float(height[inside].max())
    target = 0.95 * min(peak, cell.in_flight or peak)
    begin = float(times[inside & (height >= target)][0])
    if begin >= last:
        return Window(first, last, "the load reached its height only with the last send: first to last measured send")
    return Window(begin, last, f"from {peak:.0f} requests in flight to the last measured send")
