"""Random cases for the radix tree, as data: what an engine would do with it, without saying what comes of it.

A text is [which earlier text, how much of it, what follows], in letters 0 to 3. Few letters and shared beginnings
make keys that agree in part. `python -m tests.native_core.radix_cases` prints the cases of the golden log.
"""

from __future__ import annotations

import json
import random
from typing import Any

from native_core.eviction import POLICIES

SPACES: list[list[str | None]] = [[None, None], ["", None], [None, ""], ["a", None], [None, "a"], ["a", "b"]]


class Maker:
    def __init__(self, seed: int, page: int, policy: str, operations: int) -> None:
        self.rng = random.Random(seed)
        self.page = page
        self.letters = "0123"[: self.rng.choice([2, 3, 4])]
        self.scale = {1: 1, 4: 2, 16: 4, 64: 8}[page]
        self.texts = [self.letters_of(self.rng.choice([20, 60, 150]) * self.scale) for _ in range(3)]
        self.lengths = [len(text) for text in self.texts]
        self.spaces = SPACES if self.rng.random() < 0.25 else SPACES[:1]
        self.live: dict[int, list[int]] = {}  # request → [prompt length, tokens published]
        self.count = 0
        self.case: dict[str, Any] = {"seed": seed, "page": page, "policy": policy, "texts": self.texts}
        self.case["operations"] = [self.operation() for _ in range(operations)]

    def letters_of(self, count: int) -> str:
        return "".join(self.rng.choices(self.letters, k=count))

    def source(self) -> tuple[list[Any], int]:
        which = self.rng.randrange(len(self.lengths))
        whole = self.lengths[which]
        used = whole if self.rng.random() < 0.3 else self.rng.randrange(1, whole + 1)
        tail = self.letters_of(self.rng.choice([0, 0, 1, 5, self.page, self.rng.randrange(10 * self.scale)]))
        return [which, used, tail], used + len(tail)

    def operation(self) -> list[Any]:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.33:
            source, length = self.source()
            self.count += 1
            self.live[self.count] = [length, 0]
            return ["admit", self.count, source, rng.choice(self.spaces), rng.choice([0, 0, 0, 1, 2, -1])]
        if kind < 0.40:
            return ["touch", self.source()[0], rng.choice(self.spaces)]
        if kind < 0.80 and self.live:
            return self.progress()
        if 0.80 <= kind < 0.81 and not self.live:
            return ["reset"]
        return ["evict", rng.choice([0, 1, rng.randrange(1, 40 * self.scale), rng.randrange(1, 200 * self.scale)])]

    def progress(self) -> list[Any]:
        """A chunk, a whole prompt, some output, the end, or a retraction."""
        rng = self.rng
        name = rng.choice(list(self.live))
        length, published = self.live[name]
        kind = rng.random()
        if kind < 0.15:
            del self.live[name]
            return ["retract", name]
        if kind < 0.40:
            upto = rng.randrange(published, length + 1) if published < length else length
            self.live[name][1] = upto
            return ["publish", name, upto, "", False]
        output = self.letters_of(rng.choice([0, 1, rng.randrange(20 * self.scale), self.page]))
        del self.live[name]
        self.lengths.append(length + len(output))
        return ["publish", name, length + len(output), output, True]


def make_case(seed: int, *, operations: int, page: int | None = None, policy: str | None = None) -> dict[str, Any]:
    """The case of a seed: the page size, then the policy go round unless they are given."""
    pages = (1, 16, 64, 4)
    names = ["lru", *POLICIES]
    page = pages[seed % len(pages)] if page is None else page
    policy = names[seed // len(pages) % len(names)] if policy is None else policy
    return Maker(seed, page, policy, operations).case


if __name__ == "__main__":
    for number in range(3 + len(POLICIES)):
        print(json.dumps(make_case(number, operations=45, policy="lru" if number < 3 else list(POLICIES)[number - 3])))
    for number, chosen in enumerate((1, 16, 64)):
        print(json.dumps(make_case(100 + number, operations=45, page=chosen, policy="lru")))
