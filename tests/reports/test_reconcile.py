"""Rows against counters, and the checks that decide whether a run can be believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.records.judgements import Check
from harness.records.rundir import CellDir
from reports.cell import Cell, load_cell
from reports.client_error import client_error
from reports.metrics import measure
from reports.reconcile import reconcile
from reports.series import Signals
from reports.validity import validity
from tests.reports.signal_vectors import counter, gauge, signals
from tests.reports.synthetic import CellSpec, Row, steady, write_cell

NONE = Signals({}, {}, "the engine was not scraped")


def cell_of(tmp_path: Path, rows: list[Row], **spec: Any) -> Cell:
    return load_cell(write_cell(CellDir(tmp_path), CellSpec(rows, **spec)))


def grown(finished: float, prompt: float, output: float, cached: float, resets: int = 0) -> Signals:
    names = {"finished": finished, "prompt_tokens": prompt, "output_tokens": output, "prefix_hit_tokens": cached}
    return signals(*(counter(name, [(-9.0, 1000.0), (99.0, 1000.0 + by)], resets=resets) for name, by in names.items()))


def checks(cell: Cell, found: Signals = NONE) -> dict[str, Check]:
    judged = validity(cell, found, measure(cell, found), client_error(cell), reconcile(cell, found))
    return {check.id: check for check in judged.checks}


# Three requests of 32 prompt tokens and 11 answer tokens, one of them warm-up.
ROWS = [steady("w", -2.0, phase="warmup"), steady("a", 0.0, cached=16), steady("b", 1.0)]


def test_both_sides_are_equal(tmp_path: Path) -> None:
    lines = reconcile(cell_of(tmp_path, ROWS), grown(3, 96, 33, 16))
    assert [(line.client, line.engine, line.state) for line in lines] == [
        (3, 3, "equal"),
        (96, 96, "equal"),
        (33, 33, "equal"),
        (16, 16, "equal"),
    ]


def test_one_token_too_many_is_seen(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, ROWS)
    line = reconcile(cell, grown(3, 97, 33, 16))[1]
    assert (line.state, line.difference, line.why) == ("differs", 1, "the engine counted 1 more")
    assert checks(cell, grown(3, 97, 33, 16))["reconcile"].state == "suspect"


def test_unfinished_requests_explain_more_but_never_less(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, [*ROWS, steady("cut", 2.0, status="cancelled")])
    assert [line.state for line in reconcile(cell, grown(3, 128, 36, 16))] == [
        "equal",
        "explained",
        "explained",
        "equal",
    ]
    assert reconcile(cell, grown(3, 90, 33, 16))[1].state == "differs"


def test_missing_sides_are_not_observable(tmp_path: Path) -> None:
    rows = [steady("a", 0.0, cached=None), steady("b", 1.0)]
    lines = reconcile(cell_of(tmp_path, rows), grown(2, 64, 22, 0))
    assert [line.state for line in lines] == ["equal", "equal", "equal", "not_observable"]
    assert "1 of 2 answers" in lines[3].why
    assert {line.state for line in reconcile(cell_of(tmp_path, rows), NONE)} == {"not_observable"}
    assert "not checked" in checks(cell_of(tmp_path, rows))["reconcile"].why


def test_a_restart_voids_the_run(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, ROWS)
    assert checks(cell, grown(3, 96, 33, 16, resets=1))["restart"].state == "void"


def test_a_healthy_run_passes_every_check(tmp_path: Path) -> None:
    rows = [steady(f"r{at:02d}", at * 0.3, done=at * 0.3 + 0.3) for at in range(40)]
    found = checks(cell_of(tmp_path, rows), grown(40, 40 * 32, 440, 0))
    assert {name: check.why for name, check in found.items() if check.state != "ok"} == {}


@pytest.mark.parametrize(("bad", "state"), [(0, "ok"), (1, "ok"), (2, "suspect"), (11, "void")])
def test_failures(tmp_path: Path, bad: int, state: str) -> None:
    rows = [steady(f"r{at:03d}", float(at)) for at in range(100 - bad)]
    rows += [steady(f"x{at:03d}", float(at), status="error", error_kind="cut") for at in range(bad)]
    found = checks(cell_of(tmp_path, rows))["failures"]
    assert found.state == state
    assert found.value == pytest.approx(bad / 100)


def test_what_the_client_cancelled_is_no_failure(tmp_path: Path) -> None:
    rows = [steady("a", 0.0), steady("b", 1.0, status="cancelled")]
    assert checks(cell_of(tmp_path, rows))["failures"].value == 0.0


@pytest.mark.parametrize(("status", "state"), [("complete", "ok"), ("interrupted", "void"), ("died", "void")])
def test_a_run_that_did_not_end_well_is_void(tmp_path: Path, status: str, state: str) -> None:
    found = checks(cell_of(tmp_path, ROWS, manifest={"status": status}))
    assert found["completeness"].state == state


def test_client_error_is_the_read_after_the_stamp(tmp_path: Path) -> None:
    rows = [steady(f"r{at}", float(at), lateness=0.0001 * (at + 1)) for at in range(10)]
    error = client_error(cell_of(tmp_path, rows))
    assert (error.stamped, error.events) == (110, 110)
    assert error.ttft_p50 == pytest.approx(0.0005)
    assert error.ttft_p99 == pytest.approx(0.001)
    assert error.tpot_p99 == pytest.approx(0.0, abs=1e-12)
    assert error.line == "client error in this run: TTFT +1 ms P99, TPOT ±0.001 ms or less P99"


def test_client_error_without_stamps_says_why(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, [steady("a", 0.0, lateness=None)])
    assert client_error(cell).line == (
        "client error in this run: not measured, no event carries a kernel receive stamp"
    )
    assert "not checked" in checks(cell)["client_lateness"].why


@pytest.mark.parametrize(("lateness", "state"), [(0.001, "ok"), (0.02, "suspect"), (0.08, "void")])
def test_client_lateness_against_the_median(tmp_path: Path, lateness: float, state: str) -> None:
    rows = [steady(f"r{at}", float(at), ttft=0.1, lateness=lateness) for at in range(10)]
    assert checks(cell_of(tmp_path, rows))["client_lateness"].state == state


def test_an_open_load_that_falls_behind(tmp_path: Path) -> None:
    load = {"mode": "constant", "rate": 10.0}
    late = [steady(f"r{at}", at * 0.2, intended=at * 0.1) for at in range(20)]
    assert checks(cell_of(tmp_path, late, load=load))["load"].state == "void"
    held = [steady(f"r{at}", at * 0.1 + 0.001, intended=at * 0.1) for at in range(20)]
    assert checks(cell_of(tmp_path, held, load=load))["load"].state == "ok"


def test_a_closed_load_that_never_fills(tmp_path: Path) -> None:
    rows = [steady(f"r{at}", float(at), done=at + 0.9) for at in range(20)]
    found = checks(cell_of(tmp_path, rows, load={"mode": "closed", "in_flight": 4}))["load"]
    assert found.state == "suspect"
    assert found.value == pytest.approx(0.225, abs=0.01)


def test_drift_over_the_run(tmp_path: Path) -> None:
    def rows(growth: float) -> list[Row]:
        return [steady(f"r{at:02d}", at * 1.0, gap=0.02 * (1 + growth * at / 60) + at % 3 * 1e-4) for at in range(60)]

    assert checks(cell_of(tmp_path, rows(1.0)))["steady"].state == "suspect"
    assert checks(cell_of(tmp_path, rows(0.0)))["steady"].state == "ok"


def test_scrape_errors(tmp_path: Path) -> None:
    scraped = signals(gauge("running", [(float(at), 1.0) for at in range(10)]))
    cell = cell_of(tmp_path, ROWS, manifest={"scrape_errors": 10})
    assert checks(cell, scraped)["scrapes"].value == 0.5
    assert checks(cell, scraped)["scrapes"].state == "suspect"
    assert checks(cell)["scrapes"].state == "suspect"
    assert checks(cell_of(tmp_path, ROWS))["scrapes"].state == "ok"


def test_a_cache_state_that_nothing_proves(tmp_path: Path) -> None:
    assert checks(cell_of(tmp_path, ROWS, cache={"proven": False}))["cache_state"].state == "suspect"
    assert checks(cell_of(tmp_path, ROWS, cache={"proven": False, "state": "warm"}))["cache_state"].state == "ok"
