"""Whole reports from run directories: healthy, dead, failed, foreign and hostile ones."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from harness.records.errors import UsageError
from harness.records.judgements import Expected, Validity, Verdict
from harness.records.rundir import CellDir
from reports.build import build_report
from reports.cell import load_cell
from reports.render.bench_block import bench_block
from reports.render.console import render_console
from reports.render.words import estimate, figure
from tests.reports.synthetic import CellSpec, Row, Scrape, steady, write_run

HEAD = list(range(1000, 1064))
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta"}


def healthy(number: int = 24, **spec: Any) -> CellSpec:
    rows = [
        steady(f"r{at:02d}", at * 0.3, done=at * 0.3 + 0.3, prompt=[*HEAD, at], cached=64 if at else 0)
        for at in range(number)
    ]
    return CellSpec(rows, **spec)


def screen(report: Any, width: int = 80) -> str:
    console = Console(width=width, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    render_console(report, console)
    return console.export_text()


class Page(HTMLParser):
    """Checks nesting, and collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_healthy_run(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        healthy(),
        healthy(name="vllm.steady.r1", engine={"kind": "vllm", "name": "vllm", "version": "0.32.0"}),
    )
    report = build_report(run.path)
    assert report.exit_code == 0
    verdict = Verdict.model_validate_json((run.path / "verdict.json").read_bytes())
    assert (verdict.kind, verdict.verdict, verdict.exit_code) == ("run", "ok", 0)
    assert verdict.headline == "ok: 2 engines, 1 workload, 2 cells, 48 requests answered, every check passed"
    ttft = next(m for m in verdict.metrics if m.metric == "ttft" and m.labels["statistic"] == "p50")
    assert ttft.value == pytest.approx(0.1)
    assert ttft.n == 24
    for name in ("report.md", "report.html"):
        assert "1,472" in (run.path / name).read_text()
    cell = run.path / "cells" / "vllm.steady.r1"
    assert Expected.model_validate_json((cell / "expected.json").read_bytes()).total.low == 23 * 64
    assert Validity.model_validate_json((cell / "validity.json").read_bytes()).state == "ok"
    assert len(json.loads((cell / "triage.json").read_bytes())["stages"]) == 6
    assert "engine.kv_usage" in pq.read_schema(cell / "joined.parquet").names


def test_the_screen_reads_well_at_80_columns(tmp_path: Path) -> None:
    specs = [
        healthy(name=f"{kind}.steady.r1", engine={"kind": kind, "name": kind, "version": "0.32.0"})
        for kind in ("native", "vllm", "sglang")
    ]
    report = build_report(write_run(tmp_path, *specs).path)
    text = screen(report)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[0].startswith("ok")
    assert text.index("expected 1,472 cached tokens") < text.index("client error in this run") < text.index("TTFT P99")
    assert text.index("TTFT P99") < text.index("answered / measured") < text.index("Serving Benchmark Result")
    assert "\x1b" not in text


def test_a_single_cell_shows_its_ladder(tmp_path: Path) -> None:
    run = write_run(tmp_path, healthy())
    text = screen(build_report(run.path / "cells" / "native.steady.r1"))
    assert text.index("Serving Benchmark Result") < text.index("Evidence ladder")
    assert "communication: not observable" in text
    assert (run.path / "cells" / "native.steady.r1" / "report.html").is_file()


def test_a_host_without_a_gpu_says_so(tmp_path: Path) -> None:
    """The manifest says {"present": False, …} there, which is no empty mapping: the words never appeared."""
    steps = {"native:step_seconds_sum": 0.0, "native:step_seconds_count": 0.0}
    grown = {"native:step_seconds_sum": 3.0, "native:step_seconds_count": 60.0}
    scrapes = [Scrape(0.0, steps), Scrape(8.0, grown)]
    manifest = {"gpu": {"present": False, "why": "no GPU on this host"}}
    run = write_run(tmp_path, healthy(scrapes=scrapes, manifest=manifest))
    kernel = next(stage for stage in build_report(run.path).cells[0].stages if stage.stage == "gpu_kernel")
    assert "no GPU on this host" in kernel.headline


def test_a_lost_cell_is_named_and_the_run_not_ok(tmp_path: Path) -> None:
    """A cell whose manifest was gone was left out in silence, and the rest called ok."""
    run = write_run(tmp_path, healthy(), healthy(name="vllm.steady.r1"))
    (run.path / "cells" / "vllm.steady.r1" / "manifest.json").unlink()
    verdict = build_report(run.path).verdict
    assert (verdict.verdict, verdict.exit_code) == ("invalid", 4)
    assert "cells that cannot be read: 1" in verdict.headline
    assert "vllm.steady.r1/manifest.json is missing" in verdict.headline


def test_the_page_stands_alone_and_is_well_formed(tmp_path: Path) -> None:
    run = write_run(tmp_path, healthy(), healthy(name="b", engine={"name": "b"}))
    build_report(run.path)
    page = Page((run.path / "report.html").read_text())
    assert page.tags.count("svg") == 3  # one chart of distributions, two of time
    assert "script" not in page.tags
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)


HOSTILE = "<script>alert(1)</script>|`$x$`\n# \x1b[31m & [bold]"


def test_names_are_shown_and_never_run(tmp_path: Path) -> None:
    """Names, versions and error texts come from files and servers that anybody may have written."""
    spec = healthy(
        workload=HOSTILE,
        engine={"name": HOSTILE, "version": HOSTILE, "log_facts": {HOSTILE: HOSTILE}},
        cache={"evidence": HOSTILE},
        manifest={"cell": HOSTILE, "died_of": HOSTILE, "status": "died"},
    )
    run = write_run(tmp_path, spec)
    report = build_report(run.path)
    html = (run.path / "report.html").read_text()
    assert "script" not in Page(html).tags
    assert "&lt;script&gt;" in html
    markdown = (run.path / "report.md").read_text()
    assert "<script" not in markdown
    assert not re.search(r"(?<!\\)[|`]x?\$", markdown)
    text = screen(report)
    assert "\x1b" not in text + markdown + html
    assert "[bold]" in text
    assert json.loads((run.path / "verdict.json").read_bytes())["exit_code"] == 5


def test_all_failed(tmp_path: Path) -> None:
    rows = [steady(f"r{at}", float(at), status="error", error_kind="http", tokens=0) for at in range(4)]
    report = build_report(write_run(tmp_path, CellSpec(rows)).path)
    assert (report.verdict.verdict, report.exit_code) == ("invalid", 4)
    assert "no request was answered" in report.verdict.headline
    assert "no request was answered" in screen(report).replace("\n", " ")
    assert bench_block(report.cells[0].cell) == ""


def test_an_interrupted_run_keeps_its_figures(tmp_path: Path) -> None:
    spec = healthy(manifest={"status": "interrupted"})
    spec.rows = [*spec.rows, Row("cut", 7.3, [(7.4, 1, "content")], done=7.5, status="cancelled")]
    report = build_report(write_run(tmp_path, spec).path)
    assert (report.verdict.verdict, report.exit_code) == ("invalid", 4)
    assert "interrupted" in report.verdict.headline
    assert report.cells[0].measured["ttft"].estimate(0.5) is not None


def test_an_engine_that_died(tmp_path: Path) -> None:
    spec = healthy(manifest={"status": "died", "died_of": "killed by signal 9"}, without=("server", "host"))
    report = build_report(write_run(tmp_path, spec).path)
    assert (report.verdict.verdict, report.exit_code) == ("infrastructure", 5)
    assert "killed by signal 9" in report.verdict.headline


@pytest.mark.parametrize("missing", ["requests", "chunks", "tokens", "server", "host"])
def test_a_missing_table_costs_what_it_held_and_no_more(tmp_path: Path, missing: str) -> None:
    report = build_report(write_run(tmp_path, healthy(without=(missing,))).path)
    check = next(check for check in report.cells[0].validity.checks if check.id == "tables")
    assert check.state == ("void" if missing == "requests" else "suspect")
    assert f"{missing}.parquet" in check.why
    assert (report.path / "report.html").is_file()


def test_a_run_without_cells(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path).path)
    assert (report.verdict.verdict, report.exit_code) == ("invalid", 4)
    assert "holds no cell" in screen(report)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        build_report(tmp_path)
    with pytest.raises(UsageError, match="is not a directory"):
        build_report(tmp_path / "nowhere")


def test_a_foreign_schema_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, healthy())
    path = next(run.cells()).file("manifest.json")
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "schema_version": 99}))
    with pytest.raises(UsageError, match="schema 99"):
        build_report(run.path)


def test_the_same_run_gives_the_same_report(tmp_path: Path) -> None:
    run = write_run(tmp_path, healthy())
    build_report(run.path)
    before = {name: (run.path / name).read_bytes() for name in ("report.md", "report.html", "verdict.json")}
    build_report(run.path)
    assert before == {name: (run.path / name).read_bytes() for name in before}


def test_contradicting_figures_are_inconclusive(tmp_path: Path) -> None:
    spec = healthy()
    for row in spec.rows:
        row.cached = 80
    report = build_report(write_run(tmp_path, spec).path)
    assert (report.verdict.verdict, report.exit_code) == ("inconclusive", 3)


def test_repeats_show_their_range(tmp_path: Path) -> None:
    specs = []
    for repeat in (1, 2, 3):
        spec = healthy(name=f"native.steady.r{repeat}", repeat=repeat)
        spec.rows = [steady(f"r{at:02d}", float(at), ttft=0.1 * repeat) for at in range(24)]
        specs.append(spec)
    text = screen(build_report(write_run(tmp_path, *specs).path))
    assert re.search(r"TTFT P50, ms +200 \(100 to 300\)", text)


# Two requests: sent 0 and 1 s; events at 0.5, 0.7, 1.0 and at 1.2, 1.6; the role event counts there, unlike with us.
BLOCK_ROWS = [
    Row("a", 0.0, [(0.5, 0, "role"), (0.7, 1, "content"), (1.0, 2, "content"), (1.1, 0, "usage")], prompt=range(10)),
    Row("b", 1.0, [(1.2, 1, "content"), (1.6, 1, "content")], prompt=range(20), done=2.0),
    Row("c", 1.0, [], done=1.5, status="refused", prompt=range(5)),
]
BLOCK = """\
============ Serving Benchmark Result ============
Successful requests:                     2
Failed requests:                         1
Maximum request concurrency:             2
Benchmark duration (s):                  2.00
Total input tokens:                      30
Total generated tokens:                  5
Request throughput (req/s):              1.00
Output token throughput (tok/s):         2.50
Peak output token throughput (tok/s):    3.00
Peak concurrent requests:                2.00
Total token throughput (tok/s):          17.50
---------------Time to First Token----------------
Mean TTFT (ms):                          350.00
Median TTFT (ms):                        350.00
P99 TTFT (ms):                           497.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          325.00
Median TPOT (ms):                        325.00
P99 TPOT (ms):                           398.50
---------------Inter-token Latency----------------
Mean ITL (ms):                           300.00
Median ITL (ms):                         300.00
P99 ITL (ms):                            398.00
=================================================="""


def test_the_block_has_the_definitions_of_vllm_bench_serve(tmp_path: Path) -> None:
    """TTFT .5 and .2; E2E 1.0 and .6; TPOT .5/2 = .25 and .4/1 = .4; gaps .2, .3, .4."""
    run = write_run(tmp_path, CellSpec(BLOCK_ROWS, load={"mode": "closed", "in_flight": 2}))
    block = bench_block(load_cell(next(run.cells())))
    assert [line.rstrip() for line in block.splitlines()] == BLOCK.splitlines()


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0234, "s", "23.4"),
        (0.09999999, "s", "100"),
        (1.23, "s", "1,230"),
        (0.0001234, "s", "0.123"),
        (0.5, "1", "50.0"),
        (0.0, "1", "0"),
        (1234.5, "tokens/s", "1,234"),
    ],
)
def test_figures_have_three_digits(value: float, unit: str, shown: str) -> None:
    assert figure(value, unit) == shown
    assert estimate(None, unit) == "-"


def test_cells_of_a_run_are_untouched_by_a_report(tmp_path: Path) -> None:
    run = write_run(tmp_path, healthy())
    cell = next(run.cells())
    kept = {path.name: path.read_bytes() for path in cell.path.iterdir()}
    build_report(run.path)
    assert kept == {name: CellDir(cell.path).file(name).read_bytes() for name in kept}
