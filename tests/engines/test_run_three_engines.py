"""The main job on three real engines: the CI plan once, through the command line, and all that it must say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from harness.engines.store import list_engines
from harness.records.judgements import Expected, Validity
from harness.records.rundir import CellDir, RunDir
from tests.engines.conftest import Slot, model_dir, unavailable

ROOT = Path(__file__).resolve().parents[2]
PLAN = ROOT / "plans" / "ci-three-engines.toml"
ENGINES = ("native", "vllm", "sglang")
WORKLOADS = ("prefix-hit", "long-prompt", "multi-turn")
CELLS = [f"{engine}.{workload}.r1" for engine in ENGINES for workload in WORKLOADS]

# What may be void where something else keeps the two cores busy: the tokens are exact all the same.
CLOCK = {"loop_lag", "client_lateness"}
# Three starts and nine cells take under three minutes on two idle cores, and much longer on busy ones.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Run:
    path: Path
    verdict: dict[str, Any]
    progress: str

    def cell(self, name: str) -> CellDir:
        return next(cell for cell in RunDir.open(self.path).cells() if cell.name == name)


@pytest.fixture(scope="module")
def run(engine_slot: Slot, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of all three, with the machine to itself."""
    engine_slot.close()
    model_dir()
    found = {env.name for env in list_engines()}
    for name, kind in (("vllm-0.32.0-cpu", "vllm"), ("sglang-0.5.23-cpu", "sglang")):
        if name not in found:
            unavailable(f"no environment {name}; servescope engines install {kind} --device cpu")
    out = tmp_path_factory.mktemp("three-engines")
    argv = [sys.executable, "-m", "harness.cli", "run", str(PLAN), "--out", str(out), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, env=dict(os.environ))
    assert done.returncode in (0, 4), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (path,) = out.iterdir()
    return Run(path, json.loads(done.stdout), done.stderr)


def rows(cell: CellDir, column: str, **only: str) -> int:
    table = cell.read_table("requests")
    for name, value in only.items():
        table = table.filter(pc.equal(table[name], value))
    return int(pc.sum(table[column]).as_py() or 0)


def void_checks(cell: CellDir) -> set[str]:
    return {check.id for check in cell.read_model("validity.json", Validity).checks if check.state == "void"}


def grown(cell: CellDir, metric: str, **labels: str) -> float:
    """Last scrape minus first, summed over the label sets that carry `labels`; absent before its first event is 0."""
    series: dict[str, list[tuple[int, float]]] = {}
    for row in cell.read_table("server").to_pylist():
        if row["metric"] == metric and labels.items() <= json.loads(row["labels"]).items():
            series.setdefault(row["labels"], []).append((row["t_end"], row["value"]))
    first = min(row["t_end"] for row in cell.read_table("server").to_pylist())
    return sum(max(points)[1] - (min(points)[1] if min(points)[0] == first else 0.0) for points in series.values())


COUNTERS = {
    "native": ("native:prompt_tokens_total", "native:generation_tokens_total", "native:requests_finished_total"),
    "vllm": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
    "sglang": ("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:num_requests_total"),
}
HITS: dict[str, tuple[str, dict[str, str]]] = {
    "native": ("native:prefix_hit_tokens_total", {}),
    "vllm": ("vllm:prefix_cache_hits_total", {}),
    "sglang": ("sglang:prefill_effective_tokens_total", {"mode": "device_hit"}),
}


def test_one_report_has_them_side_by_side(run: Run) -> None:
    text = (run.path / "report.md").read_text()
    assert "|  | native | vllm | sglang |" in text
    assert [cell.name for cell in RunDir.open(run.path).cells()] == sorted(CELLS)
    void = {check for cell in RunDir.open(run.path).cells() for check in void_checks(cell)}
    assert (run.verdict["verdict"], run.verdict["exit_code"]) == (("invalid", 4) if void else ("ok", 0))
    assert (run.path / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize("name", CELLS)
def test_rows_and_tokens_equal_the_counters(run: Run, name: str) -> None:
    """Exactly, warm-up and health probes included; read here from the scrapes without the catalogue's help."""
    cell = run.cell(name)
    prompt, output, finished = COUNTERS[name.split(".")[0]]
    assert rows(cell, "prompt_tokens") == grown(cell, prompt) > 0
    assert rows(cell, "output_tokens") == grown(cell, output) > 0
    assert cell.read_table("requests").num_rows == grown(cell, finished)


@pytest.mark.parametrize("name", CELLS)
def test_cached_tokens_agree_and_are_as_expected(run: Run, name: str) -> None:
    cell = run.cell(name)
    metric, labels = HITS[name.split(".")[0]]
    expected = cell.read_model("expected.json", Expected)
    assert expected.exact
    assert rows(cell, "cached_tokens") == grown(cell, metric, **labels) == expected.total.low == expected.total.high
    assert expected.verdict == ("no sharing in the workload" if "long-prompt" in name else "as expected")


@pytest.mark.parametrize("engine", ENGINES)
def test_full_partial_and_miss_are_told_apart(run: Run, engine: str) -> None:
    """Prompts of 80 tokens: the whole but its last token, 32, or none, each in whole blocks of 32, or in tokens."""
    cell = run.cell(f"{engine}.prefix-hit.r1")
    whole, part = (79, 32) if engine == "sglang" else (64, 32)
    cached = {
        kind: rows(cell, "cached_tokens", cache_class=kind, phase="measure") for kind in ("full", "partial", "miss")
    }
    assert cached == {"full": 3 * whole, "partial": 3 * part, "miss": 0}


@pytest.mark.parametrize("name", CELLS)
def test_no_check_but_the_clocks_is_void_and_the_cache_was_flushed_with_proof(run: Run, name: str) -> None:
    cell = run.cell(name)
    assert void_checks(cell) <= CLOCK
    manifest = cell.read_manifest()
    assert manifest.status == "complete"
    assert manifest.cache.state == "flushed"
    assert manifest.cache.proven
    assert manifest.model.weights_sha256 == run.cell(CELLS[0]).read_manifest().model.weights_sha256


def test_the_stand_in_was_never_called(run: Run) -> None:
    """`sgl_kernel` is imported by SGLang and must not be used: its stand-in writes down every call."""
    assert not list(run.path.rglob("stand-in-calls.txt"))
