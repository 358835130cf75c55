"""The radix tree, rule by rule; the numbers are those of the module's docstrings and of SGLang 0.5.23.

Each test of a rule takes the class under test, so that test_radix_mistakes.py can hand it one with a mistake in it.
"""

from __future__ import annotations

import numpy as np
import pytest

from native_core.radix_key import Namespace, common_bytes, encode, namespace
from native_core.radix_tree import Inserted, RadixTree

Trees = type[RadixTree]


@pytest.fixture
def trees() -> Trees:
    return RadixTree


def insert(tree: RadixTree, ids: list[int], first_slot: int, space: Namespace | None = None) -> Inserted:
    return tree.insert(encode(ids), np.arange(first_slot, first_slot + len(ids)), namespace=space)


def shape(tree: RadixTree) -> list[tuple[int, ...]]:
    """The slots of every edge, in order: which tokens are cached, and where edges end."""
    return sorted(tuple(node.slots.tolist()) for node in tree.nodes())


def evicted(tree: RadixTree, tokens: int) -> list[list[int]]:
    return [slots.tolist() for slots in tree.evict(tokens).slots]


def test_T1_namespaces_share_nothing(trees: Trees) -> None:
    tree = trees()
    spaces = [None, namespace(""), namespace("a"), namespace(None, "a"), namespace("a", "b")]
    for number, space in enumerate(spaces):
        assert insert(tree, [1, 2, 3], 10 * number, space).already == 0
    for number, space in enumerate(spaces):
        found = tree.match(encode([1, 2, 4]), namespace=space)
        assert found.tokens == 2
        assert tree.slots(found.node).tolist() == [10 * number, 10 * number + 1]
    assert tree.match(encode([1, 2, 3]), namespace=namespace("b")).tokens == 0
    tree.check()


def test_T1_an_empty_salt_is_none_and_an_empty_extra_key_is_one() -> None:
    assert namespace(None, None) is namespace(None, "") is None
    assert namespace("", None) == namespace("", "") == Namespace("", None)


@pytest.mark.parametrize(("page", "cached"), [(1, 37), (16, 32), (64, 0)])
def test_T2_whole_pages_only(page: int, cached: int, trees: Trees) -> None:
    tree = trees(page)
    assert insert(tree, list(range(37)), 0).already == 0
    assert tree.evictable == cached
    assert tree.match(encode(range(37))).tokens == cached
    assert tree.match(encode(range(37)), limit=36).tokens == {1: 36, 16: 32, 64: 0}[page]
    # Seventeen equal tokens are one page of sixteen.
    assert tree.match(encode([*range(17), 99, *range(18, 40)])).tokens == {1: 17, 16: 16, 64: 0}[page]
    tree.check()


def test_T2_tokens_that_agree_in_some_bytes_are_different(trees: Trees) -> None:
    tree = trees()
    insert(tree, [7, 0x01010101], 0)
    assert tree.match(encode([7, 0x02010101])).tokens == 1


def test_T3_a_match_that_ends_inside_an_edge_splits_it(trees: Trees) -> None:
    tree = trees()
    insert(tree, [1, 2, 3, 4], 0)
    assert shape(tree) == [(0, 1, 2, 3)]
    assert tree.match(encode([1, 2, 9])).tokens == 2
    assert shape(tree) == [(0, 1), (2, 3)]
    assert tree.match(encode([1, 2, 3, 4]), limit=3).tokens == 3  # the limit ends inside an edge as well
    assert shape(tree) == [(0, 1), (2,), (3,)]
    tree.check()


def test_T3_an_insert_that_leaves_an_edge_splits_it(trees: Trees) -> None:
    tree = trees()
    insert(tree, [1, 2, 3, 4], 0)
    assert insert(tree, [1, 2, 5], 10).already == 2
    assert shape(tree) == [(0, 1), (2, 3), (12,)]
    tree.check()


def test_T4_a_split_refreshes_the_suffix_too(trees: Trees) -> None:
    """Whoever matches half of an old edge makes all of it young."""
    tree = trees()
    insert(tree, [1, 2, 3, 4], 0)
    insert(tree, [8, 9], 20)
    tree.match(encode([1, 2]))
    assert evicted(tree, 1) == [[20, 21]]


def test_T4_a_new_leaf_is_younger_than_the_suffix_split_off_beside_it(trees: Trees) -> None:
    tree = trees()
    insert(tree, [1, 2, 3], 0)
    insert(tree, [1, 2, 4], 10)
    assert evicted(tree, 2) == [[2], [12]]


def test_T4_a_match_makes_the_whole_path_young(trees: Trees) -> None:
    tree = trees()
    insert(tree, [1, 2], 0)
    insert(tree, [1, 2, 3], 0)
    insert(tree, [8, 9], 20)
    tree.match(encode([1, 2, 3]))
    # The leaf [3] goes with its path young: [8 9] is older than both, though its parent edge was made first.
    assert evicted(tree, 4) == [[20, 21], [2], [0, 1]]


def test_T5_a_lock_holds_the_whole_path(trees: Trees) -> None:
    tree = trees()
    insert(tree, [1, 2], 0)
    insert(tree, [1, 2, 3], 0)
    insert(tree, [1, 2, 4], 10)
    node = tree.match(encode([1, 2, 3])).node
    tree.lock(node)
    assert (tree.evictable, tree.protected) == (1, 3)
    tree.lock(node)
    assert (tree.evictable, tree.protected) == (1, 3)  # tokens move at the first lock only
    tree.check([node, node])
    assert evicted(tree, 100) == [[12]]
    tree.unlock(node)
    assert (tree.evictable, tree.protected) == (0, 3)
    tree.unlock(node)
    assert (tree.evictable, tree.protected) == (3, 0)
    assert evicted(tree, 100) == [[2], [0, 1]]


def test_T5_a_split_below_a_lock_leaves_all_of_it_held(trees: Trees) -> None:
    tree = trees()
    insert(tree, [1, 2, 3, 4], 0)
    node = tree.match(encode([1, 2, 3, 4])).node
    tree.lock(node)
    tree.match(encode([1, 2]))
    assert (tree.evictable, tree.protected) == (0, 4)
    tree.check([node])
    assert tree.evict(100).tokens == 0
    tree.unlock(node)
    assert (tree.evictable, tree.protected) == (4, 0)
    tree.check()


def test_T5_an_unlock_too_many_is_refused() -> None:
    tree = RadixTree()
    node = insert(tree, [1, 2], 0).node
    tree.lock(node)
    tree.unlock(node)
    with pytest.raises(ValueError, match="unlock without a lock"):
        tree.unlock(node)
    tree.check()


def test_T6_whole_leaves_go_and_then_their_parents(trees: Trees) -> None:
    tree = trees()
    insert(tree, [1, 2, 3], 0)
    insert(tree, [1, 2, 4, 5], 10)
    insert(tree, [8, 9], 20)
    assert evicted(tree, 0) == []
    assert evicted(tree, 2) == [[2], [12, 13]]  # three tokens for two: leaves are not cut
    assert evicted(tree, 2) == [[0, 1]]  # the parent is older than [8 9] and a leaf by now
    assert tree.evict(100).tokens == 2
    assert tree.evictable == 0
    tree.check()


ORDERS = {
    # Inserted a, b, c; then b once more; then a was matched. c has the highest priority, a the lowest.
    "lru": "cba",
    "mru": "abc",
    "fifo": "abc",
    "filo": "cba",
    "lfu": "cab",
    "slru": "cab",
    "priority": "abc",
}


@pytest.mark.parametrize("policy", ORDERS)
def test_T6_each_policy_has_its_order(policy: str, trees: Trees) -> None:
    tree = trees(policy=policy)
    for name, priority in (("a", 0), ("b", 1), ("c", 2), ("b", 1)):
        tree.insert(encode([ord(name)]), np.array([ord(name)]), priority=priority)
    tree.match(encode([ord("a")]))
    assert "".join(chr(slot) for [slot] in evicted(tree, 3)) == ORDERS[policy]


def test_T6_a_split_leaves_the_age_of_both_parts(trees: Trees) -> None:
    """fifo: a match, however late, makes no edge younger, nor does the split that it causes."""
    tree = trees(policy="fifo")
    insert(tree, [1, 2, 3], 0)
    insert(tree, [8, 9], 20)
    tree.match(encode([1, 2]))
    assert evicted(tree, 5) == [[2], [0, 1], [20, 21]]


def test_T7_duplicates_go_back_but_not_what_was_matched(trees: Trees) -> None:
    """Two requests matched one token and computed the same three: the second one's copies are of no use."""
    tree = trees()
    insert(tree, [1], 0)
    first = tree.insert(encode([1, 2, 3, 4]), np.array([0, 11, 12, 13]), owned=1)
    second = tree.insert(encode([1, 2, 3, 4, 5]), np.array([0, 21, 22, 23, 24]), owned=1)
    assert (first.already, first.duplicates.tolist()) == (1, [])
    assert (second.already, second.duplicates.tolist()) == (4, [21, 22, 23])
    assert tree.slots(second.node).tolist() == [0, 11, 12, 13, 24]
    tree.check()


def test_T8_output_can_go_without_its_prompt(trees: Trees) -> None:
    tree = trees()
    done = tree.publish(encode([1, 2, 3, 4, 5]), 3, np.arange(5))
    assert (done.already, done.duplicates.tolist()) == (0, [])
    assert shape(tree) == [(0, 1, 2), (3, 4)]
    assert tree.slots(done.node).tolist() == [0, 1, 2, 3, 4]
    assert evicted(tree, 1) == [[3, 4]]
    assert tree.match(encode([1, 2, 3, 4])).tokens == 3
    tree.check()


def test_T8_the_split_lies_on_a_page(trees: Trees) -> None:
    tree = trees(16)
    tree.publish(encode(range(70)), 40, np.arange(70))
    assert [len(slots) for slots in shape(tree)] == [32, 32]
    tree.publish(encode(range(100, 140)), 39, np.arange(100, 140))  # prompt and all end in the same page: no split
    assert [len(slots) for slots in shape(tree)] == [32, 32, 32]


def test_T8_the_split_counts_no_hit_and_raises_the_prompts_priority(trees: Trees) -> None:
    tree = trees(policy="lfu")
    tree.publish(encode([1, 2, 3]), 2, np.arange(3), priority=4)
    assert [(len(node.key) // 4, node.hits, node.priority) for node in tree.nodes()] == [(2, 1, 5), (1, 1, 4)]


def test_T9_usage_counts_neither_free_nor_evictable_slots() -> None:
    tree = RadixTree()
    held, _ = insert(tree, [1, 2, 3], 0), insert(tree, [9] * 17, 10)
    tree.lock(held.node)
    # 100 slots: 20 in the tree, of them 17 evictable; a request holds 10 of its own; 70 are free.
    assert tree.token_usage(100, 70) == pytest.approx(0.13)


def test_S22_a_reset_forgets_everything() -> None:
    tree = RadixTree(policy="lfu")
    insert(tree, [1, 2, 3], 0)
    tree.reset()
    assert tree.match(encode([1, 2, 3])).tokens == 0
    assert (tree.evictable, tree.protected, evicted(tree, 9)) == (0, 0, [])
    tree.check()


def test_S22_a_reset_is_refused_while_something_is_locked() -> None:
    tree = RadixTree()
    node = insert(tree, [1, 2, 3], 0).node
    tree.lock(node)
    with pytest.raises(ValueError, match="3 tokens are locked"):
        tree.reset()
    tree.check([node])


def test_a_node_that_was_evicted_cannot_be_locked() -> None:
    tree = RadixTree()
    node = insert(tree, [1, 2, 3], 0).node
    tree.evict(1)
    with pytest.raises(ValueError, match="was evicted"):
        tree.lock(node)
    tree.lock(tree.root)  # what a match of nothing gives
    tree.unlock(tree.root)
    tree.check()


def test_use_alone_makes_the_heap_no_longer() -> None:
    """Each candidate has one entry, however often it is used: a server that never evicts must not grow."""
    tree = RadixTree()
    for first in range(20):
        insert(tree, [first, 1, 2], 10 * first)
    for turn in range(2000):
        node = tree.match(encode([turn % 20, 1, 2])).node
        tree.lock(node)
        tree.unlock(node)
    assert len(tree._heap) == 20
    tree.check()


def test_a_tree_of_lengths_only_counts_alike() -> None:
    lengths, slots = RadixTree(track_slots=False), RadixTree()
    for ids in ([1, 2, 3], [1, 2, 4, 5], [6]):
        assert lengths.insert(encode(ids), None).already == slots.insert(encode(ids), np.arange(len(ids))).already
    assert lengths.evict(2).tokens == slots.evict(2).tokens == 3
    lengths.check()


def test_the_trees_slots_are_its_own() -> None:
    """A row that is written to later, or an answer that is, changes nothing in the tree."""
    tree, row = RadixTree(), np.arange(3)
    node = tree.insert(encode([1, 2, 3]), row).node
    row[:] = -1
    tree.slots(node)[:] = -1
    assert tree.slots(node).tolist() == [0, 1, 2]


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="as many slots"):
        RadixTree().insert(encode([1, 2]), np.arange(1))
    with pytest.raises(ValueError, match="as many slots"):
        RadixTree().insert(encode([1, 2]), None)
    with pytest.raises(ValueError, match="take one of lru, lfu"):
        RadixTree(policy="tlru")
    with pytest.raises(ValueError, match="at least 1"):
        RadixTree(0)
    with pytest.raises(ValueError, match="below 2"):
        encode([1, 2**31])
    with pytest.raises(ValueError, match="below 2"):
        encode([1, 2.5])  # type: ignore[list-item]


@pytest.mark.parametrize("length", [1, 3, 15, 16, 17, 100, 1000])
def test_the_common_part_is_found_wherever_it_ends(length: int) -> None:
    edge = bytes(range(256)) * 4
    for agree in {0, 1, length // 2, length - 1, length}:
        key = b"??" + edge[:agree] + bytes(255 - byte for byte in edge[agree:])
        assert common_bytes(edge, key, 2, length) == agree
