"""A node of the radix tree: one edge, the KV slots of its tokens, and what eviction goes by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from native_core.radix_key import Namespace

Slots = NDArray[np.int64]
Edge = bytes | tuple[Namespace, bytes]  # first page of an edge; below the root together with the namespace
NO_SLOTS: Slots = np.empty(0, np.int64)


class Node:
    """One edge of the tree and what hangs below it. Owned by the tree; callers hold it only as a handle to lock."""

    # fmt: off
    __slots__ = ("children", "created", "edge", "hits", "key", "last_used", "locks", "parent", "priority", "queued",
                 "serial", "slots")
    # fmt: on

    def __init__(self, key: bytes, slots: Slots, parent: Node | None, edge: Edge, serial: int, tick: int) -> None:
        self.key = key  # tokens of this edge, never empty but at the root
        self.slots = slots  # one a token; empty in a tree that does not track slots
        self.parent = parent  # None at the root and once evicted
        self.edge = edge  # under which the parent finds it
        self.children: dict[Edge, Node] = {}
        self.locks = 0  # holders at or below
        self.serial = serial
        self.last_used = tick
        self.created = tick
        self.hits = 0
        self.priority = 0
        self.queued = False  # has an entry in the heap, perhaps with an outdated rank
