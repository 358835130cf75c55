"""Both sides on one time axis: what the client saw and what the engine said, bin by bin."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.records.errors import InfrastructureError
from harness.records.tables import SCHEMA_VERSION
from reports.cell import FAILED, Cell, Floats
from reports.samples import token_events
from reports.series import Series, Signals

MOST_BINS = 400
GAUGES = ("queue_depth", "queue_deferred", "running", "kv_usage", "kv_evictable", "context_tokens")
COUNTERS = (
    "preemptions",
    "evicted_tokens",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "prefill_computed_tokens",
    "prompt_tokens",
    "output_tokens",
    "rejections",
)
STALE_SCRAPES = 3  # a gauge stands for this many scrape intervals, then nothing is known


@dataclass(frozen=True)
class Joined:
    """`begin` of each bin in seconds since the cell's zero, all of `width` seconds; NaN where nothing is known.

    client: sent, done, failed (requests that ended), in_flight (mean), output_tokens, ttft_max (by first token).
    engine: gauges as scraped last at the end of the bin; counters as growth in the bin.
    """

    begin: Floats
    width: float
    client: dict[str, Floats]
    engine: dict[str, Floats]

    @property
    def middle(self) -> Floats:
        return self.begin + self.width / 2.0


def join(cell: Cell, signals: Signals) -> Joined | None:
    """From the first send to the last end, in bins of the scrape interval or wider; None if nothing was sent."""
    whole = cell.whole
    if whole is None or whole[1] <= whole[0]:
        return None
    interval = cell.manifest.scrape_s or 0.5
    width = max(interval, (whole[1] - whole[0]) / MOST_BINS)
    bins = max(1, math.ceil((whole[1] - whole[0]) / width))
    edges: Floats = whole[0] + width * np.arange(bins + 1, dtype=np.float64)
    engine = {name: _gauge(signals.get(name), edges, interval) for name in GAUGES}
    engine |= {name: _counter(signals.get(name), edges) for name in COUNTERS}
    return Joined(edges[:-1], width, _client(cell, edges), engine)


def _client(cell: Cell, edges: Floats) -> dict[str, Floats]:
    rows = cell.requests
    failed = np.isin(rows["status"], FAILED)
    events = token_events(cell)
    tokens = np.nan_to_num(events["n_tokens"])
    output, _ = np.histogram(events["t_arrival"], bins=edges, weights=tokens)
    return {
        "sent": _count(rows["t_sent"], edges),
        "done": _count(rows["t_done"][rows["status"] == "ok"], edges),
        "failed": _count(rows["t_done"][failed], edges),
        "in_flight": _in_flight(rows["t_sent"], rows["t_done"], edges),
        "output_tokens": output.astype(float),
        "ttft_max": _worst_ttft(rows["t_first_token"], rows["t_first_token"] - rows["t_sent"], edges),
    }


def _count(times: Floats, edges: Floats) -> Floats:
    return np.histogram(times[np.isfinite(times)], bins=edges)[0].astype(np.float64)


def _in_flight(sent: Floats, done: Floats, edges: Floats) -> Floats:
    """Time-weighted mean in each bin, by area: the time since each send less that since each end."""
    sent, done = sent[np.isfinite(sent)], done[np.isfinite(sent)]
    done = np.where(np.isfinite(done), done, edges[-1])

    def area(starts: Floats) -> Floats:
        ordered = np.sort(starts)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        number = np.searchsorted(ordered, edges)
        return np.asarray(number * edges - sums[number], dtype=np.float64)

    return np.asarray(np.diff(area(sent) - area(done)) / np.diff(edges), dtype=np.float64)


def _worst_ttft(at: Floats, ttft: Floats, edges: Floats) -> Floats:
    worst = np.full(len(edges) - 1, np.nan)
    known = np.isfinite(at) & np.isfinite(ttft)
    place = np.clip(np.searchsorted(edges, at[known], side="right") - 1, 0, len(worst) - 1)
    filled = np.full(len(worst), -np.inf)
    np.maximum.at(filled, place, ttft[known])
    return np.where(np.isfinite(filled), filled, worst)


def _gauge(series: Series | None, edges: Floats, interval: float) -> Floats:
    if series is None or not len(series.t):
        return np.full(len(edges) - 1, np.nan)
    ends = edges[1:]
    last = np.searchsorted(series.t, ends, side="right") - 1
    age = ends - series.t[np.maximum(last, 0)]
    stale = (last < 0) | (age > STALE_SCRAPES * max(interval, edges[1] - edges[0]))
    return np.where(stale, np.nan, series.at(ends))


def _counter(series: Series | None, edges: Floats) -> Floats:
    if series is None or len(series.t) < 2:
        return np.full(len(edges) - 1, np.nan)
    outside = (edges[:-1] < series.t[0]) | (edges[1:] > series.t[-1] + (edges[1] - edges[0]))
    return np.where(outside, np.nan, np.diff(np.interp(edges, series.t, series.value)))


def write_joined(cell: Cell, joined: Joined) -> None:
    """joined.parquet: t (monotonic ns, begin of the bin), seconds (its width), client.* and engine.*."""
    columns: dict[str, pa.Array] = {
        "t": pa.array(cell.zero + np.round(joined.begin * 1e9).astype(np.int64)),
        "seconds": pa.array(np.full(len(joined.begin), joined.width)),
    }
    for side, values in (("client", joined.client), ("engine", joined.engine)):
        columns |= {f"{side}.{name}": pa.array(value, from_pandas=True) for name, value in values.items()}
    table = pa.table(columns).replace_schema_metadata({"servescope": str(SCHEMA_VERSION)})
    target = cell.dir.file("joined.parquet")
    temporary = target.with_name(f".{target.name}.part")
    try:
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InfrastructureError(f"cannot write {target}: {error}", mend="free some space") from error
