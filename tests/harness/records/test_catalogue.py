"""The catalogue: every engine answers for every signal, recorded pages give the figures known of them."""

from __future__ import annotations

import pytest

from harness.records.errors import UsageError
from harness.records.signals.catalogue import KINDS, Catalogue, canonical, release
from tests.harness.records.signal_texts import Line, recorded, samples


@pytest.mark.parametrize("kind", KINDS)
def test_every_signal_has_a_witness_or_a_reason(kind: str) -> None:
    catalogue = Catalogue.load(kind)
    for name in canonical():
        assert bool(catalogue.signal(name)) != (name in catalogue.absent), name
    assert set(catalogue.witnesses) | set(catalogue.absent) == set(canonical())


@pytest.mark.parametrize("kind", KINDS)
def test_every_witness_names_a_family_of_the_release(kind: str) -> None:
    catalogue = Catalogue.load(kind)
    for witnesses in catalogue.witnesses.values():
        for witness in witnesses:
            names = [witness.metric or witness.sum, witness.share_of, witness.count, *witness.plus]
            for name in filter(None, names):
                if name.startswith(catalogue.namespace):
                    bare = name.removeprefix(catalogue.namespace)
                    assert {bare, bare.removesuffix("_sum"), bare.removesuffix("_count")} & catalogue.known, name


def test_vllm_page() -> None:
    page = recorded("vllm-0.32.0.txt")
    catalogue = Catalogue.load("vllm")
    found = catalogue.resolve(page, "0.32.0")
    assert found["output_tokens"].value == 68  # 64 of the finished request, 4 of the one whose client left
    assert found["finished"].value == 1
    assert (found["itl"].count, found["ttft"].count, found["e2e"].count) == (66, 2, 1)
    assert (found["step_tokens"].total, found["step_tokens"].count) == (106, 68)
    assert found["kv_capacity_tokens"].value == 363 * 128  # 364 blocks, one held back
    assert found["prefix_query_tokens"].value == 38
    assert found["prefix_hit_tokens"].value == 0
    assert found["step_time"].value is None
    assert found["step_time"].flag == "--enable-logging-iteration-details"
    assert found["drafted_tokens"].value is None  # exported only under speculation: nothing, not nought
    drift = catalogue.drift(page)
    assert (drift.lacking, drift.unknown, dict(drift.outdated)) == ((), (), {})


def test_vllm_witnesses_agree() -> None:
    page = recorded("vllm-0.32.0.txt")
    catalogue = Catalogue.load("vllm")
    for name in ("prompt_tokens", "queue_depth", "preemptions", "prefix_hit_tokens"):
        values = {reading.value for reading in catalogue.witnesses_read(name, page)}
        assert len(values) == 1, name


def test_sglang_page() -> None:
    page = recorded("sglang-0.5.23.txt")
    catalogue = Catalogue.load("sglang")
    found = catalogue.resolve(page, "0.5.23")
    assert found["prompt_tokens"].value == 44  # streamed and not streamed together
    assert found["prefix_query_tokens"].value == 45  # the health probe prefilled one token
    assert found["queue_time"].count == 4
    assert found["itl"].count == 37
    assert found["kv_evictable"].value == pytest.approx(138 / 46592)
    assert found["graph_fallback_steps"].value == 97
    assert found["step_time"].value == pytest.approx(12.522946727 / 97)
    assert found["preemptions"].value is None
    assert found["preemptions"].unborn
    drift = catalogue.drift(page)
    assert (drift.lacking, drift.unknown, dict(drift.outdated)) == ((), (), {})


def test_ranks_add_up_but_usage_is_the_fullest() -> None:
    lines = [
        Line("vllm:kv_cache_usage_perc", 0.25, {"engine": "0"}),
        Line("vllm:kv_cache_usage_perc", 0.75, {"engine": "1"}),
        Line("vllm:num_requests_running", 3, {"engine": "0"}),
        Line("vllm:num_requests_running", 4, {"engine": "1"}),
    ]
    found = Catalogue.load("vllm").resolve(samples(*lines))
    assert found["kv_usage"].value == 0.75
    assert found["running"].value == 7


def test_units_become_si() -> None:
    lines = [Line("sglang:kv_transfer_latency_ms_sum", 500), Line("sglang:kv_transfer_latency_ms_count", 2)]
    reading = Catalogue.load("sglang").resolve(samples(*lines))["kv_transfer_time"]
    assert (reading.value, reading.total) == (0.25, 0.5)


def test_two_histograms_make_one_signal() -> None:
    lines = [
        Line("native:step_prefill_tokens_sum", 90),
        Line("native:step_prefill_tokens_count", 10),
        Line("native:step_decode_tokens_sum", 30),
        Line("native:step_decode_tokens_count", 10),
    ]
    assert Catalogue.load("native").resolve(samples(*lines))["step_tokens"].value == 12


def test_an_empty_page_gives_reasons_and_no_noughts() -> None:
    for kind in KINDS:
        for reading in Catalogue.load(kind).resolve([]).values():
            assert reading.value is None, (kind, reading.name)
            assert reading.why, (kind, reading.name)


def test_no_value_yet_is_not_a_value() -> None:
    nan = float("nan")
    assert Catalogue.load("sglang").resolve(samples(Line("sglang:token_usage", nan)))["kv_usage"].value is None


def test_a_share_of_an_empty_pool_is_no_figure() -> None:
    lines = [Line("sglang:kv_evictable_tokens", 5), Line("sglang:max_total_num_tokens", 0)]
    assert Catalogue.load("sglang").resolve(samples(*lines))["kv_evictable"].value is None


def test_drift_by_name() -> None:
    lines = [
        Line("vllm:num_requests_running", 1),
        Line("vllm:gpu_cache_usage_perc", 0.5),
        Line("vllm:brand_new_seconds_bucket", 1, {"le": "+Inf"}),
        Line("vllm:brand_new_seconds_count", 1),
        Line("vllm:num_preemptions_created", 1.7e9),
        Line("python_info", 1),
    ]
    drift = Catalogue.load("vllm").drift(samples(*lines))
    assert drift.unknown == ("vllm:brand_new_seconds",)
    assert drift.outdated == {"vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc"}
    assert "vllm:kv_cache_usage_perc" in drift.lacking
    assert "vllm:num_requests_running" not in drift.lacking


def test_names_that_came_later_are_not_asked_of_an_older_release() -> None:
    catalogue = Catalogue.load("sglang")
    assert catalogue.signals("0.5.10")["kv_evictable"] == ()
    assert len(catalogue.signals("0.5.11")["kv_evictable"]) == 1
    assert release("0.32.0rc1+cpu") == (0, 32, 0)
    assert release("main") == ()


def test_unknown_kind_and_signal() -> None:
    with pytest.raises(UsageError, match="vllm, sglang, native"):
        Catalogue.load("tgi")
    with pytest.raises(UsageError, match="no signal"):
        Catalogue.load("vllm").signal("latency")
