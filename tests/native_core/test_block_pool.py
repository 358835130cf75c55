"""The pool's rules, each by its name, and its invariants under random use."""

from __future__ import annotations

from array import array
from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from native_core.block_pool import BlockPool
from native_core.prefix_ids import PrefixIds

SIZE = 2


def pool_of(num_blocks: int, *, unhashed_first: bool = True) -> BlockPool:
    return BlockPool(num_blocks, PrefixIds(SIZE), unhashed_first=unhashed_first)


def chain_of(pool: BlockPool, tokens: list[int]) -> list[int]:
    chain: list[int] = []
    pool.prefix_ids.extend(chain, array("i", tokens), None)
    return chain


def cached(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Blocks that hold `tokens`, full ones findable, owned once."""
    chain = chain_of(pool, tokens)
    table = pool.take(-(-len(tokens) // SIZE))
    pool.register(table, chain, 0, len(chain))
    return table


def test_v11_block_0_is_never_given_and_the_queue_starts_in_id_order() -> None:
    pool = pool_of(5)
    assert (pool.queue(), pool.total, pool.free) == ([1, 2, 3, 4], 4, 4)
    assert pool.take(4) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="0 available"):
        pool.take(1)


@pytest.mark.parametrize("num_blocks", [1, 0, -3])
def test_a_pool_without_a_usable_block_is_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        pool_of(num_blocks)


def test_v12_a_block_is_findable_until_it_is_taken_again() -> None:
    pool = pool_of(4)
    table = cached(pool, [1, 2, 3, 4, 5, 6])
    chain = chain_of(pool, [1, 2, 3, 4, 5, 6])
    pool.release(table)
    assert (pool.used, pool.evictable, pool.free) == (0, 3, 0)
    assert pool.find(chain, 3) == [1, 2, 3]
    assert pool.take(1) == [3]  # the sequence's tail goes first
    assert pool.find(chain, 3) == [1, 2]
    assert pool.evicted_blocks == 1


def test_v12_a_hit_leaves_the_queue_before_new_blocks_are_taken() -> None:
    pool = pool_of(4)
    pool.release(cached(pool, [1, 2, 3, 4, 5, 6]))
    pool.touch([1])
    assert pool.queue() == [3, 2]
    assert pool.take(2) == [3, 2]


def test_v13_freed_blocks_without_identity_go_first_and_the_others_last_tail_before_head() -> None:
    pool = pool_of(11)
    shared = [1, 2, 3, 4, 5, 6]
    first = cached(pool, [*shared, 7])
    hits = pool.find(chain_of(pool, shared), 3)
    pool.touch(hits)
    second = [*hits, *pool.take(1)]
    assert (first, second) == ([1, 2, 3, 4], [1, 2, 3, 5])
    pool.release(first)
    pool.release(second)
    assert pool.queue() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def test_v13_before_0_24_every_freed_block_went_last() -> None:
    pool = pool_of(6, unhashed_first=False)
    pool.release(cached(pool, [1, 2, 3, 4, 5]))
    assert pool.queue() == [4, 5, 3, 2, 1]


def test_v14_usage_counts_cached_blocks_without_an_owner_as_free() -> None:
    pool = pool_of(5)
    pool.release(cached(pool, [1, 2, 3, 4]))
    assert 1 - pool.available / pool.total == 0.0
    assert (pool.used, pool.evictable, pool.free) == (0, 2, 2)


def test_v15_a_reset_needs_every_block_back_and_keeps_the_order() -> None:
    pool = pool_of(5)
    table = cached(pool, [1, 2, 3, 4])
    chain = chain_of(pool, [1, 2, 3, 4])
    assert not pool.reset()
    assert pool.find(chain, 2) == table
    pool.release(table)
    order = pool.queue()
    assert pool.reset()
    assert (pool.find(chain, 2), pool.queue(), pool.evictable) == ([], order, 0)
    assert pool.evicted_blocks == 0  # dropped on purpose, not lost to reuse


def test_v5_equal_content_is_not_merged_and_the_first_registered_that_remains_is_found() -> None:
    pool = pool_of(5)
    tables = [cached(pool, [1, 2]) for _ in range(3)]
    chain = chain_of(pool, [1, 2])
    assert tables == [[1], [2], [3]]
    assert pool.find(chain, 1) == [1]
    pool.release([1])
    assert pool.take(2) == [4, 1]
    assert pool.find(chain, 1) == [2]


class PoolMachine(RuleBasedStateMachine):
    """Requests come with tokens of a small alphabet, grow, leave; a model of the queue runs beside it."""

    @initialize(num_blocks=st.integers(2, 9), unhashed_first=st.booleans())
    def start(self, num_blocks: int, unhashed_first: bool) -> None:
        self.pool = pool_of(num_blocks, unhashed_first=unhashed_first)
        self.unhashed_first = unhashed_first
        self.queue = OrderedDict.fromkeys(range(1, num_blocks))
        self.content: dict[int, tuple[int, ...]] = {}  # block → whole prefix it is found under
        self.tables: list[tuple[list[int], list[int], list[int]]] = []  # tokens, chain, blocks

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def admit(self, tokens: list[int]) -> None:
        chain = chain_of(self.pool, tokens)
        hits = self.pool.find(chain, (len(tokens) - 1) // SIZE)
        for at, block in enumerate(hits, 1):
            assert self.content[block] == tuple(tokens[: at * SIZE])
        missing = len(hits) < (len(tokens) - 1) // SIZE
        assert not missing or tuple(tokens[: (len(hits) + 1) * SIZE]) not in self.content.values()
        wanted = -(-len(tokens) // SIZE) - len(hits)
        if wanted + self.pool.count_unowned(hits) > self.pool.available:
            self.pool.prefix_ids.release(chain)
            return
        self.pool.touch(hits)
        for block in hits:
            self.queue.pop(block, None)
        taken = self.pool.take(wanted)
        assert taken == list(self.queue)[:wanted]
        for block in taken:
            del self.queue[block]
            self.content.pop(block, None)
        table = hits + taken
        self.pool.register(table, chain, len(hits), len(chain))
        for at in range(len(hits), len(chain)):
            self.content[table[at]] = tuple(tokens[: (at + 1) * SIZE])
        self.tables.append((tokens, chain, table))

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 100))
    def leave(self, pick: int) -> None:
        _, chain, table = self.tables.pop(pick % len(self.tables))
        self.pool.release(table)
        self.pool.prefix_ids.release(chain)
        owned = {block for _, _, other in self.tables for block in other}
        freed = [block for block in reversed(table) if block not in owned]
        first = [block for block in freed if block not in self.content and self.unhashed_first]
        for block in freed:
            if block not in first:
                self.queue[block] = None
        for block in reversed(first):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == (not any(table for _, _, table in self.tables))
        if not self.tables:
            self.content.clear()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check([table for _, _, table in self.tables])
        assert self.pool.queue() == list(self.queue)
        assert self.pool.used + self.pool.evictable + self.pool.free == self.pool.total
        assert self.pool.evictable == sum(block in self.content for block in self.queue)
        holds: dict[int, int] = {}
        for key in [*self.pool.named_blocks().values(), *(chain[-1] for _, chain, _ in self.tables if chain)]:
            holds[key] = holds.get(key, 0) + 1
        self.pool.prefix_ids.check(holds)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPool = PoolMachine.TestCase


def test_check_finds_a_leaked_block_and_a_wrong_name() -> None:
    pool = pool_of(5)
    table = cached(pool, [1, 2, 3, 4])
    pool.check([table])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check([])
    pool._key[table[0]] = -1
    with pytest.raises(AssertionError, match="disagree"):
        pool.check([table])
