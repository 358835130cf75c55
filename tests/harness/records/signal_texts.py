"""Exposition pages that the tests write themselves, and the recorded ones where they are at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from harness.observe.exposition import Sample, parse
from harness.records.tables import SERVER

DUMPS = Path(__file__).parents[4] / "shared" / "data" / "metrics"


def recorded(name: str) -> list[Sample]:
    path = DUMPS / name
    if not path.is_file():
        pytest.skip(f"the recorded page {name} is not on this machine")
    return parse(path.read_bytes())


@dataclass(frozen=True)
class Line:
    metric: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def samples(*lines: Line) -> list[Sample]:
    return [Sample(line.metric, line.labels, line.value) for line in lines]


def server_table(scrapes: Sequence[tuple[int, Sequence[Line]]], kind: str = "vllm") -> pa.Table:
    """(t in ns, lines) per scrape, as `server.parquet` keeps them."""
    rows = [
        {
            "t_start": t - 1000,
            "t_end": t,
            "target": "127.0.0.1:1",
            "engine": kind,
            "metric": line.metric,
            "labels": Sample(line.metric, line.labels, line.value).labels_json,
            "value": line.value,
        }
        for t, lines in scrapes
        for line in lines
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([*SERVER], metadata=SERVER.metadata))
