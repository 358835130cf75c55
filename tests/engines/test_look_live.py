"""`look` on real engines: their pages hold what the catalogue expects, and being looked at leaves no trace."""

from __future__ import annotations

import threading
import time

import pytest

from harness.engines.http import get_metrics
from harness.engines.protocol import GenerationRequest
from harness.observe.exposition import parse
from harness.observe.look import look
from harness.observe.look_report import Check, LookReport
from harness.records.signals.catalogue import Catalogue
from tests.engines.conftest import Live

pytestmark = pytest.mark.engine

PROMPT = tuple(range(100, 300))
TRACE = ("output_tokens", "prefill_computed_tokens", "prefix_query_tokens")


def counted(live: Live) -> list[float | None]:
    """What would have moved if somebody had generated."""
    readings = Catalogue.load(live.engine.kind).resolve(parse((get_metrics(live.endpoint) or "").encode()), live=True)
    return [readings[name].value for name in TRACE]


def check(report: LookReport, name: str) -> Check:
    return next(one for stage in report.stages for one in stage.checks if one.id == name)


def looked_at(live: Live) -> None:
    live.send(GenerationRequest("before", max_tokens=8, prompt_ids=PROMPT))
    time.sleep(1.0)  # counters may settle a moment after the answer
    before = counted(live)
    report = look(live.endpoint.base_url, seconds=1.0)
    assert counted(live) == before
    assert None not in before
    assert (report.kind, report.models) == (live.engine.kind, [live.endpoint.model])
    assert report.config["kv_tokens"]
    assert (report.drift.lacking, report.drift.unknown, report.drift.outdated) == ([], [], {})
    assert report.took_s < 10
    assert check(report, "kernel.progress").says == "idle"

    busy = threading.Thread(target=live.send, args=(GenerationRequest("busy", max_tokens=400, prompt_ids=PROMPT),))
    busy.start()
    time.sleep(0.5)
    report = look(live.endpoint.base_url, seconds=1.5)
    still = busy.is_alive()
    busy.join()
    assert still, "the answer ended before the look did"
    progress = check(report, "kernel.progress")
    assert progress.state == "ok", progress
    assert progress.figures[0].value > 0
    assert check(report, "queue.depth").state == "ok"


def test_native(native_server: Live) -> None:
    looked_at(native_server)


def test_vllm(vllm_server: Live) -> None:
    looked_at(vllm_server)


def test_sglang(sglang_server: Live) -> None:
    looked_at(sglang_server)
