"""Memory as engines gave it out before paging: one contiguous range a sequence, reserved when it begins.

    contiguous    a sequence reserves the longest it may become
    power of two  a sequence reserves the next power of two of what it asks for (here: its prompt and answer)

First fit: the lowest hole that is large enough. Slots of one token each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """Slots of a policy at one moment. internal + held + free = slots."""

    policy: str
    held: int  # slots with a token in them
    internal: int  # allocated and empty
    free: int
    largest: int  # most slots that one sequence could get now
    refused: tuple[str, ...]  # sequences that found no room when they began

    @property
    def internal_share(self) -> float:
        """Of what is allocated."""
        allocated = self.held + self.internal
        return self.internal / allocated if allocated else 0.0

    @property
    def external_share(self) -> float:
        """Of what is free: what the largest single request cannot get."""
        return 1 - self.largest / self.free if self.free else 0.0


class Reservations:
    """A first-fit allocator of ranges."""

    def __init__(self, policy: str, slots: int) -> None:
        self.policy = policy
        self.slots = slots
        self._ranges: dict[str, tuple[int, int]] = {}  # sequence → (start, size)
        self._held: dict[str, int] = {}
        self._refused: list[str] = []

    def begin(self, name: str, size: int, tokens: int) -> bool:
        """Reserve `size` slots, of which `tokens` are filled. False where no hole is large enough."""
        for start, room in self._holes():
            if room >= size:
                self._ranges[name] = (start, size)
                self._held[name] = tokens
                return True
        self._refused.append(name)
        return False

    def grow(self, name: str, tokens: int) -> None:
        """Tokens more, inside what was reserved; one that was refused does not grow."""
        if name in self._ranges:
            self._held[name] += tokens
            assert self._held[name] <= self._ranges[name][1], f"{name} outgrew its reservation"

    def end(self, name: str) -> None:
        self._ranges.pop(name, None)
        self._held.pop(name, None)

    def usage(self) -> Usage:
        allocated = sum(size for _, size in self._ranges.values())
        held = sum(self._held.values())
        largest = max((room for _, room in self._holes()), default=0)
        return Usage(self.policy, held, allocated - held, self.slots - allocated, largest, tuple(self._refused))

    def owners(self) -> list[tuple[str, bool]]:
        """Per slot the sequence that reserved it ("" for none), and whether a token is in it."""
        row = [("", False)] * self.slots
        for name, (start, size) in self._ranges.items():
            for at in range(size):
                row[start + at] = (name, at < self._held[name])
        return row

    def _holes(self) -> list[tuple[int, int]]:
        holes, at = [], 0
        for start, size in sorted(self._ranges.values()):
            if start > at:
                holes.append((at, start - at))
            at = start + size
        if at < self.slots:
            holes.append((at, self.slots - at))
        return holes
