"""Servers that refuse, break off, stall or quote a key; a disk that fills up; directories of another version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.records.rundir import CellDir
from tests.cli.driving import (
    ENDLESS,
    NATIVE,
    Ended,
    behind,
    plan,
    running,
    servescope,
    the_cell,
    the_run,
)
from tests.cli.scripted_server import scripted
from tests.cli.test_run_cut_short import check_kept, finished

pytestmark = pytest.mark.usefixtures("cache")
KEY = "sk-never-to-be-seen-4711"
ONE_BY_ONE = """
[[workload]]
name = "one-by-one"
family = "prefix_hit"
load = { mode = "closed", in_flight = 1 }
params = { full = 0, partial = 0, miss = 8, groups = 1, prefix_tokens = 16, suffix_tokens = 4, output_tokens = 3 }
"""
IMPATIENT = "warmup_s = 0.0\ntimeout_s = { connect = 2, first_token = 2, between_tokens = 0.4, total = 3 }"


def in_order(cell: CellDir) -> list[dict[str, Any]]:
    """Rows as they were sent."""
    return sorted(cell.read_table("requests").to_pylist(), key=lambda row: row["t_sent"])


def test_each_fault_is_a_row_and_the_run_goes_on(tmp_path: Path) -> None:
    faults: tuple[str | int, ...] = ("ok", 400, 429, 500, "half", "close", "stall", 503, "ok")
    with scripted(*faults) as server:
        file = plan(tmp_path, behind(server.url, kind="openai"), ONE_BY_ONE, run=IMPATIENT)
        ended = servescope("run", file, "--out", tmp_path / "out", "--json")
        assert len(server.prompts) == len(faults)
    cell = the_cell(tmp_path / "out")
    assert cell.read_manifest().status == "complete"
    rows = in_order(cell)
    found = [(row["status"], row["error_kind"], row["http_status"]) for row in rows]
    assert found == [
        ("ok", None, 200),
        ("error", "http", 400),
        ("refused", "http_429", 429),
        ("error", "http", 500),
        ("error", "malformed", 200),
        ("error", "cut", 200),
        ("timeout", "between_tokens", 200),
        ("refused", "http_503", 503),
        ("ok", None, 200),
    ]
    # What had come before a break is kept with its time: one token. It is counted by its text where the body came to
    # its end; of a stream that stood still the count is not known.
    assert [row["output_tokens"] for row in rows[4:7]] == [1, 1, None]
    for row in rows[4:7]:
        assert row["t_sent"] < row["t_first_token"] <= row["t_done"]
    assert all(row["error"] for row in rows if row["status"] != "ok")
    stalled = rows[6]
    assert 0.4 <= (stalled["t_done"] - stalled["t_last_token"]) / 1e9 < 1.5
    # Seven of nine failed: the figures are not to be used, and the exit code says so.
    verdict = json.loads(ended.out)
    assert (ended.code, verdict["verdict"]) == (4, "invalid")
    assert "7 of 9 requests failed" in verdict["headline"]


def test_a_server_that_answers_nothing_but_errors(tmp_path: Path) -> None:
    with scripted(500) as server:
        ended = servescope("run", plan(tmp_path, behind(server.url), ONE_BY_ONE), "--out", tmp_path / "out")
    assert ended.code == 4
    assert "no request was answered" in " ".join(ended.out.split())
    assert (the_run(tmp_path / "out").path / "report.html").is_file()


def test_a_redacted_run_keeps_no_words_of_a_server_that_quotes_prompts(tmp_path: Path) -> None:
    with scripted("ok", 400) as server:
        file = plan(tmp_path, behind(server.url), ONE_BY_ONE, run="warmup_s = 0.0")
        servescope("run", file, "--redact-prompts", "--out", tmp_path / "out")
    rows = in_order(the_cell(tmp_path / "out"))
    assert [row["error_kind"] for row in rows[1:]] == ["http"] * (len(rows) - 1)
    assert {row["error"] for row in rows} == {None}


# -- the API key -----------------------------------------------------------------------------------------------------


def test_a_key_is_seen_by_the_server_alone(tmp_path: Path) -> None:
    """Sent with every request, and in no file, no output and no process list; not even when the server quotes it."""
    seen: set[str] = set()
    with scripted("ok", 500, "half", "ok", key=KEY) as server:
        file = plan(tmp_path, behind(server.url, key="TEST_KEY"), ONE_BY_ONE, run="warmup_s = 0.0")
        with running(tmp_path / "said", "run", file, "--out", tmp_path / "out", TEST_KEY=KEY) as command:
            while command.process.poll() is None:
                seen |= {" ".join(line) for line in _command_lines(command.process.pid)}
                time.sleep(0.1)
            ended = command.end()
        assert server.keys == {f"Bearer {KEY}"}
        assert len(server.prompts) == 9
    assert any("harness.client.worker" in line for line in seen)
    assert not [line for line in seen if KEY in line]
    rows = in_order(the_cell(tmp_path / "out"))
    assert [row["status"] for row in rows] == ["ok", "error", "error", *["ok"] * 6]
    assert "cannot: " in rows[1]["error"]  # the quote was there
    _not_in(tmp_path, KEY, ended)


def test_a_key_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", f"{KEY}-wrong")
    with scripted(key=KEY) as server:
        file = plan(tmp_path, behind(server.url, key="TEST_KEY"), ONE_BY_ONE)
        ended = servescope("run", file, "--out", tmp_path / "out")
        assert not server.prompts
    assert ended.code == 5
    assert "401" in ended.error
    assert "--api-key-env" in ended.error
    _not_in(tmp_path, KEY, ended)


def _command_lines(pid: int) -> Iterator[list[str]]:
    """Of the command and all below it."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return
    for process in family:
        try:
            yield process.cmdline()
        except psutil.Error:
            continue


def _not_in(folder: Path, key: str, ended: Ended) -> None:
    assert key not in ended.out
    assert key not in ended.err
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert key.encode() not in path.read_bytes(), path
        if path.suffix == ".parquet":
            assert key not in json.dumps(pq.read_table(path).to_pylist()), path


# -- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little more room than a run asks for."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root alone; sudo make test")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=260m", "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here ({done.stderr.strip()}); run the tests where root may mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> None:
    """Until not a byte is left."""
    with (place / "filler").open("wb", buffering=0) as stream:
        piece = b"\0" * (1 << 20)
        while piece:
            try:
                stream.write(piece)
            except OSError:
                piece = piece[: len(piece) // 2]
    assert shutil.disk_usage(place).free == 0


def test_a_disk_that_becomes_full_costs_no_row(small_disk: Path, tmp_path: Path) -> None:
    out = small_disk / "out"
    file = plan(tmp_path, NATIVE, ENDLESS, run="warmup_s = 0.0")
    with running(tmp_path / "said", "run", file, "--out", out) as command:
        command.until(lambda: finished(out) >= 3)
        fill(small_disk)
        ended = command.end()
        assert command.orphans() == []
    assert ended.code == 5, ended
    assert "No space left on device" in ended.error
    manifest, rows = check_kept(out, "died")
    assert "No space left on device" in (manifest.died_of or "")
    assert set(rows) <= {"ok", "cancelled"}  # the record that did not fit is among the ok ones


def test_a_disk_that_is_full_at_once(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    ended = servescope("run", plan(tmp_path, NATIVE, ENDLESS), "--out", small_disk / "out")
    assert ended.code == 5
    assert "free some space or choose another --out" in ended.error


# -- directories of another version ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_dir(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    with scripted() as server:
        servescope("run", plan(folder, behind(server.url), ONE_BY_ONE), "--out", folder / "out")
    return the_run(folder / "out").path


def test_foreign_schema_of_a_manifest(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "run")
    (manifest,) = copy.glob("cells/*/manifest.json")
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(document | {"schema_version": 99}))
    ended = servescope("report", copy)
    assert ended.code == 2
    assert f"{manifest} has schema 99, this servescope reads 1" in ended.error


def test_a_key_that_a_manifest_does_not_have(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "run")
    (manifest,) = copy.glob("cells/*/manifest.json")
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(document | {"new": 1}))
    ended = servescope("report", copy)
    assert ended.code == 2
    assert "written by another version" in ended.error


def test_foreign_schema_of_a_table(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "run")
    (table,) = copy.glob("cells/*/requests.parquet")
    rows = pq.read_table(table)
    pq.write_table(rows.replace_schema_metadata({"servescope": "99"}), table)
    ended = servescope("report", copy)
    assert ended.code == 2
    assert f"{table} has schema 99" in ended.error


@pytest.mark.parametrize("name", ["manifest.json", "requests.parquet", "chunks.parquet", "workload.jsonl.gz"])
def test_half_a_file(run_dir: Path, tmp_path: Path, name: str) -> None:
    """One line, never a traceback. A workload is not needed for a report; what it would have said is left out."""
    copy = shutil.copytree(run_dir, tmp_path / "run")
    (file,) = copy.glob(f"cells/*/{name}")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    ended = servescope("report", copy)
    if name == "workload.jsonl.gz":
        assert ended.code in (0, 4)
    else:
        assert ended.code == 2
        assert str(file) in ended.error


def test_the_tables_of_a_run_are_those_of_this_version(run_dir: Path) -> None:
    """The tests above change one thing in a directory that reads well."""
    assert servescope("report", run_dir).code in (0, 4)
    (table,) = run_dir.glob("cells/*/requests.parquet")
    assert isinstance(pq.read_schema(table), pa.Schema)
