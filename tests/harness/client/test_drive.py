"""Whole jobs in real processes against the truth server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from harness.client.drive import DriveResult, drive
from harness.client.job import ClientJob, Progress, Timeouts
from harness.client.truth_server import TruthServer
from harness.records.rundir import CellDir
from harness.records.tables import CHUNKS, REQUESTS
from workloads.file import write_workload
from workloads.model import AnswerOf, Load, Request, Workload

TOKENS = 5


def _workload(n: int, load: Load, *, gap_s: float | None = None, prefix: str = "r", tokens: int = TOKENS) -> Workload:
    rows = tuple(
        Request(
            f"{prefix}{i}", f"{prefix}s{i}", 0, (f"p{i}",), tokens, arrival_s=None if gap_s is None else (i + 1) * gap_s
        )
        for i in range(n)
    )
    segments = {f"p{i}": (100 + i, 7, 8, 9) for i in range(n)}
    return Workload("w", "test", 1, {}, load, segments, rows)


def _closed(n: int, in_flight: int, **more: Any) -> Workload:
    return _workload(n, Load("closed", {"in_flight": float(in_flight)}), **more)


def _job(url: str, out: Path, workload: Workload, **more: Any) -> ClientJob:
    out.mkdir(exist_ok=True)
    file = out / "workload.jsonl.gz"
    write_workload(workload, file)
    return ClientJob(
        engine_kind=more.pop("engine_kind", "openai"),
        base_url=url,
        model="truth",
        workload_file=str(file),
        out_dir=str(out),
        **more,
    )


@contextlib.asynccontextmanager
async def _truth(first_s: float = 0.02, gap_s: float = 0.005) -> AsyncIterator[tuple[str, TruthServer]]:
    server = TruthServer(first_s=first_s, gap_s=gap_s)
    try:
        yield server.listen(), server
    finally:
        server.close()


def _rows(result: DriveResult) -> list[dict[str, Any]]:
    return list(result.requests.to_pylist())


def test_every_event_arrives_after_it_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUTH_KEY", "sk-very-secret")
    seen: list[Progress] = []

    async def main() -> tuple[DriveResult, dict[int, tuple[int, list[int]]]]:
        async with _truth() as (url, server):
            job = _job(url, tmp_path, _closed(12, 4), workers=2, api_key_env="TRUTH_KEY")
            jobs = [job, job.model_copy(update={"worker": 1})]
            return await drive(jobs, on_progress=seen.append), server.truth()

    result, truth = asyncio.run(main())
    assert result.complete
    assert result.reason == ""
    rows = _rows(result)
    assert sorted(row["request_id"] for row in rows) == sorted(f"r{i}" for i in range(12))
    assert {row["worker"] for row in rows} == {0, 1}
    chunks = result.chunks.to_pylist()
    for row in rows:
        assert (row["status"], row["output_tokens"], row["prompt_tokens"]) == ("ok", TOKENS, 4)
        assert row["t_intended"] == row["t_sent"]
        _, sent = truth[int(row["engine_request_id"].removeprefix("truth-"))]
        mine = [c for c in chunks if c["request_id"] == row["request_id"] and c["kind"] == "content"]
        assert len(mine) == len(sent) == TOKENS
        for chunk, stamp in zip(mine, sent, strict=True):
            assert stamp <= chunk["t_arrival"]
            assert chunk["n_tokens"] == 1
        assert row["t_first_token"] == mine[0]["t_arrival"]
        assert row["t_last_token"] == mine[-1]["t_arrival"]
        assert row["t_sent"] < row["t_first_byte"] <= row["t_first_token"] <= row["t_last_token"] <= row["t_done"]
    assert result.window.t_end is not None
    assert sum(p.done for p in seen if p.phase == "end") == 12
    assert sorted(result.answers["request_id"].to_pylist()) == sorted(f"r{i}" for i in range(12))
    assert not list(tmp_path.glob("*.spill")), "raw answers do not stay behind"
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"sk-very-secret" not in file.read_bytes(), f"the key is in {file.name}"
    cell = CellDir(tmp_path)
    cell.write_table("requests", result.requests)
    cell.write_table("chunks", result.chunks)
    assert cell.read_table("requests").schema.equals(REQUESTS)
    assert cell.read_table("chunks").schema.equals(CHUNKS)


def test_an_open_load_keeps_its_schedule(tmp_path: Path) -> None:
    async def main() -> DriveResult:
        async with _truth() as (url, _):
            workload = _workload(20, Load("constant", {"rate": 100.0}), gap_s=0.01)
            return await drive([_job(url, tmp_path, workload)])

    result = asyncio.run(main())
    rows = sorted(_rows(result), key=lambda row: row["t_intended"])
    assert result.window.t_measure is not None
    assert [row["t_intended"] - result.window.t_measure for row in rows] == [(i + 1) * 10_000_000 for i in range(20)]
    assert all(row["t_sent"] >= row["t_intended"] for row in rows)
    assert result.results[0].info.dispatch_lag_p99_ms is not None


def test_warmup_flows_into_the_measurement(tmp_path: Path) -> None:
    async def main() -> DriveResult:
        async with _truth(gap_s=0.03) as (url, _):
            job = _job(url, tmp_path, _closed(6, 2))
            warmup = tmp_path / "warmup.jsonl.gz"
            write_workload(_closed(200, 2, prefix="warm"), warmup)
            return await drive([job.model_copy(update={"warmup_file": str(warmup), "warmup_s": 0.35})])

    result = asyncio.run(main())
    rows = _rows(result)
    window = result.window
    assert window.t_measure is not None
    warm = [row for row in rows if row["phase"] == "warmup"]
    measured = [row for row in rows if row["phase"] == "measure"]
    assert len(measured) == 6
    assert warm
    assert all(row["t_sent"] < window.t_measure for row in warm)
    assert all(row["t_sent"] >= window.t_measure for row in measured)
    assert max(row["t_done"] for row in warm) > window.t_measure, "no barrier: warm-up requests were still in flight"
    edges = sorted([(row["t_sent"], 1) for row in rows] + [(row["t_done"], -1) for row in rows])
    flying = peak = 0
    for _, step in edges:
        flying += step
        peak = max(peak, flying)
    assert peak <= 2, "the room of the load holds across the border"


def test_real_answers_are_fed_back(tmp_path: Path) -> None:
    requests = (
        Request("t0", "s", 0, ("p",), 3),
        Request("t1", "s", 1, ("p", AnswerOf("t0"), "q"), 2, after=("t0",)),
    )
    workload = Workload("m", "multi", 1, {}, Load("sessions", {"in_flight": 1.0}), {"p": (5, 6), "q": (7,)}, requests)

    async def main() -> DriveResult:
        async with _truth() as (url, _):
            return await drive([_job(url, tmp_path, workload, engine_kind="vllm", want_token_ids=True)])

    result = asyncio.run(main())
    answers = {row["request_id"]: row for row in result.answers.to_pylist()}
    assert answers["t0"]["output_ids"] == [1000, 1001, 1002]
    assert answers["t1"]["prompt_ids"] == [5, 6, 1000, 1001, 1002, 7]
    assert {row["request_id"]: row["prompt_tokens"] for row in _rows(result)} == {"t0": 2, "t1": 6}
    assert all(row["token_source"] == "usage" for row in _rows(result))
    assert set(result.chunks["source"].to_pylist()) == {"ids", None}


def test_without_ids_back_a_real_answer_cannot_be_fed_back(tmp_path: Path) -> None:
    requests = (
        Request("t0", "s", 0, ("p",), 3),
        Request("t1", "s", 1, ("p", AnswerOf("t0")), 2, after=("t0",)),
        Request("t2", "s", 2, ("p", AnswerOf("t1")), 2, after=("t1",)),
    )
    workload = Workload("m", "multi", 1, {}, Load("sessions", {"in_flight": 1.0}), {"p": (5, 6)}, requests)

    async def main() -> DriveResult:
        async with _truth() as (url, _):
            return await drive([_job(url, tmp_path, workload)])

    rows = {row["request_id"]: row for row in _rows(asyncio.run(main()))}
    assert rows["t0"]["status"] == "ok"
    for name in ("t1", "t2"):
        assert (rows[name]["status"], rows[name]["error_kind"]) == ("cancelled", "dependency")
        assert rows[name]["t_sent"] is None


def test_stop_keeps_everything_that_was_begun(tmp_path: Path) -> None:
    async def main() -> tuple[DriveResult, float]:
        async with _truth(gap_s=0.05) as (url, _):
            stop = asyncio.Event()

            def on_progress(progress: Progress) -> None:
                if progress.done >= 3:
                    stop.set()

            job = _job(url, tmp_path, _closed(500, 3, tokens=8))
            began = time.monotonic()
            return await drive([job], on_progress=on_progress, stop=stop), time.monotonic() - began

    result, took = asyncio.run(main())
    assert not result.complete
    assert "stopped by the parent" in result.reason
    assert not result.dead
    rows = _rows(result)
    statuses = [row["status"] for row in rows]
    assert statuses.count("ok") >= 3
    assert statuses.count("cancelled") == 3
    assert len(rows) < 500
    assert took < 30
    assert all(row["output_tokens"] is None for row in rows if row["status"] == "cancelled")


def test_a_killed_worker_loses_only_what_was_in_flight(tmp_path: Path) -> None:
    async def main() -> DriveResult:
        async with _truth(gap_s=0.02) as (url, _):
            job = _job(url, tmp_path, _closed(500, 3))

            def on_progress(progress: Progress) -> None:
                if progress.done >= 4:
                    for pid in _children():
                        os.kill(pid, signal.SIGKILL)

            return await drive([job], on_progress=on_progress)

    result = asyncio.run(main())
    assert not result.complete
    (dead,) = result.dead
    assert dead.exit_code == -signal.SIGKILL
    assert dead.rows_kept == result.requests.num_rows >= 4
    assert {row["status"] for row in _rows(result)} == {"ok"}
    assert "killed by signal 9" in result.reason


def _children() -> list[int]:
    """Worker processes that this test process started."""
    task = Path("/proc/self/task")
    found = [int(pid) for file in task.glob("*/children") for pid in file.read_text().split()]
    return [pid for pid in found if b"harness.client.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_job_that_cannot_run_says_why(tmp_path: Path) -> None:
    async def main() -> DriveResult:
        return await drive([_job("http://127.0.0.1:1", tmp_path, _closed(1, 1), api_key_env="NO_SUCH_KEY_IS_SET")])

    (dead,) = asyncio.run(main()).dead
    assert dead.exit_code == 2
    assert "NO_SUCH_KEY_IS_SET is not set" in dead.why


def test_a_server_that_is_not_there_gives_refused_rows(tmp_path: Path) -> None:
    async def main() -> DriveResult:
        job = _job("http://127.0.0.1:1", tmp_path, _closed(5, 2), timeouts=Timeouts(connect=1.0))
        return await drive([job])

    result = asyncio.run(main())
    assert [(row["status"], row["error_kind"]) for row in _rows(result)] == [("refused", "connect")] * 5
    assert all(row["t_sent"] is None for row in _rows(result))
    assert all(row["t_intended"] is not None for row in _rows(result))


def test_a_worker_never_imports_pandas(tmp_path: Path) -> None:
    """pyarrow would, to write the rows: 50 MB and a third of a second beside every load."""
    file = tmp_path / "job.json"
    file.write_text(_job("http://127.0.0.1:1", tmp_path, _closed(2, 1)).model_dump_json())
    command = [sys.executable, "-X", "importtime", "-m", "harness.client.worker", str(file)]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (tmp_path / "requests-0.parquet").is_file()
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pyarrow" in imported
    assert not any(name.startswith("pandas.") for name in imported), "the attempt fails before it loads anything"
