"""The tail placed in time, and the honest word where it has no place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.records.rundir import CellDir
from reports.cell import Cell, load_cell
from reports.findings import Finding, tail
from reports.join import join
from reports.metrics import measure
from reports.series import Signals
from tests.reports.signal_vectors import counter, gauge, signals
from tests.reports.synthetic import CellSpec, Row, steady, write_cell


def cell_of(tmp_path: Path, rows: list[Row]) -> Cell:
    return load_cell(write_cell(CellDir(tmp_path), CellSpec(rows, load={"mode": "closed", "in_flight": 4})))


def found(tmp_path: Path, rows: list[Row], engine: Signals | None = None) -> Finding:
    cell = cell_of(tmp_path, rows)
    engine = engine or Signals({}, {})
    return tail(cell, engine, measure(cell, engine))


def storm(slow_between: tuple[float, float] = (42.0, 48.0)) -> list[Row]:
    """100 requests, one a second, of 0.1 s each, but 3.1 s in the storm."""
    return [
        steady(f"r{at:03d}", float(at), ttft=3.1 if slow_between[0] <= at <= slow_between[1] else 0.1)
        for at in range(100)
    ]


ENGINE = signals(
    gauge("kv_usage", [(float(at), 0.98 if 43 <= at <= 50 else 0.4) for at in range(101)]),
    gauge("queue_depth", [(float(at), 0.0) for at in range(101)]),
    counter("preemptions", [(0.0, 5.0), (42.0, 5.0), (51.0, 19.0), (100.0, 19.0)]),
)


def test_a_storm_is_placed_with_the_engines_state(tmp_path: Path) -> None:
    finding = found(tmp_path, storm(), ENGINE)
    assert finding.text == "TTFT P99 is 3.1 s, all of it between 42 s and 51 s, with KV at 98% and 14 preemptions"
    assert (finding.begin, finding.slow) == (42.0, 7)
    assert finding.end == pytest.approx(51.1)


def test_without_signals_the_engine_was_not_observed(tmp_path: Path) -> None:
    assert found(tmp_path, storm()).text.endswith("between 42 s and 51 s, and the engine was not observed")


def test_slow_requests_all_over_the_run_have_no_place(tmp_path: Path) -> None:
    rows = [steady(f"r{at:03d}", float(at), ttft=3.1 if at % 12 == 5 else 0.1) for at in range(100)]
    finding = found(tmp_path, rows, ENGINE)
    assert finding.begin is None
    assert finding.text.endswith("spread over the run")


def test_most_of_the_tail_may_have_a_place(tmp_path: Path) -> None:
    rows = storm()
    rows[90] = steady("r090", 90.0, ttft=3.1)
    assert "88% of it between 42 s and 51 s" in found(tmp_path, rows, ENGINE).text


def test_long_prompts_are_named_as_such(tmp_path: Path) -> None:
    rows = [
        steady(f"r{at:03d}", float(at), ttft=3.1 if at % 12 == 5 else 0.1, prompt=range(900 if at % 12 == 5 else 40))
        for at in range(100)
    ]
    assert found(tmp_path, rows).text.endswith("the slow ones had more to compute, 900 prompt tokens against 40")


def test_no_tail_too_few_or_nothing(tmp_path: Path) -> None:
    even = [steady(f"r{at:03d}", float(at)) for at in range(100)]
    assert "there is no tail" in found(tmp_path, even).text
    assert "too few" in found(tmp_path, even[:10]).text
    assert "no measured request" in found(tmp_path, [steady("x", 0.0, status="error")]).text


def test_few_slow_requests_are_listed_and_not_placed(tmp_path: Path) -> None:
    rows = [steady(f"r{at:03d}", float(at), ttft=3.1 if at in (42, 43) else 0.1) for at in range(100)]
    finding = found(tmp_path, rows, ENGINE)
    assert finding.begin is None
    assert finding.text == "TTFT P99 is 3.1 s, from 2 slow requests of 100, sent at 42.0 s, 43.0 s"


def test_both_sides_are_joined_by_time(tmp_path: Path) -> None:
    rows = [steady("a", 0.0, tokens=5, gap=0.1), steady("b", 1.0, tokens=5, gap=0.1, status="error")]
    engine = signals(
        gauge("running", [(0.0, 1.0), (0.5, 2.0), (1.0, 0.0)]),
        counter("output_tokens", [(0.0, 0.0), (1.5, 30.0)]),
    )
    joined = join(cell_of(tmp_path, rows), engine)
    assert joined is not None
    assert joined.width == 0.5
    assert joined.client["sent"].tolist() == [1.0, 0.0, 1.0]
    assert joined.client["done"].tolist() == [0.0, 1.0, 0.0]  # ended at 0.5 s: the bin that begins there
    assert joined.client["failed"].tolist() == [0.0, 0.0, 1.0]
    assert joined.client["in_flight"] == pytest.approx([1.0, 0.0, 1.0])
    assert joined.client["output_tokens"].tolist() == [4.0, 1.0, 0.0]  # of ok requests only
    assert joined.engine["running"].tolist() == [2.0, 0.0, 0.0]
    assert joined.engine["output_tokens"] == pytest.approx([10.0, 10.0, 10.0])
    assert np.isnan(joined.engine["kv_usage"]).all()


def test_a_gauge_that_nobody_refreshed_is_not_known(tmp_path: Path) -> None:
    joined = join(cell_of(tmp_path, [steady("a", 0.0, done=10.0)]), signals(gauge("running", [(0.0, 1.0)])))
    assert joined is not None
    assert np.isfinite(joined.engine["running"][:3]).all()
    assert np.isnan(joined.engine["running"][3:]).all()


def test_nothing_sent_joins_to_nothing(tmp_path: Path) -> None:
    assert join(cell_of(tmp_path, [Row("never", None, status="cancelled")]), Signals({}, {})) is None
