"""The radix tree of SGLang: which prefix is cached, in which KV slots, who holds it, what goes next.

Rules T1 … T9 are those of SGLang 0.5.23's default cache (the unified tree with its Rust core, full attention alone).
`tests/engines/test_sglang_tree_parity.py` runs both side by side; lengths, slots and sizes are the same.

An edge is a run of tokens, and its slots are the KV slots that hold them. Who owns the slots of a request's row, and
which call moves them; every boundary lies on a page:

    token   0           owned             already               pages end      end of the request
            │  tree, and   │ request: computed │ request: computed  │ request: not a   │
    before  │ locked by it │ though the tree   │ and new to the     │ whole page yet   │
            │              │ has them by now   │ tree               │                  │
            ├──────────────┼───────────────────┼────────────────────┼──────────────────┤
    insert  │    tree      │ `duplicates`: go  │ tree               │ request: frees   │
            │              │ back to the caller│ (copied into it)   │ them at its end  │

    evict() hands the slots of whole leaves back to the caller. A leaf goes only when no lock holds it:

    protected (a lock at or below the node) ◀── lock() ── unlock() ──▶ evictable ── evict() ──▶ the caller's free list

evictable + protected = all tokens in the tree, at all times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from native_core.eviction import eviction_policy
from native_core.radix_key import TOKEN_BYTES, Namespace, common_bytes
from native_core.radix_node import NO_SLOTS, Edge, Node, Slots


class Match(NamedTuple):
    """`tokens` of a prompt are cached; they end with `node`, which is what a request that uses them locks."""

    node: Node
    tokens: int


class Inserted(NamedTuple):
    """`already` tokens were there. `duplicates`: slots of the caller's that the tree has no use for; free them (T7)."""

    node: Node
    already: int
    duplicates: Slots


class Evicted(NamedTuple):
    """Tokens freed, and their slots leaf by leaf; the slots belong to the caller again."""

    tokens: int
    slots: list[Slots]


class RadixTree:
    """Sizes and lengths in tokens, keys in bytes (`encode`).

    Of the clock only the order of ticks matters, and only among leaves. SGLang stamps an ancestor 1e-5 before its
    child; here a path gets one tick, which orders leaves alike: no node is a leaf before its child is gone (T4).
    """

    def __init__(self, page_size: int = 1, policy: str = "lru", *, track_slots: bool = True) -> None:
        """`track_slots=False`: a tree of lengths only, for predictions that have no KV."""
        if page_size < 1:
            raise ValueError(f"a page of {page_size} tokens holds nothing: take at least 1")
        self.page_size = page_size
        self.policy = eviction_policy(policy)
        self.track_slots = track_slots
        self.protected = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything, nodes given out before included: ValueError while one is locked (S22: only when idle)."""
        if self.protected:
            raise ValueError(f"{self.protected} tokens are locked: unlock them before the tree is reset")
        self._page = self.page_size * TOKEN_BYTES
        self._clock = 0
        self._serial = 0
        self._heap: list[tuple[Any, int, Node]] = []
        self.evictable = 0
        self.protected = 0
        self.root = Node(b"", NO_SLOTS, None, b"", 0, 0)

    # -- look-up

    def match(self, key: bytes, limit: int | None = None, namespace: Namespace | None = None) -> Match:
        """The longest cached prefix, in whole pages, of at most `limit` tokens (S1: one less than the prompt has).

        Where it ends inside an edge, that edge is split (T3). The whole path counts as used now (T4).
        """
        node, matched = self._descend(key, self._aligned(key, limit), namespace)
        return Match(node, matched // TOKEN_BYTES)

    def slots(self, node: Node) -> Slots:
        """The slots of the path from the root to `node`, in token order."""
        parts: list[Slots] = []
        while node.parent is not None:
            parts.append(node.slots)
            node = node.parent
        if len(parts) == 1:
            return parts[0].copy()  # the tree's own array stays inside
        return np.concatenate(parts[::-1]) if parts else NO_SLOTS

    def token_usage(self, total: int, available: int) -> float:
        """SGLang's `token_usage`: the share of `total` slots that is neither free nor evictable (T9)."""
        return (total - available - self.evictable) / total

    # -- ownership changes hands

    def insert(
        self,
        key: bytes,
        slots: Slots | None,
        *,
        owned: int = 0,
        counted: int = 0,
        priority: int = 0,
        namespace: Namespace | None = None,
    ) -> Inserted:
        """Give the tree the whole pages of `key`, which lie in `slots` (at least one a token of these pages).

        `owned`: so many leading slots are the tree's own already, from the match (T7). `counted`: tokens that this
        request inserted before; edges that end within them get no further hit.
        """
        end = self._aligned(key, None)
        if self.track_slots and (slots is None or len(slots) < end // TOKEN_BYTES):
            have = 0 if slots is None else len(slots)
            raise ValueError(f"{end // TOKEN_BYTES} tokens need as many slots, {have} given: pass the request's row")
        node, matched = self._descend(key, end, namespace)
        self._credit(node, matched, counted * TOKEN_BYTES, priority)
        already = matched // TOKEN_BYTES
        if matched < end:
            new = NO_SLOTS if slots is None else slots[already : end // TOKEN_BYTES].copy()
            node = self._add_leaf(node, key[matched:end], new, namespace, priority)
            node.hits += end > counted * TOKEN_BYTES
        duplicates = NO_SLOTS if slots is None or owned >= already else slots[owned:already].copy()
        return Inserted(node, already, duplicates)

    def publish(
        self,
        key: bytes,
        prompt_tokens: int,
        slots: Slots | None,
        *,
        owned: int = 0,
        counted: int = 0,
        priority: int = 0,
        namespace: Namespace | None = None,
    ) -> Inserted:
        """What SGLang does with a request's tokens: insert, and split the edge where the prompt ends (T8).

        Output can then be evicted without its prompt. The split is a second insert, of the prompt with priority + 1;
        it counts no hit and returns no slot, for all of it is the tree's by then.
        """
        done = self.insert(key, slots, owned=owned, counted=counted, priority=priority, namespace=namespace)
        prompt = self._aligned(key, prompt_tokens)
        if 0 < prompt < self._aligned(key, None):
            tokens = prompt // TOKEN_BYTES
            self.insert(key[:prompt], slots, owned=tokens, counted=tokens, priority=priority + 1, namespace=namespace)
        return done

    def lock(self, node: Node) -> None:
        """Hold the path to `node`: nothing evicts it until as many `unlock` calls (T5). ValueError if it is gone."""
        if node.parent is None and node is not self.root:
            raise ValueError("the node was evicted since it was matched: lock it before anything else is evicted")
        while node.parent is not None:
            if not node.locks:
                size = len(node.key) // TOKEN_BYTES
                self.evictable -= size
                self.protected += size
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Give one hold of the path to `node` back. ValueError if there is none."""
        if not node.locks and node is not self.root:
            raise ValueError("unlock without a lock: each lock is given back once, with the node that was locked")
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                size = len(node.key) // TOKEN_BYTES
                self.evictable += size
                self.protected -= size
                if not node.children:
                    self._queue(node)
            node = node.parent

    def evict(self, tokens: int) -> Evicted:
        """Free at least `tokens` if so many are evictable: whole leaves in the policy's order, so often more (T6).

        A parent joins the candidates when its last child went.
        """
        if not self.policy.rising:
            self._rebuild_heap()
        rank, heap = self.policy.rank, self._heap
        freed, slots = 0, []
        while freed < tokens and heap:
            ranked, _, node = heapq.heappop(heap)
            node.queued = False
            parent = node.parent
            if parent is None or node.locks or node.children:
                continue  # evicted, held or a parent since it was queued; it comes back by itself
            if rank(node) != ranked:
                self._queue(node)  # used since: back to where it belongs now
                continue
            freed += len(node.key) // TOKEN_BYTES
            slots.append(node.slots)
            del parent.children[node.edge]
            node.parent = None
            if not parent.children and not parent.locks and parent is not self.root:
                self._queue(parent)
        self.evictable -= freed
        return Evicted(freed, slots)

    # -- inside

    def _aligned(self, key: bytes, limit: int | None) -> int:
        """Bytes of the whole pages among the first `limit` tokens of `key` (T2)."""
        end = len(key) if limit is None else min(len(key), max(limit, 0) * TOKEN_BYTES)
        return end - end % self._page

    def _descend(self, key: bytes, end: int, namespace: Namespace | None) -> tuple[Node, int]:
        """The node at which the cached part of key[:end] ends, and its length in bytes; stamps the path."""
        self._clock += 1
        tick, page = self._clock, self._page
        node, at = self.root, 0
        if not end:
            return node, at
        child = node.children.get(_top_edge(key[:page], namespace))
        while child is not None:
            size = len(child.key)
            child.last_used = tick
            if size > end - at or not key.startswith(child.key, at):
                shared = common_bytes(child.key, key, at, min(size, end - at))
                shared -= shared % page
                return self._split(child, shared), at + shared
            node = child
            at += size
            if at == end:
                break
            child = node.children.get(key[at : at + page])
        return node, at

    def _split(self, child: Node, size: int) -> Node:
        """Cut an edge after `size` bytes; the new upper part is returned, the lower one keeps its identity (T3, T4).

        The upper part takes over locks, hits, priority and age. Both count as used now, the lower part as well.
        """
        parent = child.parent
        assert parent is not None
        tokens = size // TOKEN_BYTES
        self._serial += 1
        upper = Node(child.key[:size], child.slots[:tokens].copy(), parent, child.edge, self._serial, child.last_used)
        upper.locks, upper.hits, upper.priority, upper.created = child.locks, child.hits, child.priority, child.created
        parent.children[child.edge] = upper
        child.key, child.slots = child.key[size:], child.slots[tokens:].copy()
        child.parent, child.edge = upper, child.key[: self._page]
        upper.children[child.edge] = child
        return upper

    def _add_leaf(self, parent: Node, key: bytes, slots: Slots, namespace: Namespace | None, priority: int) -> Node:
        self._clock += 1  # newer than a suffix that was split off beside it
        self._serial += 1
        first = key[: self._page]
        edge = _top_edge(first, namespace) if parent is self.root else first
        leaf = Node(key, slots, parent, edge, self._serial, self._clock)
        leaf.priority = priority
        parent.children[edge] = leaf
        self.evictable += len(key) // TOKEN_BYTES
        self._queue(leaf)
        return leaf

    def _credit(self, node: Node, end: int, counted: int, priority: int) -> None:
        """An insert passed through the path to `node`, which ends at byte `end`."""
        while node.parent is not None:
            if priority > node.priority:
                node.priority = priority
            if end > counted:
                node.hits += 1
            end -= len(node.key)
            node = node.parent

    def _queue(self, leaf: Node) -> None:
        """Make a leaf a candidate for eviction. It keeps one entry, whose rank is put right when it is popped."""
        if not leaf.queued:
            leaf.queued = True
            heapq.heappush(self._heap, (self.policy.rank(leaf), leaf.serial, leaf))

    def _rebuild_heap(self) -> None:
        """For ranks that use can lower: an entry is then no lower bound any more. Costs a walk through the tree."""
        for _, _, node in self._heap:
            node.queued = False
        self._heap.clear()
        for node in self.nodes():
            if not node.children and not node.locks:
                self._queue(node)

    # -- for tests and for people

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents before their children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self, held: Iterable[Node] = ()) -> None:
        """AssertionError unless every invariant holds, given the node of each lock that is held."""
        locks: dict[int, int] = {}
        for holder in held:
            node = holder
            while node.parent is not None:
                locks[node.serial] = locks.get(node.serial, 0) + 1
                node = node.parent
            assert node is self.root, "a lock is held on a node that was evicted"
        sizes = {False: 0, True: 0}
        slots: list[Slots] = []
        entries = {node.serial: rank for rank, _, node in self._heap if node.queued}
        for node in self.nodes():
            assert node.locks == locks.get(node.serial, 0), "a lock count differs from the locks that are held"
            self._check_node(node)
            sizes[node.locks > 0] += len(node.key) // TOKEN_BYTES
            slots.append(node.slots)
            if not node.children and not node.locks:
                assert node.serial in entries, "an evictable leaf is no candidate"
                assert not self.policy.rising or entries[node.serial] <= self.policy.rank(node), "a rank fell"
        assert sizes[False] == self.evictable, f"evictable is {self.evictable}, the tree has {sizes[False]}"
        assert sizes[True] == self.protected, f"protected is {self.protected}, the tree has {sizes[True]}"
        joined = np.concatenate(slots) if slots else NO_SLOTS
        assert len(np.unique(joined)) == len(joined), "a slot is in the tree twice"

    def _check_node(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        assert parent.children.get(node.edge) is node, "parent and child disagree"
        first = node.edge if isinstance(node.edge, bytes) else node.edge[1]
        assert node.key[: self._page] == first, "an edge is filed under another's first page"
        assert isinstance(node.edge, bytes) or parent is self.root, "a namespace begins below the root"
        assert len(node.key) // self._page * self._page == len(node.key) > 0, "an edge is not whole pages"
        assert len(node.slots) == (len(node.key) // TOKEN_BYTES if self.track_slots else 0), "slots and tokens differ"
        assert parent is self.root or parent.priority >= node.priority, "an insert missed an ancestor's priority"
        assert parent is self.root or parent.locks >= node.locks, "a lock does not reach the root"


def _top_edge(first_page: bytes, namespace: Namespace | None) -> Edge:
    """Below the root, edges of different namespaces are told apart; further down the path has done it."""
    return first_page if namespace is None else (namespace, first_page)
