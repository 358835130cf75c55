"""A look at engines that the tests script: what stands, what warns, what cannot be seen, and what is never asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from harness.cli.__main__ import run
from harness.cli.look import render
from harness.observe import look as watching
from harness.observe.look import base_url, look
from harness.observe.look_report import Check, LookReport
from tests.harness.observe.looked_at import Scripted, page, serving

CACHE_INFO = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="101",enable_prefix_caching="True",engine="0"}'
VLLM: Mapping[str, float] = {
    "vllm:num_requests_running": 2,
    "vllm:num_requests_waiting": 0,
    "vllm:kv_cache_usage_perc": 0.5,
    "vllm:num_preemptions_total": 4,
    "vllm:prefix_cache_queries_total": 1000,
    "vllm:prefix_cache_hits_total": 250,
    "vllm:generation_tokens_total": 5000,
    "vllm:iteration_tokens_total_sum": 6000,
    "vllm:iteration_tokens_total_count": 3000,
    CACHE_INFO: 1,
}
MODELS = {"object": "list", "data": [{"id": "smol", "max_model_len": 4096}]}
VLLM_DOCUMENTS = {"/version": {"version": "0.32.0"}, "/v1/models": MODELS}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EVERY_S", 0.2)


def looked(*pages: Mapping[str, float], documents: Mapping[str, Any] = VLLM_DOCUMENTS, **script: Any) -> LookReport:
    # Detection and description read one page each; from the third scrape on the watch is served.
    with serving(Scripted([page(values) for values in pages], documents, hold=2, **script)) as url:
        return look(url, seconds=0.2)


def check(report: LookReport, name: str) -> Check:
    return next(one for stage in report.stages for one in stage.checks if one.id == name)


def verdict(report: LookReport, stage: str) -> str:
    return next(row.verdict for row in report.stages if row.stage == stage)


def test_a_healthy_engine() -> None:
    report = looked(VLLM, {**VLLM, "vllm:generation_tokens_total": 5100})
    assert (report.kind, report.version, report.models, report.scrapes) == ("vllm", "0.32.0", ["smol"], 2)
    assert report.config["kv_tokens"] == 1600
    assert verdict(report, "queue") == "ok"
    assert verdict(report, "kv_cache") == "ok"
    assert check(report, "kernel.progress").figures[0].value == pytest.approx(100 / report.watched_s)
    assert check(report, "kv.hits").figures[-1].value == 0.25  # since the start: nothing was looked up in the window


def test_a_queue_that_stands() -> None:
    waiting = {**VLLM, "vllm:num_requests_waiting": 7}
    assert verdict(looked(waiting, waiting), "queue") == "warn"


def test_a_queue_that_drains_is_no_queue_that_stands() -> None:
    report = looked({**VLLM, "vllm:num_requests_waiting": 7}, VLLM)
    assert check(report, "queue.depth").state == "ok"


def test_preemptions_of_the_past_do_not_warn_those_of_now_do() -> None:
    past = check(looked(VLLM, VLLM), "kv.preemptions")
    assert past.state == "info"
    assert past.says == "4 preemptions since start, none seen in window"
    present = check(looked(VLLM, {**VLLM, "vllm:num_preemptions_total": 6}), "kv.preemptions")
    assert present.state == "warn"
    assert [(figure.scope, figure.value) for figure in present.figures] == [("lifetime", 6), ("window", 2)]


def test_what_is_not_exported_is_not_observable_and_never_ok() -> None:
    report = looked({"vllm:num_requests_running": 0})
    assert verdict(report, "kv_cache") == "not observable"
    usage = check(report, "kv.usage")
    assert usage.state == "not observable"
    assert not usage.figures
    assert "vllm:kv_cache_usage_perc" in report.drift.lacking
    assert check(report, "config.names").state == "warn"
    assert check(report, "kernel.times").flag == "--enable-logging-iteration-details"


def test_running_requests_without_a_token() -> None:
    assert check(looked(VLLM, VLLM), "kernel.progress").state == "warn"


def test_wait_is_held_against_ttft_of_as_many_requests() -> None:
    times = {
        "vllm:request_queue_time_seconds_sum": 8.0,
        "vllm:request_queue_time_seconds_count": 10,
        "vllm:time_to_first_token_seconds_sum": 10.0,
        "vllm:time_to_first_token_seconds_count": 10,
    }
    assert check(looked({**VLLM, **times}), "queue.wait").state == "warn"  # 0.8 s of 1.0 s
    others = {**times, "vllm:time_to_first_token_seconds_count": 20}
    assert check(looked({**VLLM, **others}), "queue.wait").state == "info"  # other requests: no ratio


def test_a_restart_while_watching() -> None:
    report = looked(VLLM, {**VLLM, "vllm:generation_tokens_total": 3, "vllm:num_preemptions_total": 9})
    assert report.resets == 1
    assert check(report, "kv.preemptions").state == "info"  # no window over a restart
    assert check(report, "kernel.progress").state == "not observable"
    assert any("restarted" in note for note in report.notes)


def test_names_of_another_release() -> None:
    report = looked({**VLLM, "vllm:gpu_cache_usage_perc": 0.5, "vllm:new_thing": 1})
    assert report.drift.outdated == {"vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc"}
    assert report.drift.unknown == ["vllm:new_thing"]


@pytest.mark.parametrize(("version", "state"), [("0.32.0", "ok"), ("0.19.1", "warn"), ("0.40.0", "warn")])
def test_releases_that_were_not_checked(version: str, state: str) -> None:
    report = looked(VLLM, documents={**VLLM_DOCUMENTS, "/version": {"version": version}})
    assert check(report, "config.release").state == state


def test_sglang_without_metrics_names_the_flag() -> None:
    info = {"version": "0.5.23", "disable_radix_cache": True, "page_size": 1, "schedule_policy": "fcfs"}
    report = looked(documents={"/server_info": info, "/v1/models": MODELS})
    assert (report.kind, report.scrapes) == ("sglang", 0)
    assert {verdict(report, name) for name in ("queue", "kv_cache", "kernel", "batch")} == {"not observable"} or (
        check(report, "kv.hits").says.startswith("prefix caching is off")
    )
    assert check(report, "queue.depth").flag == "--enable-metrics"
    assert check(report, "config.caching").state == "warn"


def test_answers_under_way_count_though_the_engine_bills_them_at_their_end() -> None:
    """Seen on SGLang 0.5.23: generation_tokens_total stood still for seconds while six answers ran."""
    first = {
        "sglang:num_running_reqs": 6,
        "sglang:generation_tokens_total": 12,
        'sglang:realtime_tokens_total{mode="decode"}': 100,
        'sglang:realtime_tokens_total{mode="prefill_compute"}': 40,
    }
    documents = {"/server_info": {"version": "0.5.23", "disable_radix_cache": False}}
    report = looked(first, {**first, 'sglang:realtime_tokens_total{mode="decode"}': 160}, documents=documents)
    progress = check(report, "kernel.progress")
    assert progress.state == "ok"
    assert progress.figures[0].value == pytest.approx(60 / report.watched_s)
    assert check(report, "batch.mix").says == "0 prefill and 60 decode tokens in window"


def test_stale_gauges_are_said() -> None:
    info = {"version": "0.5.23", "disable_radix_cache": False, "decode_log_interval": 40}
    stale = check(looked({"sglang:num_running_reqs": 1}, documents={"/server_info": info}), "config.freshness")
    assert (stale.state, stale.flag) == ("warn", "--decode-log-interval 1")


def test_a_server_of_the_public_dialect() -> None:
    report = looked(documents={"/v1/models": MODELS})
    assert (report.kind, report.models) == ("openai", ["smol"])
    assert verdict(report, "queue") == "not observable"


def test_nothing_is_generated() -> None:
    script = Scripted([page(VLLM)], VLLM_DOCUMENTS)
    with serving(script) as url:
        look(url, seconds=0.2)
    assert {method for method, _ in script.asked} == {"GET"}
    assert {path for _, path in script.asked} <= {"/metrics", "/version", "/server_info", "/v1/models"}


def test_every_figure_says_its_scope_and_json_comes_back() -> None:
    report = looked(VLLM, VLLM)
    assert LookReport.model_validate_json(report.model_dump_json()) == report
    assert report.took_s < 10


def rendered(report: LookReport, width: int = 100) -> str:
    out = StringIO()
    render(report, Console(file=out, width=width))
    return out.getvalue()


def test_a_screen_of_a_hundred_columns() -> None:
    text = rendered(looked(VLLM, VLLM))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert len(text.splitlines()) <= 45
    for name in ("1 queue", "2 KV cache", "3 kernel, host", "4 communication", "5 batch shape", "6 model config"):
        assert name in text


def test_what_the_server_says_is_text() -> None:
    models = {"data": [{"id": "[red]x[/red][/nope]"}]}
    assert "[red]x[/red][/nope]" in rendered(looked(VLLM, documents={**VLLM_DOCUMENTS, "/v1/models": models}))


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "/metrics"])
def test_tails_that_people_paste(tail: str) -> None:
    assert base_url(f"http://host:8000{tail}") == "http://host:8000"
    assert base_url(f"http://host/proxy{tail}") == "http://host/proxy"


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["look", "http://127.0.0.1:9", "--seconds", "0.5"]) == 5
    assert_one_line(capsys.readouterr().err, "does not answer")


def test_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Scripted()) as url:
        assert run(["look", url, "--seconds", "0.5"]) == 5
    assert_one_line(capsys.readouterr().err, "is no LLM server")


def test_another_kind_than_said(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Scripted()) as url:
        assert run(["look", url, "--engine", "vllm", "--seconds", "0.5"]) == 5
    assert_one_line(capsys.readouterr().err, "is no vllm server")


def test_a_key_is_asked_for_and_never_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOK_KEY", "s3cret-value")
    with serving(Scripted([page(VLLM)], VLLM_DOCUMENTS, key="s3cret-value")) as url:
        assert run(["look", url, "--seconds", "0.5"]) == 5
        assert_one_line(capsys.readouterr().err, "--api-key-env")
        assert run(["look", url, "--seconds", "0.5", "--api-key-env", "LOOK_KEY", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["kind"] == "vllm"
    assert "s3cret-value" not in out


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["look", "http://127.0.0.1:9", "--engine", "tgi"]) == 2
    assert_one_line(capsys.readouterr().err, "unknown engine kind")
    assert run(["look", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH_VARIABLE_HERE"]) == 2
    assert_one_line(capsys.readouterr().err, "is not set")


def assert_one_line(text: str, part: str) -> None:
    assert text.count("\n") == 1
    assert part in text
