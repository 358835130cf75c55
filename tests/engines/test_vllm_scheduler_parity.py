"""The scheduler against vLLM's own code: the same at every step, in every detail that can be seen."""

from __future__ import annotations

import json
import random
import subprocess
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from harness.engines.store import find_engine
from harness.records.errors import ServescopeError
from native_core.engine import EngineConfig
from native_core.executor import Sampled
from native_core.request import Request
from native_core.scheduler import Batch, Scheduler
from tests.engines.conftest import unavailable
from tests.engines.vllm_scheduler_driver import BLOCK, STOP_TOKEN, token

ENVIRONMENT = "vllm-0.32.0-cpu"
DRIVER = Path(__file__).with_name("vllm_scheduler_driver.py")
CASES = 40  # of each loop
CONFIG_FIELDS = (
    "num_blocks",
    "max_num_seqs",
    "max_batched_tokens",
    "max_model_len",
    "policy",
    "prefix_caching",
    "long_prefill_threshold",
    "watermark",
    "reserve_full_prompt",
    "async_scheduling",
)


def make_case(seed: int, *, asynchronous: bool) -> dict[str, Any]:
    """A random engine and random load: shared prefixes, salts, staggered arrivals, stop tokens, some aborts."""
    rng = random.Random(seed)
    blocks = rng.choice([14, 20, 40, 80])
    longest = min((blocks - 1) * BLOCK, 1024)
    case: dict[str, Any] = {
        "seed": seed,
        "num_blocks": blocks,
        "max_num_seqs": rng.choice([2, 4, 16, 16]),
        "max_batched_tokens": rng.choice([32, 64, 256, 1024]),
        "max_model_len": longest,
        "policy": rng.choice(["fcfs", "priority"]),
        "prefix_caching": rng.random() > 0.1,
        "long_prefill_threshold": rng.choice([0, 0, 48]),
        "watermark": rng.choice([0.0, 0.0, 0.05]),
        "reserve_full_prompt": rng.choice([True, True, False]),
        "async_scheduling": asynchronous,
        "stops": rng.random() < 0.5,  # whether stop tokens end requests early
        "requests": [],
    }
    at = 0
    for index in range(rng.choice([5, 20, 40])):
        group = rng.randrange(3)
        length = min(rng.choice([1, 15, 16, 17, 32, 33, 48, 64, 100, 200, 400]), longest - 20)
        shared = max(rng.randrange(length + 1), rng.randrange(length + 1))
        at += rng.choice([0, 0, 0, 1, 3])
        case["requests"].append(
            {
                "id": f"{index:04d}",
                "at": at,
                "group": group,
                "prompt": [token(group, position) for position in range(shared)]
                + [rng.randrange(2000, 2003) for _ in range(length - shared)],
                "max_tokens": rng.choice([1, 2, 16, 17, 40, 90]),
                "priority": rng.randrange(3),
                "salt": rng.choice([None, None, None, "a"]),
                "arrival": float(index),
                "abort_at": at + rng.randrange(12) if rng.random() < 0.15 else None,
            }
        )
    return case


class Replay:
    """Our scheduler under the operations that vLLM's log says, compared after each."""

    def __init__(self, case: dict[str, Any]) -> None:
        settings = {name: case[name] for name in CONFIG_FIELDS}
        # As vLLM does and no engine should that computes: what a withdrawn request was about to fill is still found.
        self.scheduler = Scheduler(EngineConfig(**settings, block_size=BLOCK, forget_uncomputed=False))
        self.stops = case["stops"]
        self.rows = {row["id"]: row for row in case["requests"]}
        self.in_flight: deque[Batch] = deque()
        self.seen = {"steps": 0, "preempted": 0, "aborted": 0}

    def state(self) -> dict[str, Any]:
        return {
            "running": [request.request_id for request in self.scheduler.running],
            "queue": self.scheduler.blocks.pool.queue(),
        }

    def add(self, request_id: str) -> str:
        row = self.rows[request_id]
        request = Request(
            request_id,
            row["prompt"],
            row["max_tokens"],
            ignore_eos=True,
            stop_token_ids=frozenset([STOP_TOKEN] if self.stops else []),
            priority=row["priority"],
            arrival=row["arrival"],
            salt=row["salt"],
        )
        self.scheduler.add(request, now=row["arrival"])
        return request_id

    def abort(self, expected: dict[str, Any]) -> dict[str, Any]:
        self.seen["aborted"] += self.scheduler.abort(expected["id"], now=0.0)
        return {"id": expected["id"], **self.state()}

    def schedule(self, _: dict[str, Any]) -> dict[str, Any]:
        batch = self.scheduler.schedule(now=0.0)
        self.in_flight.append(batch)
        self.seen["steps"] += 1
        self.seen["preempted"] += len(batch.preempted)
        return {
            "scheduled": [[name, item.count] for name, item in batch.items.items()],
            "preempted": sorted(request.request_id for request in batch.preempted),
            "emits": sorted(name for name, item in batch.items.items() if item.emits),
            **self.state(),
        }

    def update(self, _: dict[str, Any]) -> dict[str, Any]:
        batch = self.in_flight.popleft()
        sampled = {
            name: Sampled(token(self.rows[name]["group"], len(item.request.tokens)))
            for name, item in batch.items.items()
        }
        self.scheduler.update(batch, sampled, now=0.0)
        return self.state()


def replay(case: dict[str, Any], log: dict[str, Any]) -> dict[str, int]:
    ours = Replay(case)
    for at, (operation, expected) in enumerate(log["log"]):
        assert getattr(ours, operation)(expected) == expected, f"case {case['seed']}, operation {at}: {operation}"
        if at % 10 == 0:
            ours.scheduler.check()
    ours.scheduler.check()
    counters = ours.scheduler.counters
    counted = [
        counters.prefix_query_tokens,
        counters.prefix_hit_tokens,
        counters.preempted_query_tokens,
        counters.preempted_hit_tokens,
    ]
    assert counted == log["counted"], f"case {case['seed']}: prefix cache counters"
    return {**ours.seen, "hit_tokens": counters.prefix_hit_tokens}


@pytest.fixture(scope="module")
def logs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Cases with what vLLM did, both loops in one process: its import takes longer than the cases."""
    try:
        python = find_engine(ENVIRONMENT).python
    except ServescopeError as error:
        unavailable(str(error))
    cases = [make_case(seed, asynchronous=asynchronous) for asynchronous in (False, True) for seed in range(CASES)]
    done = subprocess.run([python, str(DRIVER)], input=json.dumps(cases), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout[done.stdout.index('{"version"') :])
    assert document["version"].startswith("0.32.0")
    return list(zip(cases, document["logs"], strict=True))


@pytest.mark.engine
@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_every_step_equals_vllms(logs: list[tuple[dict[str, Any], dict[str, Any]]], asynchronous: bool) -> None:
    """Tokens per request in order, preempted set, running order, the whole free queue, hit counters; with aborts."""
    seen = [replay(case, log) for case, log in logs if case["async_scheduling"] is asynchronous]
    total = {name: sum(row[name] for row in seen) for name in seen[0]}
    # The cases must reach what they are meant to test.
    assert len(seen) == CASES
    assert total["steps"] > 2000
    assert total["preempted"] > 50
    assert total["aborted"] > 50
    assert total["hit_tokens"] > 3000
    print(f"{total}, vLLM {sum(log['seconds'] for _, log in logs):.1f} s of CPU for both loops")


@pytest.mark.engine
def test_another_releases_rules_are_told_apart(logs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """The comparison is not vacuous: with the free queue of 0.21.0 it fails at once."""

    def differs(case: dict[str, Any], log: dict[str, Any]) -> bool:
        ours = Replay(case)
        ours.scheduler.blocks.pool._unhashed_first = False
        return any(getattr(ours, operation)(expected) != expected for operation, expected in log["log"])

    assert sum(differs(case, log) for case, log in logs[:20]) > 10
