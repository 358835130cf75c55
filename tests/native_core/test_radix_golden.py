"""The radix tree against the committed log of SGLang 0.5.23's own tree core: lengths, slots and sizes, every operation.

The log's first line says how it was made; tests/engines/test_sglang_tree_parity.py makes it again.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from native_core.eviction import POLICIES
from native_core.radix_tree import RadixTree
from tests.native_core.radix_replay import replay

GOLDEN = Path(__file__).parent / "golden" / "sglang_radix_tree.jsonl"


@cache
def log() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Where the log is from, and its cases."""
    header, *cases = (json.loads(line) for line in GOLDEN.read_text().splitlines())
    return header, cases


def disagreements(tree: type[RadixTree]) -> list[int]:
    """The cases, by seed, in which this tree does anything else than SGLang's."""
    wrong = []
    for case in log()[1]:
        try:
            replay(case, tree)
        except (AssertionError, KeyError):
            wrong.append(case["seed"])
    return wrong


def test_every_operation_equals_sglangs() -> None:
    seen: Counter[str] = Counter()
    for case in log()[1]:
        seen.update(replay(case, check_every=1))
    # The log must reach what it is meant to show.
    assert seen["operations"] > 500
    assert seen["splits"] > 60
    assert seen["hits"] > 2000
    assert seen["evicted"] > 3000


def test_the_log_says_what_it_is_from_and_holds_every_page_size_and_policy() -> None:
    header, cases = log()
    assert (header["engine"], header["version"]) == ("sglang", "0.5.23")
    assert len(header["library_sha256"]) == 64
    assert {1, 16, 64} <= {case["page"] for case in cases if case["policy"] == "lru"}
    assert {case["policy"] for case in cases} == set(POLICIES)


def test_one_number_changed_in_the_log_is_seen() -> None:
    case = json.loads(json.dumps(log()[1][0]))
    case["log"][-1][-1] += 1
    with pytest.raises(AssertionError, match=f"operation {len(case['log']) - 1}"):
        replay(case)
