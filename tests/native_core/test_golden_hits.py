"""Hits per request of a long trace under eviction pressure, as vLLM 0.32.0's KVCacheManager had them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from native_core.engine_config import Counters, EngineConfig
from native_core.events import EventLog
from native_core.request import Request
from native_core.scheduler_blocks import BlockManager

SHARED = Path(__file__).resolve().parents[3] / "shared" / "prototypes"
GOLDEN = SHARED / "golden" / "hits_vllm_block16.json"
TRACE = SHARED / "trace_gen.py"
CAPACITY = 150_000  # tokens of the pool that made the golden hits
BLOCK = 16
REQUESTS = 1500


def trace(count: int) -> list[tuple[list[int], list[int]]]:
    spec = importlib.util.spec_from_file_location("trace_gen", TRACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generated: list[tuple[list[int], list[int]]] = module.gen(count)
    return generated


def hits(blocks: BlockManager, requests: list[tuple[list[int], list[int]]]) -> Iterator[int]:
    """One request at a time: its prompt is computed, then its outputs but for the last, then it ends."""
    for index, (prompt, output) in enumerate(requests):
        request = Request(str(index), prompt, len(output))
        blocks.name(request)
        found = blocks.look_up(request)
        hit = len(found) * BLOCK
        assert blocks.admit(request, len(prompt) - hit, found, others_run=False)
        request.computed = len(prompt)
        request.tokens.extend(output)
        blocks.name(request)
        assert blocks.grow(request, len(output) - 1)
        blocks.end(request)
        yield hit


@pytest.mark.skipif(
    not (GOLDEN.is_file() and TRACE.is_file()), reason=f"needs {GOLDEN.name} and its trace in ../shared"
)
def test_hits_of_every_request_are_vllms() -> None:
    expected = json.loads(GOLDEN.read_text())
    config = EngineConfig(num_blocks=CAPACITY // BLOCK + 1, block_size=BLOCK, max_model_len=8192)
    counters = Counters()
    blocks = BlockManager(config, counters, EventLog())
    assert list(hits(blocks, trace(REQUESTS))) == expected
    assert counters.evicted_tokens > 5 * CAPACITY  # the trace is not one that simply fits
    blocks.pool.check([])
    assert blocks.pool.used == 0
