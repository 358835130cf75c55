"""The numbers behind each latency: one sample per request, gap or token, in time order, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reports.cell import Cell, Floats, Rows

ANSWER_KINDS = ("content", "reasoning", "tool")


@dataclass(frozen=True)
class Samples:
    """`values` in seconds at `times`; `row` is the position in `Cell.requests`. `refused`: why there can be none."""

    values: Floats = field(default_factory=lambda: np.empty(0))
    times: Floats = field(default_factory=lambda: np.empty(0))
    row: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    refused: str = ""
    note: str = ""

    @classmethod
    def refuse(cls, why: str) -> Samples:
        return cls(refused=why)

    def in_time_order(self) -> Samples:
        order = np.argsort(self.times, kind="stable")
        return Samples(self.values[order], self.times[order], self.row[order], self.refused, self.note)


def _per_request(cell: Cell, values: Floats, times: Floats, use: NDArray[np.bool_], note: str = "") -> Samples:
    """Samples of the ok measured requests for which the value exists."""
    use = use & cell.ok_mask & np.isfinite(values)
    return Samples(values[use], times[use], np.flatnonzero(use), note=note).in_time_order()


def _everyone(cell: Cell) -> NDArray[np.bool_]:
    return np.ones(len(cell.requests), dtype=bool)


def ttft(cell: Cell) -> Samples:
    rows = cell.requests
    return _per_request(cell, rows["t_first_token"] - rows["t_sent"], rows["t_sent"], _everyone(cell))


def ttft_content(cell: Cell) -> Samples:
    rows = cell.requests
    return _per_request(cell, rows["t_first_content"] - rows["t_sent"], rows["t_sent"], _everyone(cell))


def ttft_intended(cell: Cell) -> Samples:
    if cell.closed_loop:
        return Samples.refuse("a closed loop has no intended time: the engine sets the pace")
    rows = cell.requests
    return _per_request(cell, rows["t_first_token"] - rows["t_intended"], rows["t_intended"], _everyone(cell))


def tpot(cell: Cell) -> Samples:
    """Answers of one token have no TPOT, answers of none neither; the note says where the first event held several."""
    rows = cell.requests
    several = rows["output_tokens"] >= 2
    with np.errstate(divide="ignore", invalid="ignore"):
        values = (rows["t_last_token"] - rows["t_first_token"]) / (rows["output_tokens"] - 1.0)
    samples = _per_request(cell, values, rows["t_first_token"], several)
    bunched = int(np.isin(samples.row, _bunched_rows(cell)).sum())
    if not bunched:
        return samples
    note = f"{bunched / len(samples.values):.0%} of answers came with several tokens in their first event"
    return Samples(samples.values, samples.times, samples.row, note=note)


def e2e(cell: Cell) -> Samples:
    rows = cell.requests
    return _per_request(cell, rows["t_done"] - rows["t_sent"], rows["t_sent"], _everyone(cell))


def e2e_intended(cell: Cell) -> Samples:
    if cell.closed_loop:
        return Samples.refuse("a closed loop has no intended time: the engine sets the pace")
    rows = cell.requests
    return _per_request(cell, rows["t_done"] - rows["t_intended"], rows["t_intended"], _everyone(cell))


def queue_time(cell: Cell) -> Samples:
    """The engine's own figure per request. It is never guessed from TTFT."""
    rows = cell.requests
    samples = _per_request(cell, rows["server_queue_ns"] / 1e9, rows["t_sent"], _everyone(cell))
    if not len(samples.values) and len(cell.ok):
        return Samples.refuse("not observable: the engine returned no queue time with its answers")
    return samples


def token_events(cell: Cell) -> Rows:
    """Events of ok measured requests that carry output tokens; where counts are unknown, those that carry text."""
    chunks = cell.chunks
    answer = np.isin(chunks["kind"], ANSWER_KINDS)
    known = np.isfinite(chunks["n_tokens"])
    bearing = answer & np.where(known, chunks["n_tokens"] >= 1, True)
    return chunks.where(bearing & cell.ok_mask[chunks["row"]])


def _bunched_rows(cell: Cell) -> NDArray[np.int64]:
    """Requests whose first token-bearing event held more than one token."""
    events = token_events(cell)
    if not len(events):
        return np.empty(0, dtype=np.int64)
    first = np.concatenate([[True], np.diff(events["row"]) != 0])
    rows: NDArray[np.int64] = events["row"][first & (events["n_tokens"] > 1)]
    return rows


def _gaps(cell: Cell) -> tuple[Samples, Floats]:
    """Gaps between neighbouring token-bearing events of a request, and the tokens of the later event (NaN unknown)."""
    events = token_events(cell)
    if len(events) < 2:
        return Samples(), np.empty(0)
    same = np.diff(events["row"]) == 0
    values = np.diff(events["t_arrival"])[same]
    samples = Samples(values, events["t_arrival"][1:][same], events["row"][1:][same])
    return samples, events["n_tokens"][1:][same]


def chunk_gap(cell: Cell) -> Samples:
    return _gaps(cell)[0].in_time_order()


def itl(cell: Cell) -> Samples:
    """Each gap shared among the tokens of its later event, one sample per token."""
    gaps, tokens = _gaps(cell)
    known = np.isfinite(tokens)
    if len(gaps.values) and not known.any():
        return Samples.refuse("tokens per event are unknown: the engine sends neither ids nor continuous usage")
    counts = tokens[known].astype(np.int64)
    values = np.repeat(gaps.values[known] / tokens[known], counts)
    spread = Samples(values, np.repeat(gaps.times[known], counts), np.repeat(gaps.row[known], counts))
    return spread.in_time_order()
