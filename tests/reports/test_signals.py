"""Signals out of kept scrapes: label sets, resets, series that come late, and the engines' real names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.records.rundir import CellDir
from reports.cell import load_cell
from reports.series import Signals
from reports.signals import signals_of
from tests.reports.synthetic import CellSpec, Scrape, steady, write_cell

DUMPS = Path(__file__).parents[3] / "shared" / "data" / "metrics"
ROWS = [steady("a", 0.0)]


def of(tmp_path: Path, kind: str, *scrapes: Scrape) -> Signals:
    spec = CellSpec(ROWS, engine={"kind": kind, "name": kind, "version": None}, scrapes=scrapes)
    return signals_of(load_cell(write_cell(CellDir(tmp_path), spec)))


def labels(**pairs: str) -> str:
    return " " + json.dumps(pairs, sort_keys=True)


def test_a_cell_that_was_not_scraped(tmp_path: Path) -> None:
    found = of(tmp_path, "vllm")
    assert found.names == []
    assert found.absent("kv_usage").why == "the engine was not scraped in this run"


def test_an_engine_that_nobody_knows(tmp_path: Path) -> None:
    found = of(tmp_path, "openai", Scrape(0.0, {"x": 1.0}))
    assert "openai" in found.absent("kv_usage").why


def test_label_sets_are_added_up_and_usage_is_the_largest(tmp_path: Path) -> None:
    scrapes = [
        Scrape(
            float(at),
            {
                "vllm:prompt_tokens_total" + labels(engine="0"): 100.0 * at,
                "vllm:prompt_tokens_total" + labels(engine="1"): 10.0 * at,
                "vllm:kv_cache_usage_perc" + labels(engine="0"): 0.2,
                "vllm:kv_cache_usage_perc" + labels(engine="1"): 0.7,
                "vllm:num_requests_running" + labels(engine="0"): 3.0,
                "vllm:num_requests_running" + labels(engine="1"): 4.0,
            },
        )
        for at in range(3)
    ]
    found = of(tmp_path, "vllm", *scrapes)
    prompt, usage, running = (found.get(name) for name in ("prompt_tokens", "kv_usage", "running"))
    assert prompt is not None
    assert usage is not None
    assert running is not None
    assert prompt.growth() == 220.0
    assert usage.value.tolist() == [0.7] * 3
    assert running.value.tolist() == [7.0] * 3


def test_only_the_labels_that_are_meant(tmp_path: Path) -> None:
    def scrape(at: float, stop: float, abort: float) -> Scrape:
        name = "vllm:request_success_total"
        return Scrape(at, {name + labels(finished_reason="stop"): stop, name + labels(finished_reason="abort"): abort})

    finished = of(tmp_path, "vllm", scrape(0.0, 1.0, 0.0), scrape(1.0, 4.0, 9.0)).get("finished")
    assert finished is not None
    assert finished.growth() == 3.0


def test_a_restart_loses_nothing_that_was_seen(tmp_path: Path) -> None:
    values = [100.0, 150.0, 20.0, 50.0]
    found = of(
        tmp_path, "vllm", *(Scrape(float(at), {"vllm:generation_tokens_total": v}) for at, v in enumerate(values))
    )
    series = found.get("output_tokens")
    assert series is not None
    assert (series.growth(), series.resets, found.resets) == (100.0, 1, 1)  # 50 + 20 + 30


def test_a_counter_that_appears_late_started_from_zero(tmp_path: Path) -> None:
    """SGLang and the native core export some counters only once they have moved."""
    scrapes = [Scrape(0.0, {"sglang:num_running_reqs": 0.0}), Scrape(1.0, {"sglang:num_requests_total": 7.0})]
    found = of(tmp_path, "sglang", *scrapes)
    finished, evicted = found.get("finished"), found.get("evicted_tokens")
    assert finished is not None
    assert finished.growth() == 7.0
    assert evicted is not None
    assert evicted.growth() == 0.0


def test_a_histogram_gives_sums_and_counts(tmp_path: Path) -> None:
    def scrape(at: float, prefill: float, decode: float, steps: float) -> Scrape:
        return Scrape(
            at,
            {
                "native:step_prefill_tokens_sum": prefill,
                "native:step_prefill_tokens_count": steps,
                "native:step_decode_tokens_sum": decode,
                "native:step_decode_tokens_count": steps,
                "native:step_prefill_tokens_bucket" + labels(le="+Inf"): steps,
            },
        )

    step = of(tmp_path, "native", scrape(0.0, 10.0, 5.0, 2.0), scrape(1.0, 110.0, 25.0, 12.0)).get("step_tokens")
    assert step is not None
    assert step.mean_of_pair() == pytest.approx((100 + 20) / 10)


def test_evictable_tokens_become_a_share(tmp_path: Path) -> None:
    scrape = Scrape(0.0, {"sglang:kv_evictable_tokens": 138.0, "sglang:max_total_num_tokens": 46_592.0})
    series = of(tmp_path, "sglang", scrape).get("kv_evictable")
    assert series is not None
    assert series.value == pytest.approx([138 / 46_592])


def test_an_absent_signal_names_the_flag_that_shows_it(tmp_path: Path) -> None:
    absent = of(tmp_path, "vllm", Scrape(0.0, {"vllm:num_requests_running": 1.0})).absent("drafted_tokens")
    assert absent.why
    assert absent.flag


# Without these a report has no second witness, no queue and no cache to show.
WANTED = (
    "finished",
    "prompt_tokens",
    "output_tokens",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "preemptions",
    "kv_usage",
    "queue_depth",
    "running",
    "queue_time",
)


@pytest.mark.parametrize(("kind", "dump"), [("vllm", "vllm-0.32.0.txt"), ("sglang", "sglang-0.5.23.txt")])
def test_what_a_report_needs_is_in_a_recorded_scrape(tmp_path: Path, kind: str, dump: str) -> None:
    path = DUMPS / dump
    if not path.is_file():
        pytest.skip(f"{dump} is not on this machine: it is a recorded scrape that is not part of the repository")
    from prometheus_client.parser import text_string_to_metric_families

    values = {
        sample.name + " " + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }
    found = of(tmp_path, kind, Scrape(0.0, values), Scrape(1.0, values))
    assert {name for name in WANTED if found.get(name) is None} == set()
    hits = found.get("prefix_hit_tokens")
    assert hits is not None
    assert np.isfinite(hits.value).all()
