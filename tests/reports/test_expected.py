"""Cached tokens that must be, and what is said about those that were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.records.judgements import Expected
from harness.records.rundir import CellDir
from reports import cache_verdict
from reports.cell import load_cell
from reports.expected import expect
from reports.series import Series, Signals
from tests.reports.synthetic import CellSpec, Row, steady, write_cell

VLLM = {"kind": "vllm", "name": "vllm", "version": "0.32.0"}
HEAD = list(range(1000, 1064))  # 64 tokens, four blocks of 16


def counters(**growth: float) -> Signals:
    """Signals that grew by the given amounts over ten seconds."""
    found = {
        name: Series(name, "counter", "tokens", np.asarray([0.0, 10.0]), np.asarray([0.0, grown]), f"rate of {name}")
        for name, grown in growth.items()
    }
    return Signals(found, {})


def judged(tmp_path: Path, rows: list[Row], signals: Signals | None = None, **spec: Any) -> Expected:
    cell = write_cell(CellDir(tmp_path), CellSpec(rows, engine={**VLLM, **spec.pop("engine", {})}, **spec))
    return expect(load_cell(cell), signals or Signals({}, {}, "not scraped"))


def planted(followers: int = 3, cached: int = 64, **more: Any) -> list[Row]:
    """One request that plants 64 tokens, then followers one by one that begin with them."""
    rows = [steady("plant", 0.0, prompt=[*HEAD, 1], **more)]
    for number in range(followers):
        prompt = [*HEAD, 2 + number, 7, 7]
        rows.append(steady(f"hit{number}", 1.0 + number, prompt=prompt, cached=cached, cache_class="partial", **more))
    return rows


def test_hits_are_exact_when_requests_do_not_overlap(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(), counters(prefix_hit_tokens=192, prefix_query_tokens=266))
    assert found.exact
    assert (found.total.low, found.total.high, found.total.usage, found.total.counters) == (192, 192, 192, 192)
    assert found.verdict == cache_verdict.AS_EXPECTED
    assert found.grade == "code-parity"
    assert [(c.cache_class, c.requests, c.low, c.usage) for c in found.classes] == [
        ("partial", 3, 192, 192),
        ("none", 1, 0, 0),
    ]


@pytest.mark.parametrize(("block", "each"), [(1, 64), (16, 64), (32, 64), (48, 48), (64, 64), (65, 0), (128, 0)])
def test_the_block_decides(tmp_path: Path, block: int, each: int) -> None:
    found = judged(tmp_path, planted(cached=each), engine={"block_size": block})
    assert found.total.low == 3 * each
    assert found.verdict == (cache_verdict.AS_EXPECTED if each else cache_verdict.BELOW_BLOCK)


def test_a_full_hit_gives_one_token_back(tmp_path: Path) -> None:
    rows = [steady("a", 0.0, prompt=HEAD), steady("b", 1.0, prompt=HEAD, cached=48, cache_class="full")]
    assert judged(tmp_path, rows).total.low == 48
    rows = [steady("a", 0.0, prompt=HEAD), steady("b", 1.0, prompt=HEAD, cached=63, cache_class="full")]
    assert judged(tmp_path, rows, engine={"kind": "sglang", "version": "0.5.23", "block_size": 1}).total.low == 63


def test_overlapping_requests_give_an_interval(tmp_path: Path) -> None:
    rows = [steady("a", 0.0, prompt=[*HEAD, 1]), steady("b", 0.05, prompt=[*HEAD, 2], cached=64)]
    found = judged(tmp_path, rows)
    assert not found.exact
    assert (found.total.low, found.total.high) == (0, 128)
    assert found.verdict == cache_verdict.AS_EXPECTED
    assert "overlapped" in (found.why_interval or "")


def test_answers_are_sources_but_for_their_last_token(tmp_path: Path) -> None:
    first = steady("turn0", 0.0, prompt=HEAD[:40], answer=HEAD[40:56], tokens=16)
    then = steady("turn1", 5.0, prompt=[*HEAD[:56], 9, 9], cached=48)
    assert judged(tmp_path, [first, then]).total.low == 48  # 40 + 16 - 1 = 55 tokens, three blocks
    then = steady("turn1", 5.0, prompt=[*HEAD[:56], 9, 9], cached=55)
    found = judged(tmp_path, [first, then], engine={"block_size": 1})
    assert found.total.low == 55


def test_the_readme_case(tmp_path: Path) -> None:
    """24 requests of 360 tokens whose first token differs, on vLLM with caching on."""
    body = list(range(2000, 2359))
    rows = [steady(f"r{n:02d}", float(n), prompt=[n, *body], cache_class="miss") for n in range(24)]
    signals = counters(prefix_query_tokens=8640, prefix_hit_tokens=0)
    found = judged(tmp_path, rows, signals, engine={"block_size": 128, "kv_tokens": 46_592})
    assert found.exact
    assert found.total.low == found.total.high == found.total.usage == found.total.counters == 0
    assert found.verdict == cache_verdict.KEY_MISMATCH
    assert found.explanation == (
        "caching is on, 8,640 tokens were looked up and none matched, with no eviction pressure: "
        "the keys differ, at token 0"
    )


def test_the_readme_case_with_a_cache_that_nobody_flushed(tmp_path: Path) -> None:
    body = list(range(2000, 2359))
    rows = [steady(f"r{n:02d}", float(n), prompt=[n, *body], cache_class="miss") for n in range(24)]
    found = judged(tmp_path, rows, cache={"proven": False}, engine={"block_size": 128})
    assert not found.exact
    assert found.verdict == cache_verdict.KEY_MISMATCH


def test_no_sharing_at_all(tmp_path: Path) -> None:
    rows = [steady(f"r{n}", float(n), prompt=range(n * 100, n * 100 + 50)) for n in range(4)]
    found = judged(tmp_path, rows)
    assert found.verdict == cache_verdict.NO_SHARING
    assert "no two prompts begin with the same token" in found.explanation


def test_caching_switched_off(tmp_path: Path) -> None:
    off = {"prefix_caching": False}
    found = judged(tmp_path, planted(cached=0), engine=off)
    assert (found.total.low, found.total.high, found.verdict) == (0, 0, cache_verdict.CACHING_OFF)
    assert judged(tmp_path, planted(cached=64), engine=off).verdict == cache_verdict.UNEXPLAINED


def test_hits_lost_without_a_look_up(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(cached=0), counters(prefix_query_tokens=0, prefix_hit_tokens=0))
    assert found.verdict == cache_verdict.CACHING_OFF
    assert "off in effect" in found.explanation


def test_hits_lost_for_lack_of_room(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(cached=0), engine={"kv_tokens": 100})
    assert found.verdict == cache_verdict.EVICTED
    assert not found.exact
    assert (found.total.low, found.total.high) == (0, 192)
    assert "evictions may happen" in (found.why_interval or "")
    by_counter = judged(tmp_path, planted(cached=0), counters(evicted_tokens=64))
    assert by_counter.verdict == cache_verdict.EVICTED
    assert "64 tokens were evicted" in by_counter.explanation


def test_hits_lost_with_room_to_spare(tmp_path: Path) -> None:
    none = judged(tmp_path, planted(cached=0), counters(prefix_query_tokens=266, prefix_hit_tokens=0))
    assert none.verdict == cache_verdict.KEY_MISMATCH
    some = judged(tmp_path, planted(cached=48), counters(prefix_query_tokens=266, prefix_hit_tokens=144))
    assert some.verdict == cache_verdict.UNEXPLAINED


def test_more_than_can_be(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(cached=80))
    assert found.verdict == cache_verdict.UNEXPLAINED
    assert "192" in found.explanation


def test_two_witnesses_that_disagree(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(), counters(prefix_hit_tokens=200, prefix_query_tokens=266))
    assert found.verdict == cache_verdict.DISAGREE


def test_no_witness(tmp_path: Path) -> None:
    rows = planted()
    for row in rows:
        row.cached = None
    found = judged(tmp_path, rows)
    assert (found.verdict, found.total.usage) == (cache_verdict.NOT_OBSERVABLE, None)
    counted = judged(tmp_path, rows, counters(prefix_hit_tokens=192, prefix_query_tokens=266))
    assert counted.verdict == cache_verdict.AS_EXPECTED


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"kind": "openai"}, "not known here"),
        ({"block_size": None}, "block size"),
        ({"resolved": {"parallel_config.data_parallel_size": 2}}, "replicas"),
    ],
)
def test_refusals(tmp_path: Path, engine: dict[str, Any], why: str) -> None:
    found = judged(tmp_path, planted(), engine=engine)
    assert found.verdict == cache_verdict.NO_EXPECTATION
    assert why in (found.refused or "")
    assert (found.total.low, found.total.high, found.total.usage, found.exact) == (None, None, 192, False)


def test_a_warm_or_unproven_cache_bounds_only_from_below(tmp_path: Path) -> None:
    for cache in ({"state": "warm", "proven": False}, {"proven": False}):
        found = judged(tmp_path, planted(), cache=cache)
        assert not found.exact
        assert found.total.low == 192
        assert found.total.high == 64 * 4  # every prompt but for its last token, in blocks of 16
        assert found.verdict == cache_verdict.AS_EXPECTED


def test_an_unknown_capacity_rules_nothing_out(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(), engine={"kv_tokens": None})
    assert (found.total.low, found.total.high, found.exact) == (0, 192, False)


def test_tokens_that_the_engine_counts_otherwise(tmp_path: Path) -> None:
    """An engine that adds a token of its own has other keys than ours, so nothing is said about it."""
    cell = CellDir(tmp_path)
    spec = CellSpec(planted(), engine=VLLM)
    write_cell(cell, spec)
    table = cell.read_table("requests").to_pydict()
    table["prompt_tokens"] = [count + 1 for count in table["prompt_tokens"]]
    import pyarrow as pa

    from harness.records.tables import REQUESTS

    cell.write_table("requests", pa.table(table).cast(REQUESTS))
    found = expect(load_cell(cell), Signals({}, {}))
    assert "engine counted" in (found.refused or "")


def test_redacted_runs_keep_their_expectation(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(), redacted=True)
    assert found.exact
    assert (found.total.low, found.total.high) == (192, 192)
    assert found.verdict == cache_verdict.AS_EXPECTED


def test_redacted_runs_bound_what_overlapped(tmp_path: Path) -> None:
    rows = [steady("a", 0.0, prompt=[*HEAD, 1]), steady("b", 0.05, prompt=[*HEAD, 2], cached=64)]
    found = judged(tmp_path, rows, redacted=True)
    assert (found.total.low, found.total.high) == (0, 128)


def test_a_run_without_tokens_is_refused(tmp_path: Path) -> None:
    found = judged(tmp_path, planted(), without=("tokens",))
    assert "no prompt was kept" in (found.refused or "")


def test_the_warm_up_is_counted_apart(tmp_path: Path) -> None:
    rows = [steady("warm", -5.0, prompt=range(60, 100), phase="warmup"), *planted()]
    found = judged(tmp_path, rows)
    assert found.classes[-1].cache_class == "warm-up"
    assert sum(part.requests for part in found.classes) == found.total.requests == 5


@pytest.mark.parametrize(
    ("engine", "grade"),
    [
        ({"kind": "vllm", "version": "0.32.0"}, "code-parity"),
        ({"kind": "vllm", "version": "0.99.0"}, "read"),
        ({"kind": "sglang", "version": "0.5.23"}, "read"),
        ({"kind": "native", "version": "0.1.0", "resolved": {"profile": "vllm-0.32.0"}}, "code-parity"),
        ({"kind": "native", "version": "0.1.0", "resolved": {}}, "read"),
    ],
)
def test_grades_claim_no_more_than_was_checked(tmp_path: Path, engine: dict[str, Any], grade: str) -> None:
    assert judged(tmp_path, planted(), engine=engine).grade == grade
