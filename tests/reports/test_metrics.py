"""Every metric against a vector worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.records.rundir import CellDir
from reports import engine_figures, rates, samples
from reports.cell import Cell, load_cell
from reports.metrics import METRICS, measure
from reports.series import Series, Signals
from reports.windows import mean_in_flight, steady_window
from tests.reports.synthetic import CellSpec, Row, steady, write_cell


def cell_of(tmp_path: Path, *rows: Row, **spec: object) -> Cell:
    path = tmp_path / "cell"
    path.mkdir(exist_ok=True)
    return load_cell(write_cell(CellDir(path), CellSpec(rows, **spec)))  # type: ignore[arg-type]


# Sent at 1 s. Role at 1.1 (no token), two reasoning tokens at 1.2, one content token at 1.5, three at 1.7; end at 1.8.
# TTFT 0.2, TTFT (content) 0.5, tokens 6, TPOT (1.7 - 1.2) / 5 = 0.1, gaps 0.3 and 0.2,
# ITL 0.3 once and 0.2 / 3 three times, E2E 0.8.
WORKED = Row(
    "worked",
    1.0,
    [(1.1, 0, "role"), (1.2, 2, "reasoning"), (1.5, 1, "content"), (1.7, 3, "content"), (1.8, 0, "usage")],
    prompt=range(10),
    intended=0.9,
)
OPEN = {"mode": "constant", "rate": 1.0}


def test_latencies_of_the_worked_request(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, WORKED)
    assert samples.ttft(cell).values == pytest.approx([0.2])
    assert samples.ttft_content(cell).values == pytest.approx([0.5])
    assert samples.tpot(cell).values == pytest.approx([0.1])
    assert samples.chunk_gap(cell).values == pytest.approx([0.3, 0.2])
    assert samples.itl(cell).values == pytest.approx([0.3, 0.2 / 3, 0.2 / 3, 0.2 / 3])
    assert samples.e2e(cell).values == pytest.approx([0.8])


def test_several_tokens_in_the_first_event_are_said(tmp_path: Path) -> None:
    assert samples.tpot(cell_of(tmp_path, WORKED)).note == (
        "100% of answers came with several tokens in their first event"
    )


def test_intended_times_in_an_open_loop(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, WORKED, load=OPEN)
    assert samples.ttft_intended(cell).values == pytest.approx([0.3])
    assert samples.e2e_intended(cell).values == pytest.approx([0.9])


@pytest.mark.parametrize("mode", ["closed", "sessions"])
def test_intended_times_are_refused_in_a_closed_loop(tmp_path: Path, mode: str) -> None:
    cell = cell_of(tmp_path, WORKED, load={"mode": mode, "in_flight": 1}, slo={"ttft_s": 1.0})
    assert "closed loop" in samples.ttft_intended(cell).refused
    assert "closed loop" in samples.e2e_intended(cell).refused
    assert "closed loop" in rates.goodput(cell).refused


def test_one_token_has_no_tpot_and_no_token_no_ttft(tmp_path: Path) -> None:
    one = Row("one", 0.0, [(0.5, 1, "content")], prompt=range(4))
    none = Row("none", 1.0, [(1.5, 0, "usage")], prompt=range(4))
    cell = cell_of(tmp_path, one, none)
    assert samples.ttft(cell).values == pytest.approx([0.5])
    assert len(samples.tpot(cell).values) == 0
    assert len(samples.chunk_gap(cell).values) == 0
    assert sorted(samples.e2e(cell).values) == pytest.approx([0.5, 0.5])


def test_reasoning_that_never_ends_has_no_content(tmp_path: Path) -> None:
    thinking = Row("thinking", 0.0, [(0.5, 1, "reasoning"), (0.6, 1, "reasoning")], prompt=range(4))
    cell = cell_of(tmp_path, thinking)
    assert samples.ttft(cell).values == pytest.approx([0.5])
    assert len(samples.ttft_content(cell).values) == 0


def test_only_measured_answers_count(tmp_path: Path) -> None:
    rows = [
        steady("warm", 0.0, ttft=9.0, phase="warmup"),
        steady("good", 1.0, ttft=0.1),
        steady("cut", 2.0, ttft=7.0, status="error", error_kind="cut"),
        Row("never", None, status="cancelled", error_kind="dependency"),
    ]
    cell = cell_of(tmp_path, *rows)
    assert samples.ttft(cell).values == pytest.approx([0.1])
    assert len(samples.chunk_gap(cell).values) == 10


def test_itl_is_refused_where_events_have_no_counts(tmp_path: Path) -> None:
    row = Row("text", 0.0, [(0.5, None, "content"), (0.8, None, "content")], prompt=range(4))
    cell = cell_of(tmp_path, row)
    assert samples.chunk_gap(cell).values == pytest.approx([0.3])
    assert "unknown" in samples.itl(cell).refused
    assert "unknown" in rates.output_throughput(cell).refused


def test_queue_time_is_the_engines_own_or_nothing(tmp_path: Path) -> None:
    assert "not observable" in samples.queue_time(cell_of(tmp_path, WORKED)).refused
    told = cell_of(tmp_path, steady("a", 0.0, queue=0.04), steady("b", 1.0, queue=0.0))
    assert samples.queue_time(told).values == pytest.approx([0.04, 0.0])


def test_samples_come_in_time_order(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, steady("late", 5.0, ttft=0.5), steady("early", 1.0, ttft=0.2))
    assert samples.ttft(cell).values == pytest.approx([0.2, 0.5])
    assert list(cell.requests["request_id"]) == ["early", "late"]


def test_throughput_of_the_steady_window(tmp_path: Path) -> None:
    # Two requests at a time from 0 s on; the last send is at 4 s. Each gives 10 tokens, at 0.5, 0.6 … 1.4 s after it.
    rows = [
        steady(f"r{at}{side}", float(at) * 2, ttft=0.5, tokens=10, gap=0.1, done=float(at) * 2 + 1.999)
        for at in range(3)
        for side in "ab"
    ]
    cell = cell_of(tmp_path, *rows, load={"mode": "closed", "in_flight": 2})
    window = steady_window(cell)
    assert window is not None
    assert (window.begin, window.end) == (0.0, 4.0)
    figure = rates.output_throughput(cell).estimate
    assert figure is not None
    assert figure.value == pytest.approx(40 / 4.0)
    rate = rates.request_rate(cell).estimate
    assert rate is not None
    assert rate.value == pytest.approx(4 / 4.0)
    over_all = rates.output_throughput_all(cell).estimate
    assert over_all is not None
    assert over_all.value == pytest.approx(60 / 5.999)


def test_ramp_up_is_outside_the_steady_window(tmp_path: Path) -> None:
    rows = [steady("a", 0.0, done=10.0), steady("b", 2.0, done=9.0), steady("c", 9.0, done=12.0)]
    cell = cell_of(tmp_path, *rows, load={"mode": "closed", "in_flight": 2})
    window = steady_window(cell)
    assert window is not None
    assert (window.begin, window.end) == (2.0, 9.0)
    assert mean_in_flight(cell.requests, 0.0, 4.0) == pytest.approx((4 + 2) / 4)


def test_goodput_counts_from_the_intended_time(tmp_path: Path) -> None:
    slo = {"ttft_s": 0.3, "tpot_s": 0.05}
    rows = [
        steady("good", 0.0, ttft=0.2),  # TPOT 0.02
        steady("late", 2.0, ttft=0.2, intended=1.8),  # 0.4 s from the intended time
        steady("slow", 4.0, ttft=0.2, gap=0.06),
        steady("one", 6.0, ttft=0.2, tokens=1),  # no TPOT, so none to miss
        steady("refused", 8.0, status="refused", done=9.0),
    ]
    figure = rates.goodput(cell_of(tmp_path, *rows, load=OPEN, slo=slo))
    assert figure.estimate is not None
    assert figure.estimate.value == pytest.approx(2 / 9.0)
    assert figure.note == "2 of 5 requests meet tpot_s 0.05 s, ttft_s 0.3 s"


def test_an_answer_without_a_token_misses_a_ttft_slo_only(tmp_path: Path) -> None:
    rows = [Row("none", 0.0, [(1.0, 0, "usage")], prompt=range(4))]
    missed = rates.goodput(cell_of(tmp_path, *rows, load=OPEN, slo={"ttft_s": 5.0})).estimate
    met = rates.goodput(cell_of(tmp_path, *rows, load=OPEN, slo={"e2e_s": 5.0})).estimate
    assert missed is not None
    assert met is not None
    assert (missed.value, met.value) == (0.0, 1.0)


def test_goodput_without_an_slo_or_with_an_unknown_one(tmp_path: Path) -> None:
    assert "no SLO" in rates.goodput(cell_of(tmp_path, WORKED, load=OPEN)).refused
    assert "'itl'" in rates.goodput(cell_of(tmp_path, WORKED, load=OPEN, slo={"itl": 1.0})).refused


def test_hit_rate_by_usage(tmp_path: Path) -> None:
    rows = [
        steady("a", 0.0, prompt=range(100), cached=64),
        steady("b", 1.0, prompt=range(60), cached=0),
        steady("c", 2.0, prompt=range(999), cached=None),
    ]
    figure = rates.hit_rate_usage(cell_of(tmp_path, *rows))
    assert figure.estimate is not None
    assert figure.estimate.value == pytest.approx(64 / 160)
    assert "1 answers carry no" in figure.note
    assert "no cached-token count" in rates.hit_rate_usage(cell_of(tmp_path, rows[2])).refused


def test_hit_rate_by_counters_leaves_the_warm_up_out(tmp_path: Path) -> None:
    """Counted over the whole cell it read 27.7 % beside the 36 % of the answers, for the same hits."""

    def grew(value: float) -> Series:
        return Series("x", "counter", "tokens", np.asarray([0.0, 9.0]), np.asarray([0.0, value]), "x")

    signals = Signals({"prefix_hit_tokens": grew(96.0), "prefix_query_tokens": grew(260.0)}, {})
    warm = steady("warm", 0.0, prompt=range(100), cached=32, phase="warmup")
    measured = steady("a", 1.0, prompt=range(160), cached=64)
    figure = engine_figures.hit_rate_counters(cell_of(tmp_path, warm, measured), signals)
    assert figure.estimate is not None
    assert figure.estimate.value == pytest.approx(64 / 160)
    silent = steady("warm", 0.0, prompt=range(100), cached=None, phase="warmup")
    assert "do not say" in engine_figures.hit_rate_counters(cell_of(tmp_path, silent, measured), signals).refused


def test_every_metric_says_a_value_or_why_not(tmp_path: Path) -> None:
    found = measure(cell_of(tmp_path, WORKED), Signals({}, {}, "not scraped"))
    assert set(found) == {metric.id for metric in METRICS}
    for measured in found.values():
        has_value = measured.estimate() is not None
        assert has_value != bool(measured.refused), measured
    assert "not scraped" in found["kv_usage"].refused


def test_every_metric_is_declared_in_full() -> None:
    for metric in METRICS:
        assert all((metric.words, metric.formula, metric.weighting, metric.source))
        assert sum(part is not None for part in (metric.sample, metric.figure, metric.engine_figure)) == 1


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    """A monotonic clock counts from the boot; nanoseconds of a long-running host do not fit into a float."""
    row = steady("a", 0.0)
    row.events = [(0.1, 1, "content"), (0.100000001, 1, "content")]
    gaps = samples.chunk_gap(cell_of(tmp_path, row)).values
    assert np.round(gaps * 1e9).tolist() == [1.0]
