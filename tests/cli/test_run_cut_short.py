"""A run that does not come to its end: nothing that was collected is lost, and nothing stays behind."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.client.spill import read_spill
from harness.engines.process import EngineProcess, free_port
from harness.engines.protocol import EngineConfig
from harness.engines.registry import adapter
from harness.models.store import find_model
from harness.records.manifest import Manifest
from tests.cli.driving import ENDLESS, NATIVE, Running, behind, plan, running, servescope, the_cell, the_run

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Running]:
    """A run under way: a few requests have finished, many have not."""
    file = plan(tmp_path, NATIVE, ENDLESS, run="warmup_s = 0.0")
    with running(tmp_path / "said", "run", file, "--out", tmp_path / "out") as command:
        command.until(lambda: finished(tmp_path / "out") >= 3)
        yield command


def finished(out: Path) -> int:
    """Requests that the first worker has finished so far."""
    spills = list(out.glob("*/cells/*/.client/raw-0.spill"))
    return len(list(read_spill(spills[0]))) if spills else 0


def engine_of(out: Path) -> psutil.Process:
    pid = the_cell(out).read_manifest().engine.pid
    assert pid is not None
    return psutil.Process(pid)


def check_kept(out: Path, status: str) -> tuple[Manifest, Counter[str]]:
    """Rows of what had finished and of what was in flight, no leftovers, and a report on it."""
    run = the_run(out)
    cell = the_cell(out)
    manifest = cell.read_manifest()
    assert manifest.status == status
    assert manifest.died_at
    rows = Counter(cell.read_table("requests")["status"].to_pylist())
    assert rows["ok"] >= 3
    assert rows["ok"] < manifest.workload.requests
    assert cell.read_table("tokens").num_rows >= rows["ok"]
    for table in ("chunks", "server", "host"):
        assert cell.read_table(table).num_rows, table
    assert not cell.file(".client").exists()
    assert not list(run.path.rglob("*.room"))
    assert "died" in (text := (run.path / "report.md").read_text()) or "interrupted" in text
    assert (run.path / "report.html").stat().st_size > 1000
    return manifest, rows


def test_engine_killed(endless: Running, tmp_path: Path) -> None:
    engine_of(tmp_path / "out").send_signal(signal.SIGKILL)
    ended = endless.end()
    assert ended.code == 5, ended
    manifest, rows = check_kept(tmp_path / "out", "died")
    assert "the engine ended with signal 9" in ended.error
    assert "signal 9" in (manifest.died_of or "")
    assert str(the_run(tmp_path / "out").path) in ended.error
    assert rows["ok"] + rows["error"] + rows["refused"] + rows["cancelled"] == sum(rows.values())
    assert endless.orphans() == []
    again = servescope("report", the_run(tmp_path / "out").path)
    assert again.code == 5  # as the run itself


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(endless: Running, tmp_path: Path, number: signal.Signals) -> None:
    endless.process.send_signal(number)
    ended = endless.end()
    assert ended.code == 4, ended
    manifest, rows = check_kept(tmp_path / "out", "interrupted")
    assert manifest.died_of == "interrupted by a signal"
    assert rows["cancelled"] >= 1  # what was in flight
    assert set(rows) == {"ok", "cancelled"}
    assert "interrupted in native.endless.r1" in ended.error
    assert endless.orphans() == []


def test_interrupted_while_an_engine_loads(tmp_path: Path) -> None:
    """The wait of minutes for a real engine must not hold a Ctrl-C back; here the engine never serves."""
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    cache = tmp_path / "cache"
    (cache / "engines" / "added").mkdir(parents=True)
    (cache / "engines" / "added" / "slow.json").write_text(
        f'{{"name": "slow", "kind": "vllm", "python": "{fake}", "version": "0.32.0", "added": true}}'
    )
    (cache / "models").symlink_to(find_model("tiny").path.parent)
    engine = '\n[[engine]]\nname = "slow"\nkind = "vllm"\nenv = "slow"\n'
    file = plan(tmp_path, engine, ENDLESS)
    with running(tmp_path / "said", "run", file, "--out", tmp_path / "out", SERVESCOPE_CACHE=str(cache)) as command:
        command.until(lambda: bool(list((tmp_path / "out").glob("*/logs/slow.log"))))
        assert any("sleep" in child.cmdline() for child in command.family())
        command.interrupt()
        ended = command.end(within_s=15)
        assert ended.code == 4, ended
        assert ended.error.startswith("interrupted")
        assert command.orphans() == []


def test_client_worker_killed(endless: Running, tmp_path: Path) -> None:
    """What the worker had finished is decoded from its spill file by its parent."""
    workers = [child for child in endless.family() if "harness.client.worker" in child.cmdline()]
    assert len(workers) == 1
    workers[0].send_signal(signal.SIGKILL)
    ended = endless.end()
    assert ended.code == 5, ended
    manifest, rows = check_kept(tmp_path / "out", "died")
    assert "client worker 0: killed by signal 9" in (manifest.died_of or "")
    assert set(rows) == {"ok"}
    assert endless.orphans() == []


def test_the_run_itself_killed(endless: Running, tmp_path: Path) -> None:
    """Nothing can be written by what is gone; what it started ends all the same, and the manifest says interrupted."""
    endless.process.kill()
    endless.process.wait(10)
    assert endless.orphans(within_s=20) == []
    assert the_cell(tmp_path / "out").read_manifest().status == "interrupted"
    assert finished(tmp_path / "out") >= 3 or list((tmp_path / "out").glob("*/cells/*/.client/requests-0.parquet"))


def test_a_server_that_was_there_killed(tmp_path: Path) -> None:
    options = {"block_size": 16, "kv_tokens": 4096, "max_model_len": 1024, "threads": 1}
    port = free_port()
    spec = adapter("native").launch(EngineConfig("there", "native", options=options), find_model("tiny"), port)
    with EngineProcess(spec, port, tmp_path / "engine.log").start().wait_ready() as server:
        file = plan(tmp_path, behind(server.base_url), ENDLESS, run="warmup_s = 0.0")
        with running(tmp_path / "said", "run", file, "--out", tmp_path / "out") as command:
            command.until(lambda: finished(tmp_path / "out") >= 3)
            os.kill(server.pid, signal.SIGKILL)
            ended = command.end()
    assert ended.code == 5, ended
    assert f"nobody listens at 127.0.0.1:{port} any more" in ended.error
    _, rows = check_kept(tmp_path / "out", "died")
    assert rows["refused"] + rows["error"] >= 1
