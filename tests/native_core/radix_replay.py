"""Our radix tree under the operations of a case, compared with a log of SGLang's after each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from native_core.radix_key import Namespace, encode, namespace
from native_core.radix_node import Node, Slots
from native_core.radix_tree import RadixTree

TOKENS = {"0": 5, "1": 261, "2": 65541, "3": 16777221}  # as in tests/engines/sglang_tree_driver.py


def runs(slots: Slots) -> list[list[int]]:
    """[first, count] of each run of consecutive slots."""
    parts = np.split(slots, np.flatnonzero(np.diff(slots) != 1) + 1) if len(slots) else []
    return [[int(part[0]), len(part)] for part in parts]


@dataclass
class Row:
    """A request and the slots of its tokens; the first `owned` ones belong to the tree."""

    prompt: str
    space: Namespace | None
    priority: int
    slots: Slots
    owned: int
    node: Node
    counted: int = 0


@dataclass
class Replay:
    tree: RadixTree
    texts: list[str]
    rows: dict[int, Row] = field(default_factory=dict)
    next_slot: int = 0
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("operations", "splits", "evicted", "hits"), 0))

    def key(self, source: list[Any]) -> tuple[str, bytes]:
        which, count, tail = source
        text = self.texts[which % len(self.texts)][:count] + tail
        return text, self.encode(text)

    @staticmethod
    def encode(text: str) -> bytes:
        return encode([TOKENS[letter] for letter in text])

    def admit(self, name: int, source: list[Any], space: list[Any], priority: int) -> list[Any]:
        text, key = self.key(source)
        spaced = namespace(*space)
        found = self.tree.match(key, len(text) - 1, spaced)
        slots = self.tree.slots(found.node)
        self.tree.lock(found.node)
        self.rows[name] = Row(text, spaced, priority, slots, found.tokens, found.node)
        self.seen["hits"] += found.tokens
        return [found.tokens, runs(slots)]

    def touch(self, source: list[Any], space: list[Any]) -> list[Any]:
        return [self.tree.match(self.key(source)[1], namespace=namespace(*space)).tokens]

    def publish(self, name: int, count: int, output: str, last: bool) -> list[Any]:
        row, page = self.rows[name], self.tree.page_size
        full = row.prompt + output
        whole = (len(full) if last else max(count, row.owned)) // page * page
        new = max(whole - len(row.slots), 0)
        slots = np.concatenate([row.slots, np.arange(self.next_slot, self.next_slot + new)])
        self.next_slot += new
        before = len(list(self.tree.nodes()))
        done = self.tree.publish(
            self.encode(full)[: whole * 4],
            len(row.prompt),
            slots,
            owned=row.owned,
            counted=row.counted,
            priority=row.priority,
            namespace=row.space,
        )
        self.seen["splits"] += len(list(self.tree.nodes())) - before - (done.already < whole)
        path = self.tree.slots(done.node)
        self.tree.unlock(row.node)
        if last:
            del self.rows[name]
            self.texts.append(full)
        else:
            self.tree.lock(done.node)
            row.slots, row.owned = np.concatenate([path, slots[whole:]]), whole
            row.counted, row.node = max(row.counted, whole), done.node
        return [done.already, runs(done.duplicates), runs(path)]

    def retract(self, name: int) -> list[Any]:
        self.tree.unlock(self.rows.pop(name).node)
        return []

    def evict(self, tokens: int) -> list[Any]:
        gone = self.tree.evict(tokens)
        self.seen["evicted"] += gone.tokens
        return [gone.tokens, runs(np.concatenate(gone.slots) if gone.slots else np.empty(0, np.int64))]

    def reset(self) -> list[Any]:
        self.tree.reset()
        return []


def replay(case: dict[str, Any], tree: type[RadixTree] = RadixTree, *, check_every: int = 5) -> dict[str, int]:
    """AssertionError at the first operation whose outcome differs from the log's; otherwise what was seen."""
    ours = Replay(tree(case["page"], case["policy"]), list(case["texts"]))
    for at, ((name, *arguments), expected) in enumerate(zip(case["operations"], case["log"], strict=True)):
        outcome = [*getattr(ours, name)(*arguments), ours.tree.evictable, ours.tree.protected]
        assert outcome == expected, (
            f"case {case['seed']}, page {case['page']}, {case['policy']}, operation {at}: {name}"
        )
        if at % check_every == 0:
            ours.tree.check(row.node for row in ours.rows.values())
        ours.seen["operations"] += 1
    ours.tree.check(row.node for row in ours.rows.values())
    return ours.seen
