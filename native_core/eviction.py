"""Which leaf of the radix tree goes next. Rules of SGLang 0.5.23, `--radix-eviction-policy` (T6).

A policy is one number or tuple per leaf, its rank: the leaf with the lowest rank goes first. Each rank below was
compared with SGLang's own tree core, operation by operation (tests/engines/test_sglang_tree_parity.py).
Not here: `tlru`, which also needs a time budget and an expected next prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

SLRU_PROTECTED_HITS = 2  # slru_protected_threshold's default in SGLang 0.5.23


class Leaf(Protocol):
    """What a policy may look at."""

    last_used: int  # tick of the logical clock
    created: int  # tick; a split leaves it as it was
    hits: int  # inserts that passed through or ended here, the first one included
    priority: int  # the highest of all inserts that passed through


@dataclass(frozen=True)
class EvictionPolicy:
    """`rank` orders leaves. `rising`: no use of a leaf ever lowers its rank, so an old rank is a lower bound."""

    name: str
    rank: Callable[[Leaf], Any]
    words: str
    rising: bool = True
    grade: str = "code-parity"


_ALL = (
    EvictionPolicy("lru", lambda leaf: leaf.last_used, "least recently matched or inserted first"),
    EvictionPolicy("lfu", lambda leaf: (leaf.hits, leaf.last_used), "fewest inserts first, then least recent"),
    EvictionPolicy("fifo", lambda leaf: leaf.created, "oldest first, however often it was used"),
    EvictionPolicy("filo", lambda leaf: -leaf.created, "newest first"),
    EvictionPolicy("mru", lambda leaf: -leaf.last_used, "most recently used first", rising=False),
    EvictionPolicy("priority", lambda leaf: (leaf.priority, leaf.last_used), "lowest priority first, then lru"),
    EvictionPolicy(
        "slru",
        lambda leaf: (leaf.hits >= SLRU_PROTECTED_HITS, leaf.last_used),
        "leaves with fewer than two inserts first, then lru",
    ),
)
POLICIES = {policy.name: policy for policy in _ALL}


def eviction_policy(name: str) -> EvictionPolicy:
    """The policy called `name`; ValueError if there is none."""
    policy = POLICIES.get(name)
    if policy is None:
        raise ValueError(f"no eviction policy is called {name!r}: take one of {', '.join(POLICIES)}")
    return policy
