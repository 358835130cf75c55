"""How fast is the radix tree beside SGLang's? Both in one process, one after the other, outputs asserted equal.

    python -m tests.bench.radix_speed [--requests 1500] [--rounds 3] [--capacity 150000] [--env sglang-0.5.23-cpu]

A request is timed from a list of token ids to the slots of its cached prefix, and on to its end: key building, match,
slots of the path, lock, eviction of what is missing, insert of prompt and answer, split at the prompt's end, unlock.
Rows and free slots are the engine's business and not timed. SGLang's tree core is called directly, without the adapter
that its scheduler goes through. Both build a key once and extend it by the answer.
Not part of the test run: its figures depend on what else the machine does. Prints one JSON object; times in us.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("key", "match", "slots", "lock", "evict", "insert")
Turn = tuple[list[int], list[int]]


def conversations(requests: int) -> list[Turn]:
    """Prompt and answer of each request: 64 conversations that grow from 8 long system prompts, then start again."""
    rng = random.Random(11)
    systems = [rng.choices(range(32000), k=1024) for _ in range(8)]
    history: dict[int, list[int]] = {}
    turns = []
    for _ in range(requests):
        which = rng.randrange(64)
        past = history.get(which, [])
        if not past or len(past) > 6000:
            past = systems[rng.randrange(8)]
        prompt = past + rng.choices(range(32000), k=rng.randint(64, 512))
        answer = rng.choices(range(32000), k=rng.randint(64, 512))
        history[which] = prompt + answer
        turns.append((prompt, answer))
    return turns


class Clock:
    """Seconds by part; `lap` books what went by since the last one."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.at = 0.0

    def start(self) -> None:
        self.at = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self.at
        self.at = now


def ours(turns: list[Turn], page: int, capacity: int, clock: Clock) -> Iterator[tuple[int, ...]]:
    import numpy as np

    from native_core.radix_key import encode
    from native_core.radix_tree import RadixTree

    tree, free, fresh = RadixTree(page), capacity // page * page, 0
    for prompt, answer in turns:
        whole = (len(prompt) + len(answer)) // page * page
        clock.start()
        key = encode(prompt)
        clock.lap("key")
        found = tree.match(key, len(prompt) - 1)
        clock.lap("match")
        cached = tree.slots(found.node)
        clock.lap("slots")
        tree.lock(found.node)
        clock.lap("lock")
        need = whole - found.tokens
        gone = tree.evict(need - free)
        clock.lap("evict")
        row = np.concatenate([cached, np.arange(fresh, fresh + need)])
        clock.start()
        key += encode(answer)
        clock.lap("key")
        done = tree.publish(key, len(prompt), row, owned=found.tokens)
        clock.lap("insert")
        tree.unlock(found.node)
        clock.lap("lock")
        free, fresh = free + gone.tokens - need + len(done.duplicates), fresh + need
        out = np.concatenate([*gone.slots, done.duplicates, cached])
        yield found.tokens, gone.tokens, done.already, zlib.crc32(out.tobytes()), tree.evictable, tree.protected


def sglangs(turns: list[Turn], page: int, capacity: int, clock: Clock) -> Iterator[tuple[int, ...]]:
    import torch

    sys.path.insert(0, str(ROOT / "tests" / "engines"))
    from sglang_tree_core import Tree  # type: ignore[import-not-found]

    tree, free, fresh = Tree(page, "lru"), capacity // page * page, 0
    for prompt, answer in turns:
        whole, boundary = (len(prompt) + len(answer)) // page * page, len(prompt) // page * page
        clock.start()
        key = array("q", prompt)
        clock.lap("key")
        hit, node = tree.match(key[:-1])
        clock.lap("match")
        cached = tree.slots(node)
        clock.lap("slots")
        receipt = tree.lock(node)
        clock.lap("lock")
        need = whole - hit
        freed, gone = tree.evict(need - free) if need > free else (0, [])
        clock.lap("evict")
        row = torch.cat([cached, torch.arange(fresh, fresh + need)])
        clock.start()
        key.extend(array("q", answer))
        clock.lap("key")
        already, _, duplicates = tree.insert(key[:whole], row, hit)
        if 0 < boundary < whole:
            tree.insert(key[:boundary], row[:boundary], boundary, boundary, 1)
        clock.lap("insert")
        tree.unlock(node, receipt)
        clock.lap("lock")
        free, fresh = free + freed - need + sum(map(len, duplicates)), fresh + need
        out = torch.cat([*gone, *duplicates, cached])
        sizes = tree.core.evictable_size(), tree.core.protected_size()
        yield hit, freed, already, zlib.crc32(out.numpy().tobytes()), *sizes


def compare(turns: list[Turn], page: int, capacity: int, rounds: int) -> dict[str, Any]:
    laps: dict[str, list[dict[str, float]]] = {"ours": [], "sglang": []}
    for _ in range(rounds):
        answers = []
        for name, side in (("ours", ours), ("sglang", sglangs)):
            clock = Clock()
            answers.append(list(side(turns, page, capacity, clock)))
            laps[name].append(clock.seconds)
        assert answers[0] == answers[1], f"page {page}: the two sides differ"
    hits, prompts = sum(row[0] for row in answers[0]), sum(len(prompt) for prompt, _ in turns)
    best = {name: min(sum(lap.values()) for lap in rows) for name, rows in laps.items()}
    return {
        "page": page,
        "hit_rate": round(hits / prompts, 6),
        "evicted_tokens": sum(row[1] for row in answers[0]),
        "requests_per_s": {name: round(len(turns) / seconds) for name, seconds in best.items()},
        "ours_over_sglang": {
            "with_keys": round(best["sglang"] / best["ours"], 2),
            "without_keys": round(
                min(sum(lap.values()) - lap["key"] for lap in laps["sglang"])
                / min(sum(lap.values()) - lap["key"] for lap in laps["ours"]),
                2,
            ),
        },
        "us_per_request": {
            name: {part: round(1e6 * statistics.median(lap[part] for lap in rows) / len(turns), 1) for part in PARTS}
            for name, rows in laps.items()
        },
    }


def inside(options: argparse.Namespace) -> None:
    """In the interpreter of the SGLang environment, which needs numpy and torch."""
    import importlib.metadata

    turns = conversations(options.requests)
    rows = [compare(turns, page, options.capacity, options.rounds) for page in (1, 16, 64)]
    tokens = sum(len(prompt) + len(answer) for prompt, answer in turns)
    head = {"sglang": importlib.metadata.version("sglang"), "requests": len(turns), "tokens": tokens}
    print(json.dumps({**head, "capacity": options.capacity, "rounds": options.rounds, "pages": rows}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--capacity", type=int, default=150_000)
    parser.add_argument("--env", default="sglang-0.5.23-cpu")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    from harness.engines.store import find_engine

    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [find_engine(options.env).python, str(Path(__file__)), *sys.argv[1:], "--inside"]
    sys.exit(subprocess.run(command, env=environ).returncode)


if __name__ == "__main__":
    main()
