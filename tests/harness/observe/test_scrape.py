"""The scraper against a real server: what it keeps, what it counts as failed, when it calls an engine quiet."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from harness.observe.scrape import Scraper
from harness.records.tables import SERVER
from tests.harness.observe.metrics_server import Answer, MetricsServer, serving

DUMPS = Path(__file__).parents[4] / "shared" / "data" / "metrics"
PAGE = b"""# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 68
vllm:generation_tokens_created{engine="0"} 1.7e9
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prefix_cache_hits_total{engine="0"} 128
vllm:prefix_cache_hits_total{engine="1"} 32
process_cpu_seconds_total 11.5
python_info{version="3.11"} 1
http_requests_total 9
"""


def scraper(server: MetricsServer, kind: str = "vllm", *, interval_s: float = 0.05, key: str = "") -> Scraper:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return Scraper(server.url, kind=kind, headers=headers, interval_s=interval_s)


def test_a_snapshot_becomes_rows() -> None:
    with serving(MetricsServer(lambda _: (200, PAGE))) as server:
        one = scraper(server)
        before = time.monotonic_ns()
        assert one.snapshot()
        after = time.monotonic_ns()
        one.stop()
    table = one.table()
    assert table.schema.equals(SERVER)
    rows = table.to_pylist()
    assert [(row["metric"], row["labels"], row["value"]) for row in rows] == [
        ("vllm:generation_tokens_total", '{"engine":"0"}', 68.0),
        ("vllm:kv_cache_usage_perc", '{"engine":"0"}', 0.25),
        ("vllm:kv_cache_usage_perc", '{"engine":"1"}', 0.75),
        ("vllm:prefix_cache_hits_total", '{"engine":"0"}', 128.0),
        ("vllm:prefix_cache_hits_total", '{"engine":"1"}', 32.0),
        ("process_cpu_seconds_total", "{}", 11.5),
    ]
    assert {row["target"] for row in rows} == {server.url.removeprefix("http://").removesuffix("/metrics")}
    assert {row["engine"] for row in rows} == {"vllm"}
    assert all(before <= row["t_start"] < row["t_end"] <= after for row in rows)


def test_nothing_scraped_is_an_empty_table() -> None:
    one = Scraper("http://127.0.0.1:9/metrics", kind="vllm", headers={}, interval_s=1.0)
    table = one.table()
    assert table.num_rows == 0
    assert table.schema.equals(SERVER)
    assert one.latest(["kv_usage"]) == {}
    one.stop()


def test_the_thread_scrapes_on_its_schedule_and_stops() -> None:
    with serving(MetricsServer(lambda _: (200, PAGE))) as server:
        one = scraper(server, interval_s=0.1)
        one.start()
        time.sleep(1.05)
        one.stop()
        asked = server.requests
        time.sleep(0.25)
        assert server.requests == asked
    starts = sorted(set(one.table()["t_start"].to_pylist()))
    assert 5 <= len(starts) <= 12  # 11 on an idle machine; never more than the schedule allows
    assert all(b - a > 50_000_000 for a, b in pairwise(starts))


def test_live_values_come_from_the_newest_page() -> None:
    def answer(number: int) -> Answer:
        return 200, PAGE if number == 1 else PAGE.replace(b'hits_total{engine="0"} 128', b'hits_total{engine="0"} 256')

    with serving(MetricsServer(answer)) as server:
        one = scraper(server)
        one.snapshot()
        one.snapshot()
        one.stop()
    # Two ranks: their tokens add up, their pools do not, and what the page lacks is left out.
    signals = ["kv_usage", "prefix_hit_tokens", "prefix_query_tokens"]
    assert one.latest(signals) == {"kv_usage": 0.75, "prefix_hit_tokens": 288.0}


def test_settles_when_two_pages_agree() -> None:
    counts = [10, 20, 30, 30]

    def answer(number: int) -> Answer:
        return 200, b"vllm:generation_tokens_total %d\n" % counts[min(number, len(counts)) - 1]

    with serving(MetricsServer(answer)) as server:
        one = scraper(server)
        assert one.settle(10.0)
        one.stop()
        assert server.requests == 4
    assert one.table()["value"].to_pylist() == [10.0, 20.0, 30.0, 30.0]


def test_does_not_settle_while_tokens_are_counted() -> None:
    with serving(MetricsServer(lambda number: (200, b"vllm:generation_tokens_total %d\n" % number))) as server:
        one = scraper(server)
        assert not one.settle(0.6)
        one.stop()


def test_an_idle_engine_settles_though_clocks_and_scrapes_are_counted() -> None:
    """SGLang counts the scrapes themselves, and an idle scheduler's time and CPU seconds grow all the same."""

    def answer(number: int) -> Answer:
        page = b'sglang:http_requests_total{endpoint="/metrics"} %d\n' % number
        page += b"sglang:scheduler_idle_seconds_total %d\n" % number
        page += b'sglang:scheduler_stage_seconds_total{category="run_batch"} %d\n' % number
        return 200, page + b"sglang:generation_tokens_total 96\n"

    with serving(MetricsServer(answer)) as server:
        one = scraper(server, kind="sglang")
        assert one.settle(5.0)
        one.stop()
        assert server.requests == 2


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("vllm", "vllm:num_preemptions_total"),
        ("vllm", "vllm:request_success_total"),
        ("vllm", "vllm:request_prefill_kv_computed_tokens_sum"),
        ("sglang", "sglang:num_retracted_requests_total"),
        ("native", "native:requests_finished_total"),
        ("native", "native:of_a_later_release_total"),
    ],
)
def test_whatever_an_engine_counts_late_is_waited_for(kind: str, name: str) -> None:
    """Not tokens alone: a preemption or a finished request that is counted last would be missing in the report."""
    values = [1, 2, 3, 3]

    def answer(number: int) -> Answer:
        page = f"{kind}:generation_tokens_total 96\n{name} {values[min(number, 4) - 1]}\n"
        return 200, page.encode()

    with serving(MetricsServer(answer)) as server:
        one = scraper(server, kind=kind)
        assert one.settle(10.0)
        one.stop()
        assert server.requests == 4


def test_a_page_without_counters_settles_nothing() -> None:
    """Nothing equals nothing, but says nothing of an engine."""
    with serving(MetricsServer(lambda _: (200, b"python_info 1\nprocess_cpu_seconds_total 3\n"))) as server:
        one = scraper(server)
        began = time.monotonic()
        assert not one.settle(10.0)
        assert time.monotonic() - began < 5.0
        one.stop()


@pytest.mark.parametrize(
    ("status", "body", "why", "errors"),
    [
        (404, b"nothing\n", "no /metrics: HTTP 404", 0),
        (200, b"<html>\n</html>\n", "no /metrics: what it answers is no exposition text", 1),
        (200, b"<html>all in a line</html>", "no /metrics: what it answers is no exposition text", 1),
    ],
)
def test_a_server_without_a_metrics_page_is_asked_once(status: int, body: bytes, why: str, errors: int) -> None:
    with serving(MetricsServer(lambda _: (status, body))) as server:
        one = scraper(server)
        assert not one.snapshot()
        began = time.monotonic()
        one.start()
        assert not one.settle(10.0)
        assert time.monotonic() - began < 1.0
        time.sleep(0.2)
        one.stop()
        assert server.requests == 1
    assert (one.no_page, one.errors) == (why, errors)


def test_failures_are_counted_once_by_reason_and_the_rest_is_kept() -> None:
    answers = [(200, PAGE), (503, b""), (404, b""), (200, b"<html>\n</html>\n"), (200, PAGE)]
    with serving(MetricsServer(lambda number: answers[number - 1])) as server:
        one = scraper(server)
        assert [one.snapshot() for _ in answers] == [True, False, False, False, True]
        one.stop()
    before = one.errors
    for _ in range(2):  # a table made again counts nothing again
        assert len(set(one.table()["t_start"].to_pylist())) == 2
    assert dict(one.reasons) == {"HTTP 503": 1, "HTTP 404": 1, "no exposition text": 1}
    assert (before, one.errors) == (3, 3)


def test_one_bad_line_does_not_cost_a_scrape() -> None:
    page = PAGE + 'vllm:broken{model="x} 1\nvllm:model{name="a\u2028b # {c"} 7\n'.encode()
    with serving(MetricsServer(lambda _: (200, page))) as server:
        one = scraper(server)
        one.snapshot()
        one.stop()
    for _ in range(2):
        rows = one.table().to_pylist()
        assert (len(rows), rows[-1]["labels"], rows[-1]["value"]) == (7, '{"name":"a\u2028b # {c"}', 7.0)
        assert dict(one.faults) == {"1 lines are no samples": 1}


def test_a_server_that_is_not_there() -> None:
    one = Scraper("http://127.0.0.1:9/metrics", kind="vllm", headers={}, interval_s=1.0)
    assert not one.snapshot()
    assert not one.settle(0.0)
    one.stop()
    assert dict(one.reasons) == {"ConnectError": 2}


def test_gzip() -> None:
    with serving(MetricsServer(lambda _: (200, PAGE), gzipped=True)) as server:
        one = scraper(server)
        assert one.snapshot()
        one.stop()
    assert one.table().num_rows == 6


def test_half_a_body_is_a_failed_scrape() -> None:
    with serving(MetricsServer(lambda _: (200, PAGE), cut_at=100)) as server:
        one = scraper(server)
        assert not one.snapshot()
        one.stop()
    assert dict(one.reasons) == {"RemoteProtocolError": 1}


def test_half_a_page_sent_as_a_whole_one_is_kept_as_far_as_it_goes() -> None:
    with serving(MetricsServer(lambda _: (200, PAGE[:100]))) as server:
        one = scraper(server)
        assert one.snapshot()
        one.stop()
    assert one.table()["metric"].to_pylist() == ["vllm:generation_tokens_total"]
    assert dict(one.faults) == {"the page ends inside a line": 1}


@pytest.mark.parametrize("headers_too", [False, True])
def test_a_server_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch, headers_too: bool) -> None:
    """A timeout for each read is none for a page: it was held for as long as bytes came."""
    monkeypatch.setattr("harness.observe.scrape.TIMEOUT_S", 0.5)
    page = MetricsServer(lambda _: (200, PAGE), drip_s=0.05, drip_headers=headers_too)
    with serving(page) as server:
        one = scraper(server)
        began = time.monotonic()
        assert not one.snapshot()
        assert time.monotonic() - began < 3.0
        one.stop()
    assert list(one.reasons) == ["over 0.5 s"]


def test_a_second_stop_does_nothing_and_what_was_scraped_stays() -> None:
    with serving(MetricsServer(lambda _: (200, PAGE))) as server:
        one = scraper(server)
        one.snapshot()
        one.stop()
        one.stop()
    assert one.table().num_rows == 6


def test_a_page_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.observe.scrape.MAX_BYTES", 1 << 20)
    with serving(MetricsServer(lambda _: (200, b"a 1\n" * (1 << 19)))) as server:
        one = scraper(server)
        assert not one.snapshot()
        one.stop()
    assert list(one.reasons) == ["over 1 MiB"]


def test_the_key_is_sent_and_kept_nowhere() -> None:
    with serving(MetricsServer(lambda number: (401, b"") if number > 1 else (200, PAGE))) as server:
        one = scraper(server, key="sk-secret")
        one.snapshot()
        one.snapshot()
        one.stop()
        assert server.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(one.table().to_pylist()) + repr(one.reasons) + repr(one) + repr(one.faults)


def test_a_password_in_the_url_reaches_no_table() -> None:
    with serving(MetricsServer(lambda _: (200, PAGE))) as server:
        url = server.url.replace("http://", "http://me:hunter2@")
        one = Scraper(url, kind="vllm", headers={}, interval_s=1.0)
        assert one.snapshot()
        one.stop()
    assert "hunter2" not in repr(one.table().to_pylist())


@pytest.mark.parametrize(("kind", "dump"), [("vllm", "vllm-0.32.0.txt"), ("sglang", "sglang-0.5.23.txt")])
def test_recorded_pages_settle_and_keep_their_counters(kind: str, dump: str) -> None:
    path = DUMPS / dump
    if not path.is_file():
        pytest.skip(f"{dump} is not on this machine: it is a recorded scrape that is not part of the repository")
    with serving(MetricsServer(lambda _: (200, path.read_bytes()))) as server:
        one = scraper(server, kind=kind)
        assert one.settle(5.0)
        one.stop()
    rows = one.table().to_pylist()
    expected = {"vllm": 68.0, "sglang": 96.0}[kind]
    assert sum(row["value"] for row in rows if row["metric"] == f"{kind}:generation_tokens_total") == 2 * expected
    assert not any(row["metric"].endswith("_created") for row in rows)
    assert not one.faults
    assert one.latest(["prefix_query_tokens"]) == {"prefix_query_tokens": {"vllm": 38.0, "sglang": 45.0}[kind]}
