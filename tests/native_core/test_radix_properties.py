"""The radix tree against the plainest model of it: a table from each cached prefix of whole pages to its page's slots.

The model knows nothing of edges, splits, ages or heaps, so what agrees with it is not the tree's own idea of itself.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from native_core.eviction import POLICIES
from native_core.radix_key import encode, namespace
from native_core.radix_node import Node, Slots
from native_core.radix_tree import RadixTree

POOL = 120
Prefix = tuple[str | None, tuple[int, ...]]
texts = st.lists(st.integers(0, 2), min_size=1, max_size=24)
spaces = st.sampled_from([None, None, "a"])


class TreeAndTable(RuleBasedStateMachine):
    @initialize(page=st.sampled_from([1, 2, 4]), policy=st.sampled_from(list(POLICIES)))
    def start(self, page: int, policy: str) -> None:
        self.page = page
        self.tree = RadixTree(page, policy)
        self.table: dict[Prefix, list[int]] = {}
        self.free = list(range(POOL))
        self.held: list[tuple[str | None, list[int], Node]] = []

    def cached(self, space: str | None, ids: list[int]) -> list[int]:
        """Slots of the longest prefix that the table has."""
        slots: list[int] = []
        for end in range(self.page, len(ids) + 1, self.page):
            if (space, tuple(ids[:end])) not in self.table:
                break
            slots += self.table[space, tuple(ids[:end])]
        return slots

    @rule(ids=texts, space=spaces, lock=st.booleans())
    def match(self, ids: list[int], space: str | None, lock: bool) -> None:
        found = self.tree.match(encode(ids), namespace=namespace(space))
        assert self.tree.slots(found.node).tolist() == self.cached(space, ids)
        assert found.tokens == len(self.cached(space, ids))
        if lock:
            self.tree.lock(found.node)
            self.held.append((space, ids[: found.tokens], found.node))

    @rule(ids=texts, space=spaces, prompt=st.integers(0, 24))
    def publish(self, ids: list[int], space: str | None, prompt: int) -> None:
        """A request that matched nothing and computed everything: all slots that the tree has already come back."""
        if len(self.free) < len(ids):
            self.evict(len(ids) - len(self.free))
        if len(self.free) < len(ids):
            return
        row, self.free = self.free[: len(ids)], self.free[len(ids) :]
        before = self.cached(space, ids)
        done = self.tree.publish(encode(ids), prompt, np.array(row), namespace=namespace(space))
        assert done.already == len(before)
        assert done.duplicates.tolist() == row[: len(before)]
        whole = len(ids) // self.page * self.page
        for end in range(len(before) + self.page, whole + 1, self.page):
            self.table[space, tuple(ids[:end])] = row[end - self.page : end]
        self.free += [*done.duplicates.tolist(), *row[whole:]]

    @rule(tokens=st.integers(0, 30))
    def evict(self, tokens: int) -> None:
        evictable = self.tree.evictable
        gone = self.tree.evict(tokens)
        slots: Slots = np.concatenate(gone.slots) if gone.slots else np.empty(0, np.int64)
        assert len(slots) == gone.tokens >= min(tokens, evictable)
        lost = set(slots.tolist())
        self.table = {prefix: page for prefix, page in self.table.items() if not lost.issuperset(page)}
        self.free += slots.tolist()
        for space, ids, _ in self.held:
            assert len(self.cached(space, ids)) == len(ids), "a prefix went that was held"

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def unlock(self, which: int) -> None:
        self.tree.unlock(self.held.pop(which % len(self.held))[2])

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        if not hasattr(self, "tree"):
            return
        owned = [slot for page in self.table.values() for slot in page]
        assert sorted(owned + self.free) == list(range(POOL))
        assert self.tree.evictable + self.tree.protected == len(owned)
        for space, ids in self.table:  # a prefix is cached only with all that comes before it
            assert len(self.cached(space, list(ids))) == len(ids)
        self.tree.check(node for _, _, node in self.held)


TreeAndTable.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_a_tree_is_a_table_of_prefixes = TreeAndTable.TestCase


def agree(one: list[int], other: list[int]) -> int:
    """How many leading tokens two prompts share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=30))
@settings(deadline=None)
def test_depth_first_order_needs_no_more_cache_than_the_longest_prompt(prompts: list[list[int]]) -> None:
    """Every edge is then computed once: the hit rate is 1 - sum of edges / sum of prompts (SGLang's paper, theorem).

    The edges are counted here from the sorted prompts alone: each adds what it does not share with the one before.
    """
    prompts.sort()
    edges = sum(len(now) - agree(before, now) for before, now in zip([[], *prompts], prompts, strict=False))
    tree, capacity, hits = RadixTree(track_slots=False), max(map(len, prompts)), 0
    for prompt in prompts:
        found = tree.match(encode(prompt))
        tree.lock(found.node)
        tree.evict(len(prompt) - found.tokens - (capacity - tree.evictable - tree.protected))
        assert tree.insert(encode(prompt), None).already == found.tokens
        tree.unlock(found.node)
        assert tree.evictable <= capacity
        hits += found.tokens
    assert hits == sum(map(len, prompts)) - edges
