"""`run` against real servers that are not what was asked for, or die in its midst."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.compute as pc
import pytest

from harness.cli.__main__ import run
from harness.engines.store import list_engines
from harness.records.manifest import Manifest
from harness.records.rundir import CellDir
from tests.engines.conftest import Live, Slot, model_dir, unavailable

PLAN = """
name = "killed"
model = "{model}"
[run]
warmup_s = 0.0
[[engine]]
name = "vllm"
kind = "vllm"
env = "{env}"
options = {{ block_size = 32, kv_tokens = 8192, max_model_len = 2048 }}
args = ["--enforce-eager"]
[[workload]]
name = "endless"
family = "long_prompt"
load = {{ mode = "closed", in_flight = 4 }}
params = {{ requests = 400, long_tokens = 512, short_tokens = 32, short_output_tokens = 48 }}
"""
START_S, LOAD_S = 240.0, 60.0
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def test_a_model_that_is_not_served_is_refused_before_any_load(vllm_server: Live) -> None:
    from harness.models.store import get_model

    get_model("tiny")
    before = vllm_server.metric("vllm:prompt_tokens_total")
    assert run(["run", "--engine", vllm_server.endpoint.base_url, "--model", "tiny"]) == 2
    assert vllm_server.metric("vllm:prompt_tokens_total") == before


def test_an_engine_killed_in_a_run_leaves_rows_report_and_no_process(engine_slot: Slot, tmp_path: Path) -> None:
    engine_slot.close()
    env = next((row.name for row in list_engines() if row.kind == "vllm" and not row.added), None)
    if env is None:
        unavailable("no environment has vLLM; servescope engines install vllm --device cpu")
    plan, out = tmp_path / "killed.toml", tmp_path / "out"
    plan.write_text(PLAN.format(model=model_dir().name, env=env))
    argv = [sys.executable, "-m", "harness.cli", "run", str(plan), "--out", str(out)]
    with (tmp_path / "stderr").open("wb") as errors:
        client = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, env=dict(os.environ))
    try:
        manifest = _engine_under_load(out, client)
        assert manifest.engine.pid is not None
        family = psutil.Process(manifest.engine.pid).children(recursive=True)
        os.kill(manifest.engine.pid, signal.SIGKILL)
        assert client.wait(240) == 5
    finally:
        client.kill()
    last = (tmp_path / "stderr").read_text().splitlines()[-1]
    assert last.startswith("servescope: error: vllm.endless.r1: the engine ended with signal 9")
    cell = CellDir(next(out.glob("*/cells/vllm.endless.r1")))
    assert cell.read_manifest().status == "died"
    states = pc.value_counts(cell.read_table("requests")["status"]).to_pylist()
    kept = {row["values"]: row["counts"] for row in states}
    assert kept.get("ok", 0) > 0
    assert sum(kept.values()) > kept["ok"]  # those in flight are rows, too
    assert cell.read_table("server").num_rows > 0
    assert (cell.path.parent.parent / "report.html").is_file()
    assert not psutil.wait_procs(family, timeout=60)[1]


def _engine_under_load(out: Path, client: subprocess.Popen[bytes]) -> Manifest:
    """Wait until the cell's first answers are in: its manifest names the engine's process."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert client.poll() is None, "the run ended before its engine could be killed"
        for path in out.glob("*/cells/*/manifest.json"):
            spill = list(path.parent.glob(".client/raw-*.spill"))
            if spill and spill[0].stat().st_size > 0:
                return CellDir(path.parent).read_manifest()
        time.sleep(0.5)
    raise AssertionError("no answer in time")
