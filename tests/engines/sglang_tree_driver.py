"""Runs cases on SGLang's own tree core and prints each with the log of what the tree did, as JSON lines.

Run with the interpreter of an SGLang environment: `python sglang_tree_driver.py < cases.jsonl > logs.jsonl`. A log in
the input is left out and made again. The first line says from what the logs come.
The operations on a request are those of SGLang's `UnifiedRadixCache`: match and lock; insert, split at the prompt's
end, unlock the old node and lock the new one; unlock. Imports nothing of this repository.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import torch
from sglang_tree_core import Tree, library

COMMAND = "python -m tests.native_core.radix_cases | PYTHON_OF_SGLANG tests/engines/sglang_tree_driver.py"
# Ids that differ in one byte each, so that keys agree within a token.
TOKENS = {"0": 5, "1": 261, "2": 65541, "3": 16777221}


def key(text: str) -> array[int]:
    return array("q", [TOKENS[letter] for letter in text])


def runs(slots: torch.Tensor | list[torch.Tensor]) -> list[list[int]]:
    """Slots as [first, count] of each run of consecutive ones."""
    found: list[list[int]] = []
    for slot in torch.cat(slots).tolist() if isinstance(slots, list) and slots else list(slots):
        if found and sum(found[-1]) == slot:
            found[-1][1] += 1
        else:
            found.append([int(slot), 1])
    return found


class Run:
    """One case. A request is a dict: text, space, priority, row of slots, owned, counted, node, receipt."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.page = case["page"]
        self.tree = Tree(self.page, case["policy"])
        self.texts: list[str] = list(case["texts"])
        self.requests: dict[int, dict[str, Any]] = {}
        self.next_slot = 0

    def text(self, source: int, count: int, tail: str) -> str:
        return self.texts[source % len(self.texts)][:count] + tail

    def admit(self, name: int, source: list[Any], space: list[Any], priority: int) -> list[Any]:
        text, spaced = self.text(*source), (space[0], space[1])
        hit, node = self.tree.match(key(text[:-1]), spaced)
        row = self.tree.slots(node, spaced)
        self.requests[name] = {
            "prompt": text,
            "space": spaced,
            "priority": priority,
            "row": row,
            "owned": hit,
            "counted": 0,
            "node": node,
            "receipt": self.tree.lock(node),
        }
        return [hit, runs(row)]

    def touch(self, source: list[Any], space: list[Any]) -> list[Any]:
        return [self.tree.match(key(self.text(*source)), (space[0], space[1]))[0]]

    def publish(self, name: int, count: int, output: str, last: bool) -> list[Any]:
        request = self.requests[name]
        tree, space, priority = self.tree, request["space"], request["priority"]
        full = request["prompt"] + output
        whole = (
            max(count, request["owned"]) // self.page * self.page if not last else len(full) // self.page * self.page
        )
        new = max(whole - len(request["row"]), 0)
        fresh = torch.arange(self.next_slot, self.next_slot + new, dtype=torch.int64)
        self.next_slot += new
        row = torch.cat([request["row"], fresh])
        ids = key(full)[:whole]
        already, node, duplicates = tree.insert(ids, row[:whole], request["owned"], request["counted"], priority, space)
        prompt = len(request["prompt"]) // self.page * self.page
        if 0 < prompt < whole:
            tree.insert(ids[:prompt], row[:prompt], prompt, prompt, priority + 1, space)
        path = tree.slots(node, space)
        tree.unlock(request["node"], request["receipt"])
        if last:
            del self.requests[name]
            self.texts.append(full)
        else:
            request.update(row=torch.cat([path, row[whole:]]), owned=whole, counted=max(request["counted"], whole))
            request.update(node=node, receipt=tree.lock(node))
        return [already, runs(duplicates), runs(path)]

    def retract(self, name: int) -> list[Any]:
        request = self.requests.pop(name)
        self.tree.unlock(request["node"], request["receipt"])
        return []

    def evict(self, tokens: int) -> list[Any]:
        freed, slots = self.tree.evict(tokens)
        return [freed, runs(slots)]

    def reset(self) -> list[Any]:
        self.tree.core.reset()
        return []

    def log(self, operations: list[list[Any]]) -> list[list[Any]]:
        core, rows = self.tree.core, []
        for name, *arguments in operations:
            outcome = getattr(self, name)(*arguments)
            rows.append([*outcome, core.evictable_size(), core.protected_size()])
        core.sanity_check([], [])
        return rows


def main() -> None:
    print(
        json.dumps(
            {
                "engine": "sglang",
                "version": importlib.metadata.version("sglang"),
                "library": library().name,
                "library_sha256": hashlib.sha256(library().read_bytes()).hexdigest(),
                "command": COMMAND,
            }
        )
    )
    for line in sys.stdin:
        case = json.loads(line)
        if "operations" in case:
            case["log"] = Run(case).log(case["operations"])
            print(json.dumps(case, separators=(",", ":")))


if __name__ == "__main__":
    main()
