"""Arrival times: the process that was asked for, drawn once."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads.sharing import WORDS
from workloads.arrivals import LOADS, arrival_times, check_load
from workloads.model import Load, WorkloadError
from workloads.registry import generate
from workloads.rng import Stream


def times(mode: str, n: int, seed: int = 1, **params: float) -> list[float]:
    drawn = arrival_times(Load(mode, params), n, Stream.of(seed, "test", mode))
    assert drawn is not None
    return drawn


def gaps(arrivals: list[float]) -> list[float]:
    return [b - a for a, b in zip([0.0, *arrivals], arrivals, strict=False)]


def test_closed_loads_have_no_times() -> None:
    assert arrival_times(Load("closed", {"in_flight": 3}), 5, Stream.of(1)) is None
    assert arrival_times(Load("sessions", {"in_flight": 3}), 5, Stream.of(1)) is None


def test_constant_gaps_are_equal() -> None:
    assert times("constant", 5, rate=4.0) == [0.25, 0.5, 0.75, 1.0, 1.25]


def test_poisson_gaps_are_exponential() -> None:
    """Kolmogorov and Smirnov against 1 − exp(−rate·t), critical value at 0.1 %."""
    sample = sorted(gaps(times("poisson", 4000, rate=20.0)))
    n = len(sample)
    distance = max(
        max(abs((i + 1) / n - f), abs(i / n - f)) for i, f in enumerate(1 - math.exp(-20.0 * t) for t in sample)
    )
    assert distance < 1.95 / math.sqrt(n)


def test_the_number_of_poisson_arrivals_varies_as_it_must() -> None:
    """A tool that rescales its gaps to the nominal total always ends at n / rate."""
    ends = [times("poisson", 100, seed=seed, rate=10.0)[-1] for seed in range(200)]
    mean = sum(ends) / len(ends)
    deviation = math.sqrt(sum((end - mean) ** 2 for end in ends) / len(ends))
    assert mean == pytest.approx(10.0, abs=0.3)
    assert deviation == pytest.approx(1.0, rel=0.25)  # √100 / 10


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    sample = gaps(times("gamma", 8000, rate=5.0, burstiness=burstiness))
    mean = sum(sample) / len(sample)
    variation = math.sqrt(sum((g - mean) ** 2 for g in sample) / len(sample)) / mean
    assert mean == pytest.approx(0.2, rel=0.1)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


@pytest.mark.parametrize(("start", "end"), [(2.0, 20.0), (20.0, 2.0), (8.0, 8.0)])
def test_a_ramp_passes_its_area_when_it_should(start: float, end: float) -> None:
    """Arrivals by time t number rate_from·t + slope·t²/2 in the mean, before and after the ramp's end."""
    runs = [times("ramp", 700, seed=seed, rate_from=start, rate_to=end, seconds=20.0) for seed in range(30)]
    for t, area in [
        (10.0, start * 10 + (end - start) / 20 * 50),
        (20.0, (start + end) * 10),
        (25.0, (start + end) * 10 + end * 5),
    ]:
        counted = sum(sum(1 for x in run if x <= t) for run in runs) / len(runs)
        assert counted == pytest.approx(area, abs=5 * math.sqrt(area / len(runs)))


@given(st.sampled_from(["constant", "poisson", "gamma", "ramp"]), st.integers(0, 50), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_times_ascend_and_a_longer_load_only_adds(mode: str, n: int, seed: int) -> None:
    params = {key: 0.5 + i for i, key in enumerate(LOADS[mode])}
    drawn = times(mode, n, seed, **params)
    assert drawn == sorted(drawn)
    assert all(t > 0 for t in drawn)
    assert times(mode, n + 3, seed, **params)[:n] == drawn


@pytest.mark.parametrize(
    ("load", "says"),
    [
        (Load("poison", {"rate": 1}), "unknown mode 'poison'; did you mean 'poisson'?"),
        (Load("closed", {"rate": 1}), "a closed load has no 'rate'; 'rate' belongs to constant, poisson, gamma"),
        (Load("closed", {"inflight": 1}), "did you mean 'in_flight'?"),
        (Load("closed", {}), "needs in_flight"),
        (Load("closed", {"in_flight": 0}), "in_flight is 0"),
        (Load("closed", {"in_flight": 1.5}), "a whole number"),
        (Load("poisson", {"rate": True}), "rate is True"),
        (Load("poisson", {"rate": math.inf}), "above 0"),
        (Load("poisson", {"rate": math.nan}), "above 0"),
        (Load("ramp", {"rate_from": 1, "rate_to": 2}), "needs seconds"),
    ],
)
def test_a_load_that_is_none_is_refused(load: Load, says: str) -> None:
    with pytest.raises(WorkloadError, match=re.escape(says)):
        check_load(load)


def test_conversations_arrive_and_their_turns_follow() -> None:
    load = Load("poisson", {"rate": 2.0})
    workload = generate("multi_turn", name="w", seed=1, params={"turns": 3}, load=load, vocabulary=WORDS)
    assert all((r.arrival_s is not None) == (r.turn == 0) for r in workload.requests)
    single = generate("prefix_hit", name="w", seed=1, params={}, load=load, vocabulary=WORDS)
    arrivals = [r.arrival_s for r in single.requests]
    assert None not in arrivals
    assert arrivals == sorted(arrivals, key=float)  # type: ignore[arg-type]
