"""A cell as the reports read it: the manifest, and the tables as plain columns on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness.records.manifest import Manifest
from harness.records.rundir import CellDir
from workloads.file import read_workload
from workloads.model import Workload, WorkloadError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CLOSED_LOADS = ("closed", "sessions")  # the engine sets the pace: there is no intended time but the time of sending
FAILED = ("error", "timeout", "refused")  # `cancelled` is the client's own doing


class Rows:
    """Columns of equal length.

    Times are float64 seconds since the cell's zero (exact to the nanosecond for a run of up to a hundred days), counts
    are float64; NaN where the table has a null. Text is str, "" where the table has a null.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)
        self._length = len(next(iter(self._columns.values()))) if self._columns else 0

    @classmethod
    def of(cls, table: pa.Table, zero: int) -> Rows:
        return cls({name: _column(table, name, zero) for name in table.column_names})

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def where(self, mask: NDArray[Any]) -> Rows:
        """The rows that a boolean mask or an array of positions picks, in that order."""
        return Rows({name: values[mask] for name, values in self._columns.items()})

    def sum(self, name: str) -> int:
        """Sum of a count column, nulls as nothing."""
        return int(np.nansum(self._columns[name]))


def _column(table: pa.Table, name: str, zero: int) -> NDArray[Any]:
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if pa.types.is_string(column.type):
        return np.asarray(pc.fill_null(column, "").to_pylist(), dtype=object)
    if name == "t" or name.startswith("t_"):
        seconds = pc.divide(pc.cast(pc.subtract(column, zero), pa.float64()), 1e9)
        return np.asarray(seconds.to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


@dataclass(frozen=True)
class Cell:
    """One engine x workload x load x repeat, read once. `zero` is the monotonic ns at which the reports' time is 0."""

    dir: CellDir
    manifest: Manifest
    zero: int
    tables: Mapping[str, pa.Table]  # as written, for readers that want nanoseconds
    workload: Workload | None
    workload_why: str  # why there is no workload, "" when there is one

    @property
    def name(self) -> str:
        return self.manifest.cell

    @property
    def engine(self) -> str:
        return self.manifest.engine.name

    @property
    def closed_loop(self) -> bool:
        return self.load_mode in CLOSED_LOADS

    @property
    def load_mode(self) -> str:
        return str(self.manifest.workload.load.get("mode", ""))

    @property
    def in_flight(self) -> int | None:
        """What a closed load keeps in flight; None for an open one."""
        load = self.manifest.workload.load
        params = load.get("params")
        value = load.get("in_flight", params.get("in_flight") if isinstance(params, dict) else None)
        return int(value) if value is not None and self.closed_loop else None

    @cached_property
    def requests(self) -> Rows:
        """All rows, in the order in which they were sent; those never sent come last."""
        rows = Rows.of(self.tables["requests"], self.zero)
        return rows.where(np.argsort(rows["t_sent"], kind="stable"))

    @cached_property
    def chunks(self) -> Rows:
        """Stream events, of a request in their order, with `row`: the position of their request in `requests`."""
        rows = Rows.of(self.tables["chunks"], self.zero)
        place = {name: at for at, name in enumerate(self.requests["request_id"])}
        row = np.asarray([place.get(name, -1) for name in rows["request_id"]], dtype=np.int64)
        rows = Rows({**{name: rows[name] for name in rows}, "row": row}).where(row >= 0)
        return rows.where(np.lexsort((rows["seq"], rows["row"])))

    @cached_property
    def measured(self) -> Rows:
        return self.requests.where(self.requests["phase"] == "measure")

    @cached_property
    def ok(self) -> Rows:
        """The requests that latencies speak of: measured, answered to the end."""
        return self.measured.where(self.measured["status"] == "ok")

    @cached_property
    def ok_mask(self) -> Mask:
        """The rows of `requests` that are in `ok`."""
        return np.asarray((self.requests["phase"] == "measure") & (self.requests["status"] == "ok"), dtype=bool)

    @property
    def failed(self) -> Rows:
        return self.measured.where(np.isin(self.measured["status"], FAILED))

    @property
    def span(self) -> tuple[float, float] | None:
        """From the first measured send to the end of the last measured answer, in seconds; None without either."""
        sent, done = self.measured["t_sent"], self.measured["t_done"]
        if not np.isfinite(sent).any() or not np.isfinite(done).any():
            return None
        return float(np.nanmin(sent)), float(np.nanmax(done))

    @property
    def whole(self) -> tuple[float, float] | None:
        """As `span`, warm-up included."""
        sent, done = self.requests["t_sent"], self.requests["t_done"]
        if not np.isfinite(sent).any() or not np.isfinite(done).any():
            return None
        return float(np.nanmin(sent)), float(np.nanmax(done))


def load_cell(directory: CellDir) -> Cell:
    """Read a cell. UsageError for a foreign schema or a manifest that is missing; absent tables are empty."""
    manifest = directory.read_manifest()
    tables = {name: directory.read_table(name) for name in ("requests", "chunks", "tokens", "server", "host")}
    workload, why = _workload(directory)
    return Cell(
        dir=directory,
        manifest=manifest,
        zero=_zero(manifest, tables["requests"]),
        tables=tables,
        workload=workload,
        workload_why=why,
    )


def _zero(manifest: Manifest, requests: pa.Table) -> int:
    """Time 0 of the reports: the begin of the measured load; failing that, the first send; failing that, the anchor."""
    if manifest.window.t_measure is not None:
        return manifest.window.t_measure
    first = pc.min(requests["t_sent"]).as_py()
    return int(first) if first is not None else manifest.anchor.monotonic_ns


def _workload(directory: CellDir) -> tuple[Workload | None, str]:
    path = directory.file("workload.jsonl.gz")
    if not path.is_file():
        return None, f"{path.name} is missing"
    try:
        return read_workload(path), ""
    except WorkloadError as error:
        return None, str(error)
