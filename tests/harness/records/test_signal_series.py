"""Growth of counters and pairs out of a table, through resets, late series and several ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.signals.series import SignalSeries
from tests.harness.records.signal_texts import Line, server_table

S = 1_000_000_000


def tokens(value: float, engine: str = "0") -> Line:
    return Line("vllm:generation_tokens_total", value, {"engine": engine})


def test_growth_and_rate() -> None:
    series = SignalSeries(server_table([(S, [tokens(100)]), (3 * S, [tokens(160)])]), "vllm")
    delta = series.delta("output_tokens")
    assert delta is not None
    assert (delta.total, delta.rate, delta.resets) == (60, 30, 0)


def test_a_fall_is_a_restart() -> None:
    table = server_table([(S, [tokens(100)]), (2 * S, [tokens(110)]), (3 * S, [tokens(4)]), (4 * S, [tokens(9)])])
    delta = SignalSeries(table, "vllm").delta("output_tokens")
    assert delta is not None
    assert (delta.total, delta.resets) == (19, 1)


def test_one_rank_restarts_the_other_goes_on() -> None:
    table = server_table([(S, [tokens(50), tokens(70, "1")]), (2 * S, [tokens(5), tokens(80, "1")])])
    delta = SignalSeries(table, "vllm").delta("output_tokens")
    assert delta is not None
    assert (delta.total, delta.resets) == (15, 1)


def test_a_late_series_counts_from_nought() -> None:
    late = Line("sglang:num_retracted_requests_total", 3)
    table = server_table([(S, [Line("sglang:num_running_reqs", 1)]), (2 * S, [late])], "sglang")
    delta = SignalSeries(table, "sglang").delta("preemptions")
    assert delta is not None
    assert delta.total == 3


def test_mean_of_a_pair_in_a_window() -> None:
    def step(t: int, total: float, count: float) -> tuple[int, list[Line]]:
        return t, [Line("native:step_seconds_sum", total), Line("native:step_seconds_count", count)]

    series = SignalSeries(
        server_table([step(S, 10, 100), step(2 * S, 12, 110), step(3 * S, 13, 130)], "native"), "native"
    )
    whole, second = series.delta("step_time"), series.delta("step_time", 2 * S, 3 * S)
    assert whole is not None
    assert second is not None
    assert (whole.mean, second.mean) == (0.1, 0.05)


def test_nothing_to_say() -> None:
    series = SignalSeries(server_table([(S, [tokens(5)])]), "vllm")
    assert series.delta("output_tokens") is None  # one scrape
    assert series.delta("step_time") is None  # not exported
    assert series.delta("kv_usage") is None  # a gauge
    assert series.series("kv_usage").empty


def test_gauge_over_time() -> None:
    lines = [(S, [Line("vllm:kv_cache_usage_perc", 0.5)]), (2 * S, [Line("vllm:kv_cache_usage_perc", 0.25)])]
    assert SignalSeries(server_table(lines), "vllm").series("kv_usage")["value"].to_dict() == {S: 0.5, 2 * S: 0.25}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=12))
def test_growth_is_what_was_added(steps: list[int]) -> None:
    """However often the engine restarts, growth is the sum of what it counted after the first scrape."""
    shown, value = [], 0
    for number in steps:
        value = number if number % 3 == 0 else value + number  # a multiple of three: a restart that counted `number`
        shown.append(value)
    expected = sum(new if new < old else new - old for old, new in pairwise(shown))
    table = server_table([((at + 1) * S, [tokens(value)]) for at, value in enumerate(shown)])
    delta = SignalSeries(table, "vllm").delta("output_tokens")
    assert delta is not None
    assert delta.total == pytest.approx(expected)
