"""Random cases for vLLM's scheduler, and ours under what vLLM's log says was done."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from native_core.engine import EngineConfig
from native_core.executor import Sampled
from native_core.request import Request
from native_core.scheduler import Batch, Scheduler
from tests.engines.vllm_scheduler_driver import BLOCK, STOP_TOKEN, token

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

    def counted(self) -> list[int]:
        """Tokens looked up and hit, at first admissions and after preemptions, since the start."""
        counters = self.scheduler.counters
        return [
            counters.prefix_query_tokens,
            counters.prefix_hit_tokens,
            counters.preempted_query_tokens,
            counters.preempted_hit_tokens,
        ]

    def update(self, _: dict[str, Any]) -> dict[str, Any]:
        batch = self.in_flight.popleft()
        sampled = {
            name: Sampled(token(self.rows[name]["group"], len(item.request.tokens)))
            for name, item in batch.items.items()
        }
        self.scheduler.update(batch, sampled, now=0.0)
        return {**self.state(), "counted": self.counted()}


def replay(case: dict[str, Any], log: dict[str, Any]) -> dict[str, int]:
    ours = Replay(case)
    for at, (operation, expected) in enumerate(log["log"]):
        assert getattr(ours, operation)(expected) == expected, f"case {case['seed']}, operation {at}: {operation}"
        if at % 10 == 0:
            ours.scheduler.check()
    ours.scheduler.check()
    assert ours.counted() == log["counted"], f"case {case['seed']}: prefix cache counters"
    return {**ours.seen, "hit_tokens": ours.counted()[1]}
