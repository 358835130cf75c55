"""Deliberate mistakes in the radix tree: each is caught by the test of the rule it breaks, and by the golden log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from native_core.radix_key import TOKEN_BYTES, Namespace
from native_core.radix_node import Node, Slots
from native_core.radix_tree import Inserted, RadixTree
from tests.native_core import test_radix_tree as rules
from tests.native_core.test_radix_golden import disagreements


class SharesAcrossNamespaces(RadixTree):
    def _descend(self, key: bytes, end: int, namespace: Namespace | None) -> tuple[Node, int]:
        return super()._descend(key, end, None)

    def _add_leaf(self, parent: Node, key: bytes, slots: Slots, namespace: Namespace | None, priority: int) -> Node:
        return super()._add_leaf(parent, key, slots, None, priority)


class MatchesHalfPages(RadixTree):
    def _aligned(self, key: bytes, limit: int | None) -> int:
        return len(key) if limit is None else min(len(key), max(limit, 0) * TOKEN_BYTES)


class SuffixKeepsItsAge(RadixTree):
    def _descend(self, key: bytes, end: int, namespace: Namespace | None) -> tuple[Node, int]:
        ages = {node: node.last_used for node in self.nodes()}
        node, matched = super()._descend(key, end, namespace)
        if node not in ages:
            for child in node.children.values():
                child.last_used = ages[child]
        return node, matched


class LeafOlderThanItsSibling(RadixTree):
    """The new leaf is stamped before the suffix that was split off beside it, not after."""

    def _add_leaf(self, parent: Node, key: bytes, slots: Slots, namespace: Namespace | None, priority: int) -> Node:
        self._clock -= 2
        leaf = super()._add_leaf(parent, key, slots, namespace, priority)
        self._clock += 2
        return leaf


class SplitLosesTheLock(RadixTree):
    def _split(self, child: Node, size: int) -> Node:
        upper = super()._split(child, size)
        upper.locks = 0
        return upper


class SplitIsANewNode(RadixTree):
    """Both parts of a split edge count as created now."""

    def _split(self, child: Node, size: int) -> Node:
        upper = super()._split(child, size)
        upper.created = child.created = self._clock
        return upper


class ParentsStay(RadixTree):
    def _queue(self, leaf: Node) -> None:
        if leaf.serial not in self.__dict__.setdefault("known", set()):
            self.__dict__["known"].add(leaf.serial)
            super()._queue(leaf)


class FreesWhatWasMatched(RadixTree):
    def insert(self, key: bytes, slots: Slots | None, **options: Any) -> Inserted:
        return super().insert(key, slots, **{**options, "owned": 0})


class NoSplitAtThePrompt(RadixTree):
    def publish(self, key: bytes, prompt_tokens: int, slots: Slots | None, **options: Any) -> Inserted:
        return self.insert(key, slots, **options)


class PromptCountsTwice(RadixTree):
    def insert(self, key: bytes, slots: Slots | None, **options: Any) -> Inserted:
        return super().insert(key, slots, **{**options, "counted": 0})


MISTAKES: list[tuple[type[RadixTree], Callable[..., None], dict[str, Any]]] = [
    (SharesAcrossNamespaces, rules.test_T1_namespaces_share_nothing, {}),
    (MatchesHalfPages, rules.test_T2_whole_pages_only, {"page": 16, "cached": 32}),
    (SuffixKeepsItsAge, rules.test_T4_a_split_refreshes_the_suffix_too, {}),
    (LeafOlderThanItsSibling, rules.test_T4_a_new_leaf_is_younger_than_the_suffix_split_off_beside_it, {}),
    (SplitLosesTheLock, rules.test_T5_a_split_below_a_lock_leaves_all_of_it_held, {}),
    (SplitIsANewNode, rules.test_T6_a_split_leaves_the_age_of_both_parts, {}),
    (ParentsStay, rules.test_T6_whole_leaves_go_and_then_their_parents, {}),
    (FreesWhatWasMatched, rules.test_T7_duplicates_go_back_but_not_what_was_matched, {}),
    (NoSplitAtThePrompt, rules.test_T8_output_can_go_without_its_prompt, {}),
    (PromptCountsTwice, rules.test_T8_the_split_counts_no_hit_and_raises_the_prompts_priority, {}),
]


@pytest.mark.parametrize(("mistake", "rule", "case"), MISTAKES, ids=[row[0].__name__ for row in MISTAKES])
def test_the_rules_own_test_catches_it(
    mistake: type[RadixTree], rule: Callable[..., None], case: dict[str, Any]
) -> None:
    rule(**case, trees=RadixTree)
    with pytest.raises(AssertionError):
        rule(**case, trees=mistake)


@pytest.mark.parametrize("mistake", [row[0] for row in MISTAKES], ids=lambda mistake: mistake.__name__)
def test_the_golden_log_catches_it(mistake: type[RadixTree]) -> None:
    assert disagreements(mistake)
