"""Run directories: foreign ones are refused in one line, half-written files never appear."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.records.errors import InfrastructureError, UsageError
from harness.records.judgements import Check, Validity
from harness.records.rundir import CellDir, RunDir
from harness.records.tables import REQUESTS


@pytest.fixture
def cell(tmp_path: Path) -> CellDir:
    return RunDir.create(tmp_path).new_cell("native.hits.r1")


def test_a_model_comes_back_equal(cell: CellDir) -> None:
    validity = Validity(checks=[Check(id="failures", state="suspect", value=0.02, unit="share", why="2 of 100")])
    cell.write_model("validity.json", validity)
    assert cell.read_model("validity.json", Validity) == validity
    assert [path.name for path in cell.path.iterdir()] == ["validity.json"]


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_foreign_schema_is_refused(cell: CellDir, version: object) -> None:
    cell.file("validity.json").write_text(json.dumps({"schema_version": version, "checks": []}))
    with pytest.raises(UsageError, match=r"has schema .*, this servescope reads 1; read it with the version"):
        cell.read_model("validity.json", Validity)


def test_a_table_of_another_schema_is_refused(cell: CellDir) -> None:
    foreign = REQUESTS.empty_table().replace_schema_metadata({"servescope": "7"})
    pq.write_table(foreign, cell.file("requests.parquet"))
    with pytest.raises(UsageError, match="has schema 7, this servescope reads 1"):
        cell.read_table("requests")
    pq.write_table(pa.table({"a": [1]}), cell.file("requests.parquet"))
    with pytest.raises(UsageError, match="has schema"):
        cell.read_table("requests")


def test_an_absent_table_is_empty_and_a_damaged_one_an_error(cell: CellDir) -> None:
    assert cell.read_table("chunks").num_rows == 0
    cell.file("chunks.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UsageError, match="cannot be read"):
        cell.read_table("chunks")


def test_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        RunDir.open(tmp_path / "nothing")
    with pytest.raises(UsageError, match="holds no run"):
        RunDir.open(tmp_path)


def test_a_cell_opens_as_a_run_of_one(cell: CellDir) -> None:
    cell.file("manifest.json").write_text("{}")
    assert [found.name for found in RunDir.open(cell.path).cells()] == ["native.hits.r1"]


def test_a_file_in_the_way_of_out_is_infrastructure(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(InfrastructureError, match="cannot create"):
        RunDir.create(tmp_path / "runs")
