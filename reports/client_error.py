"""What the client itself added to the latencies of this run: user-space read minus the kernel's receive stamp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.cell import Cell, Floats
from reports.intervals import rank_of
from reports.samples import token_events


@dataclass(frozen=True)
class ClientError:
    """Seconds, nearest rank. None where no event carries a stamp; `why` then says so.

    read: lateness of all token-bearing events. ttft: lateness of first events, which is what TTFT is too large by.
    tpot: (lateness of the last - lateness of the first event) / (output_tokens - 1), sizes regardless of sign.
    """

    stamped: int
    events: int
    read_p50: float | None = None
    read_p99: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p99: float | None = None
    why: str = ""

    @property
    def line(self) -> str:
        if self.ttft_p99 is None:
            return f"client error in this run: not measured, {self.why}"
        share = "" if self.stamped == self.events else f" ({self.stamped / self.events:.0%} of events carry a stamp)"
        tpot = "" if self.tpot_p99 is None else f", TPOT ±{_milliseconds(self.tpot_p99)} P99"
        sign = "-" if self.ttft_p99 < 0 else "+"
        return f"client error in this run: TTFT {sign}{_milliseconds(self.ttft_p99)} P99{tpot}{share}"


def client_error(cell: Cell) -> ClientError:
    events = token_events(cell)
    late = events["t_arrival"] - events["t_kernel"] if len(events) else np.empty(0)
    stamped = np.isfinite(late)
    if not len(events):
        return ClientError(0, 0, why="no token arrived in a measured answer")
    if not stamped.any():
        return ClientError(0, len(events), why=_why(cell))
    edge = np.diff(events["row"]) != 0
    first, last = np.concatenate([[True], edge]), np.concatenate([edge, [True]])
    tokens = cell.requests["output_tokens"][events["row"][first]]
    with np.errstate(divide="ignore", invalid="ignore"):
        drift = np.abs(late[last] - late[first]) / (tokens - 1.0)
    drift = np.where(tokens >= 2, drift, np.nan)
    return ClientError(
        stamped=int(stamped.sum()),
        events=len(events),
        read_p50=_rank(late, 0.5),
        read_p99=_rank(late, 0.99),
        ttft_p50=_rank(late[first], 0.5),
        ttft_p99=_rank(late[first], 0.99),
        tpot_p99=_rank(drift, 0.99),
        why="" if stamped.any() and np.isfinite(late[first]).any() else "no first event carries a receive stamp",
    )


def _milliseconds(value: float) -> str:
    """Two digits, but not below a microsecond: the stamps are no better."""
    size = abs(value) * 1e3
    return f"{size:.2g} ms" if size >= 0.001 else "0.001 ms or less"


def _rank(values: Floats, q: float) -> float | None:
    ordered = np.sort(values[np.isfinite(values)])
    return float(ordered[rank_of(len(ordered), q) - 1]) if len(ordered) else None


def _why(cell: Cell) -> str:
    reasons = sorted({worker.kernel_stamps_why for worker in cell.manifest.workers if worker.kernel_stamps_why})
    return reasons[0] if reasons else "no event carries a kernel receive stamp"
