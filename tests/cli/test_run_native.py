"""`servescope run` on the native core, and `report` on what it left."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from harness.engines.process import EngineProcess, free_port
from harness.engines.protocol import EngineConfig
from harness.engines.registry import adapter
from harness.models.store import find_model
from harness.observe.exposition import Reader
from harness.plan import load_plan
from harness.records.rundir import CellDir, RunDir
from harness.records.tables import TABLES
from tests.cli.driving import MULTI_TURN, NATIVE, PREFIX_HIT, Ended, behind, plan, servescope, the_cell, the_run
from workloads.file import read_workload, write_workload
from workloads.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("cache")
CELL_FILES = {
    "manifest.json", "workload.jsonl.gz", "requests.parquet", "chunks.parquet", "tokens.parquet", "server.parquet",
    "host.parquet", "validity.json", "expected.json", "joined.parquet", "triage.json", "engine.log", "client.log",
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A run and the command that made it."""

    ended: Ended
    run: RunDir

    def cell(self, workload: str) -> CellDir:
        (cell,) = [cell for cell in self.run.cells() if f".{workload}." in cell.name]
        return cell


@pytest.fixture(scope="module")
def made(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("native")
    ended = servescope(
        "run", plan(folder, NATIVE, PREFIX_HIT, MULTI_TURN), "--out", folder / "out" / "deep", "--workers", 2, "--json"
    )
    return Made(ended, the_run(folder / "out" / "deep"))


@pytest.fixture(scope="module")
def server(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a native core that was there before."""
    options = {"block_size": 16, "kv_tokens": 4096, "max_model_len": 1024, "threads": 1}
    port = free_port()
    spec = adapter("native").launch(EngineConfig("there", "native", options=options), find_model("tiny"), port)
    log = tmp_path_factory.mktemp("there") / "engine.log"
    with EngineProcess(spec, port, log).start().wait_ready() as process:
        yield process.base_url


def well(ended: Ended, run: RunDir) -> None:
    """Exit code 0; or 4 where the only thing wrong is that this model's tokens come quicker than a busy machine's
    client can stamp them."""
    void = {
        check["id"]
        for cell in run.cells()
        for check in json.loads(cell.file("validity.json").read_bytes())["checks"]
        if check["state"] == "void"
    }
    assert void <= {"client_lateness", "loop_lag"}, ended
    assert ended.code == (4 if void else 0), ended


def counters(cell: CellDir, name: str) -> float:
    """Growth of a counter of the native core over the cell, from its first scrape to its last."""
    rows = [row for row in cell.read_table("server").to_pylist() if row["metric"] == f"native:{name}"]
    first, last = min(row["t_start"] for row in rows), max(row["t_start"] for row in rows)
    ends = [sum(row["value"] for row in rows if row["t_start"] == t) for t in (first, last)]
    return ends[1] - ends[0]


def billed(cell: CellDir, column: str) -> int:
    return int(pc.sum(cell.read_table("requests")[column]).as_py())


def test_it_ends_well_with_every_artefact(made: Made) -> None:
    well(made.ended, made.run)
    top = {path.name for path in made.run.path.iterdir()}
    assert {"plan.toml", "report.md", "report.html", "verdict.json", "cells"} <= top
    assert sorted(cell.name for cell in made.run.cells()) == ["native.multi-turn.r1", "native.prefix-hit.r1"]
    for cell in made.run.cells():
        assert {path.name for path in cell.path.iterdir()} == CELL_FILES
        for table in TABLES:
            if table != "gpu":
                assert cell.read_table(table).num_rows, table
        manifest = cell.read_manifest()
        assert (manifest.status, manifest.died_of, manifest.scrape_errors) == ("complete", None, 0)
        assert manifest.cache.state == "flushed"
        assert manifest.cache.proven
    assert made.cell("prefix-hit").file("engine.log").read_bytes().startswith(b"$ ")  # the first cell has the start


def test_stdout_is_one_json_document_and_the_saved_verdict(made: Made) -> None:
    assert json.loads(made.ended.out) == json.loads((made.run.path / "verdict.json").read_bytes())


@pytest.mark.parametrize("workload", ["prefix-hit", "multi-turn"])
def test_rows_equal_counters(made: Made, workload: str) -> None:
    cell = made.cell(workload)
    table = cell.read_table("requests")
    assert set(table["status"].to_pylist()) == {"ok"}
    measured = [phase for phase in table["phase"].to_pylist() if phase != "warmup"]
    assert len(measured) == len(read_workload(cell.file("workload.jsonl.gz")).requests)
    assert billed(cell, "prompt_tokens") == counters(cell, "prompt_tokens_total")
    assert billed(cell, "output_tokens") == counters(cell, "generation_tokens_total")
    assert billed(cell, "cached_tokens") == counters(cell, "prefix_hit_tokens_total")
    assert billed(cell, "cached_tokens") > 0


@pytest.mark.parametrize("workload", ["prefix-hit", "multi-turn"])
def test_expected_equals_measured(made: Made, workload: str) -> None:
    expected = json.loads(made.cell(workload).file("expected.json").read_bytes())
    for row in expected["classes"]:
        assert row["low"] <= row["usage"] <= row["high"], row
    assert sum(row["usage"] for row in expected["classes"]) > 0


def test_both_workers_sent_what_two_can_share(made: Made) -> None:
    hits = made.cell("prefix-hit")
    assert set(hits.read_table("requests")["worker"].to_pylist()) == {0, 1}
    assert len(hits.read_manifest().workers) == 2


def test_sessions_that_wait_for_one_plant_have_one_worker(made: Made) -> None:
    """Was refused: the second worker's sessions followed a request that only the first one saw."""
    table = made.cell("multi-turn").read_table("requests")
    rows = [row for row in table.to_pylist() if row["phase"] != "warmup"]
    assert {row["worker"] for row in rows} == {0}
    assert max(row["t_sent"] for row in rows) > min(row["t_done"] for row in rows)


def test_the_saved_plan_says_what_was_run(made: Made) -> None:
    saved = load_plan(made.run.path / "plan.toml")
    assert (saved.name, saved.seed, saved.run.timeout_s.total) == ("small", 7, 300.0)


def test_report_again_gives_the_same_verdict(made: Made) -> None:
    before = (made.run.path / "verdict.json").read_bytes()
    again = servescope("report", made.run.path, "--json")
    assert again.code == made.ended.code
    assert (made.run.path / "verdict.json").read_bytes() == before
    assert again.out == made.ended.out


def test_a_cell_alone_can_be_reported(made: Made, tmp_path: Path) -> None:
    cell = made.cell("prefix-hit")
    ended = servescope("report", cell.path, "--json")
    for name in ("report.md", "report.html", "verdict.json"):
        (cell.path / name).rename(tmp_path / name)  # the module's other tests know which files a cell has
    assert ended.code in (0, 4)
    assert json.loads(ended.out) == json.loads((tmp_path / "verdict.json").read_bytes())


def test_per_cell_launches_repeats_and_salt(tmp_path: Path) -> None:
    """Two processes, two cells; a salt of each cell's own changes no expectation."""
    settings = 'launch = "per-cell"\ncache = "salted"'
    ended = servescope(
        "run", plan(tmp_path, NATIVE, PREFIX_HIT, run=settings), "--repeats", 2, "--out", tmp_path / "out"
    )
    well(ended, the_run(tmp_path / "out"))
    cells = list(the_run(tmp_path / "out").cells())
    assert [cell.name for cell in cells] == ["native.prefix-hit.r1", "native.prefix-hit.r2"]
    manifests = [cell.read_manifest() for cell in cells]
    assert len({manifest.engine.pid for manifest in manifests}) == 2
    assert [manifest.repeat for manifest in manifests] == [1, 2]
    assert {(manifest.cache.state, manifest.cache.method) for manifest in manifests} == {("salted", "salt")}
    assert len({billed(cell, "cached_tokens") for cell in cells}) == 1
    for cell in cells:
        assert billed(cell, "cached_tokens") == counters(cell, "prefix_hit_tokens_total") > 0
        assert cell.file("engine.log").read_bytes().startswith(b"$ ")
    assert f"{tmp_path / 'out'}" in ended.out.replace("\n", "")


def test_salt_keeps_a_cell_from_the_one_before(server: str, tmp_path: Path) -> None:
    """Same server, same prompts, no flush: the second cell hits what the first one did, and no more."""
    file = plan(tmp_path, behind(server), PREFIX_HIT, run='cache = "salted"\nrepeats = 2')
    ended = servescope("run", file, "--out", tmp_path / "out")
    well(ended, the_run(tmp_path / "out"))
    first, second = the_run(tmp_path / "out").cells()
    assert billed(first, "cached_tokens") == billed(second, "cached_tokens") > 0


def test_redacted_run_on_a_server_that_was_there(made: Made, server: str, tmp_path: Path) -> None:
    file = plan(tmp_path, NATIVE, PREFIX_HIT)
    ended = servescope("run", file, "--engine", server, "--redact-prompts", "--out", tmp_path / "out")
    well(ended, the_run(tmp_path / "out"))
    cell = the_cell(tmp_path / "out")
    assert cell.name == f"{server.removeprefix('http://').replace(':', '-')}.prefix-hit.r1"
    manifest = cell.read_manifest()
    assert manifest.redacted
    assert (manifest.engine.kind, manifest.engine.url, manifest.engine.started_by_us) == ("native", server, False)
    _has_no_prompt(cell)

    # The same expectation as in the open run, and the same answer to it.
    def cached(cell: CellDir) -> list[dict[str, object]]:
        keys = ("cache_class", "requests", "prompt_tokens", "low", "high", "usage")
        classes = json.loads(cell.file("expected.json").read_bytes())["classes"]
        return [{key: row[key] for key in keys} for row in classes if row["cache_class"] != "warm-up"]

    assert cached(cell) == cached(made.cell("prefix-hit"))
    assert billed(cell, "cached_tokens") == counters(cell, "prefix_hit_tokens_total") > 0
    # It was not ours to stop.
    assert httpx.get(f"{server}/health", trust_env=False).status_code == 200


def _has_no_prompt(cell: CellDir) -> None:
    """Neither the ids of any prompt nor their text are in any file of the run, packed or not."""
    assert not list(cell.path.rglob(".client"))
    folder = cell.path.parents[1]
    model = find_model("tiny").path
    workload = load_plan(folder / "plan.toml").workloads[0].build(7, Vocabulary.of(model))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    pieces: set[bytes] = set()
    for request in workload.requests:
        part = list(workload.prompt_ids(request)[4:10])  # within one segment
        pieces |= {json.dumps(part)[1:-1].encode(), tokenizer.decode(part).encode(), np.asarray(part, "<u4").tobytes()}
    assert pieces
    for path in folder.rglob("*"):
        if path.is_file():
            data = _readable(path)
            assert not [piece for piece in pieces if piece in data], path
    write_workload(workload, folder / "open.jsonl.gz")
    assert [piece for piece in pieces if piece in _readable(folder / "open.jsonl.gz")]  # else the search finds nothing


def _readable(path: Path) -> bytes:
    """What is in a file once it is unpacked: Parquet as JSON, base64 of a workload's segments as bytes."""
    if path.suffix == ".parquet":
        return json.dumps(pq.read_table(path).to_pylist()).encode()
    if path.suffix == ".gz":
        lines = gzip.decompress(path.read_bytes()).splitlines()
        rows = [json.loads(line) for line in lines]
        return b"\n".join([*lines, *(base64.b64decode(row["ids"]) for row in rows if "ids" in row)])
    return path.read_bytes()


def test_scrapes_hold_what_the_server_says(made: Made, server: str) -> None:
    """The names in server.parquet are those of a live page: nothing is renamed on the way."""
    page = httpx.get(f"{server}/metrics", trust_env=False).content
    names = {row[0] for row in Reader(("native:",)).rows(page)[0]}
    kept = set(made.cell("prefix-hit").read_table("server")["metric"].to_pylist())
    assert {"native:prompt_tokens_total", "native:generation_tokens_total"} <= kept & names
