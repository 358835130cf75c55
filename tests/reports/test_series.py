"""How signals are read in a window."""

from __future__ import annotations

import numpy as np
import pytest

from reports.series import Signals
from tests.reports.signal_vectors import counter, gauge, pair


def test_counters_grow_evenly_between_scrapes() -> None:
    series = counter("output_tokens", [(0.0, 100.0), (10.0, 200.0), (20.0, 200.0)])
    assert series.growth() == 100.0
    assert series.growth(5.0, 20.0) == 50.0
    assert series.growth(-5.0, 50.0) == 100.0
    assert counter("output_tokens", [(0.0, 100.0)]).growth() == 0.0
    assert np.isnan(series.at(np.asarray([-1.0]))[0])


def test_gauges_stand_until_the_next_scrape() -> None:
    series = gauge("kv_usage", [(0.0, 0.2), (4.0, 0.8), (6.0, 0.5)])
    assert series.at(np.asarray([-1.0, 0.0, 3.9, 4.0, 9.0])).tolist()[1:] == [0.2, 0.2, 0.8, 0.5]
    assert series.time_mean(2.0, 8.0) == pytest.approx((2 * 0.2 + 2 * 0.8 + 2 * 0.5) / 6)
    assert series.maximum(0.0, 3.0) == 0.2
    assert series.maximum(7.0, 8.0) is None
    assert series.time_mean(-5.0, -1.0) is None


def test_pairs_give_the_mean_of_what_was_observed_in_the_window() -> None:
    series = pair("step_time", [(0.0, 10.0, 100.0), (10.0, 12.0, 140.0)])
    assert series.mean_of_pair() == pytest.approx(0.05)
    assert pair("step_time", [(0.0, 1.0, 5.0), (9.0, 1.0, 5.0)]).mean_of_pair() is None


def test_an_absent_signal_says_why() -> None:
    assert "not scraped" in Signals({}, {}, "not scraped").absent("kv_usage").why
