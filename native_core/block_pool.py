"""The KV block pool: who owns which block, which blocks can be found again, which is reused next. Rules of vLLM 0.32.0.

Where a block is, and which call moves it:

                    take()                         register()
      ┌────────────────────────────▶ owned, unnamed ─────────▶ owned, named ◀───┐ touch(): one owner more
      │                              (references ≥ 1, no key)  (≥ 1, key) ──────┘ release(): one owner less
      │                                    │ release()              │ release(), last owner
      │                                    ▼                        ▼
      │   ┌───────────────── free queue: head … tail ──────────────────────────────────┐
      └───┤ free: no key; goes to the head (V13)      evictable: key; goes to the tail  │
          └─────────────────────────────────────────────────────┬──────────────────────┘
                take() from the head ends the key, only now (V12) │ touch(): a hit takes it out of the queue

The owners are requests: a block's reference count is the number of block tables that name it. Block 0 is the null
block and belongs to nobody (V11). used + evictable + free = num_blocks - 1 at all times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from native_core.prefix_ids import PrefixIds

NULL_BLOCK = 0
_NO_KEY = -1


class BlockPool:
    """Blocks 1 … num_blocks - 1, counted in blocks throughout.

    The free queue is a circular doubly linked list in two arrays, with index `num_blocks` as its sentinel: taking a
    hit block out of the middle costs the same as taking the head.
    """

    def __init__(self, num_blocks: int, prefix_ids: PrefixIds, *, unhashed_first: bool = True) -> None:
        """`unhashed_first`: freed blocks without a key go to the head of the queue, not to its tail (V13)."""
        if num_blocks < 2:
            raise ValueError(f"a pool of {num_blocks} blocks has none to give: block 0 is never used; take at least 2")
        self.num_blocks = num_blocks
        self.prefix_ids = prefix_ids
        self.evicted_blocks = 0  # keys lost to reuse since the start
        self._unhashed_first = unhashed_first
        self._references = [0] * num_blocks
        self._key = [_NO_KEY] * num_blocks  # prefix id under which a block is found
        self._first: dict[int, int] = {}  # prefix id → block that a look-up returns: the one registered first (V5)
        self._copies: dict[int, list[int]] = {}  # prefix id → further blocks of equal content, in order
        self._end = num_blocks
        self._next = [*range(1, num_blocks + 1), 1]
        self._previous = [num_blocks, num_blocks, *range(1, num_blocks)]
        self._queued = num_blocks - 1
        self._evictable = 0

    # -- figures

    @property
    def total(self) -> int:
        """Blocks that requests can own."""
        return self.num_blocks - 1

    @property
    def available(self) -> int:
        """Length of the free queue: free and evictable ones. vLLM's usage is 1 - available / total (V14)."""
        return self._queued

    @property
    def used(self) -> int:
        return self.num_blocks - 1 - self._queued

    @property
    def evictable(self) -> int:
        """Owned by nobody, but a look-up would still find them."""
        return self._evictable

    @property
    def free(self) -> int:
        """Owned by nobody and without content worth keeping."""
        return self._queued - self._evictable

    # -- look-up

    def find(self, chain: Sequence[int], limit: int) -> list[int]:
        """Blocks of the longest cached prefix: at most `limit`, ending before the first miss (V6)."""
        first = self._first
        found: list[int] = []
        for at in range(min(limit, len(chain))):
            block = first.get(chain[at])
            if block is None:
                break
            found.append(block)
        return found

    def count_unowned(self, blocks: Iterable[int]) -> int:
        """How many of these hits are in the free queue, so that touching them uses up available blocks (V16)."""
        references = self._references
        return sum(not references[block] for block in blocks)

    # -- ownership changes hands

    def take(self, count: int) -> list[int]:
        """`count` blocks from the head of the queue, for one owner. Only now do they lose their keys (V12)."""
        if count > self._queued:
            raise ValueError(f"{count} blocks wanted, {self._queued} available: check `available` first")
        taken: list[int] = []
        block = self._next[self._end]
        for _ in range(count):
            taken.append(block)
            self._references[block] = 1
            if self._key[block] != _NO_KEY:
                self._forget(block)
                self._evictable -= 1
                self.evicted_blocks += 1
            block = self._next[block]
        self._next[self._end] = block
        self._previous[block] = self._end
        self._queued -= count
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """One owner more for each of these hits."""
        for block in blocks:
            if not self._references[block]:
                before, after = self._previous[block], self._next[block]
                self._next[before] = after
                self._previous[after] = before
                self._queued -= 1
                self._evictable -= 1
            self._references[block] += 1

    def release(self, table: Sequence[int]) -> None:
        """One owner less for each block of a table, the last block first (V13).

        Of those that nobody owns any more the ones without a key go to the head of the queue and the others to its
        tail, both in that order: a sequence's tail is reused before its head.
        """
        nameless: list[int] = []
        named: list[int] = []
        for block in reversed(table):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._key[block] != _NO_KEY:
                named.append(block)
                self._evictable += 1
            elif self._unhashed_first:
                nameless.append(block)
            else:
                named.append(block)
        self._link(nameless, self._end)
        self._link(named, self._previous[self._end])

    def register(self, table: Sequence[int], chain: Sequence[int], start: int, end: int) -> None:
        """Make blocks start … end - 1 of a table findable. Equal content is not merged: the first one wins (V5)."""
        for at in range(start, end):
            block, prefix_id = table[at], chain[at]
            self._key[block] = prefix_id
            self.prefix_ids.hold(prefix_id)
            if prefix_id not in self._first:
                self._first[prefix_id] = block
            else:
                self._copies.setdefault(prefix_id, []).append(block)

    def forget(self, blocks: Iterable[int]) -> None:
        """Make owned blocks unfindable again, because nobody will fill them."""
        for block in blocks:
            assert self._references[block], "only an owner can tell that a block was not filled"
            self._forget(block)

    def reset(self) -> bool:
        """Forget all cached content; refused (False) while any block is owned. The queue keeps its order (V15)."""
        if self.used:
            return False
        for block, key in enumerate(self._key):
            if key != _NO_KEY:
                self._forget(block)
        self._evictable = 0
        return True

    def _link(self, blocks: Iterable[int], before: int) -> None:
        """Put blocks into the queue, in order, behind `before`."""
        after = self._next[before]
        for block in blocks:
            self._next[before] = block
            self._previous[block] = before
            before = block
            self._queued += 1
        self._next[before] = after
        self._previous[after] = before

    def _forget(self, block: int) -> None:
        """Take a block's key away; the copy registered next takes its place in look-ups."""
        prefix_id = self._key[block]
        self._key[block] = _NO_KEY
        copies = self._copies.get(prefix_id)
        if self._first[prefix_id] != block:
            assert copies is not None
            copies.remove(block)
        elif copies:
            self._first[prefix_id] = copies.pop(0)
        else:
            del self._first[prefix_id]
        if copies is not None and not copies:
            del self._copies[prefix_id]
        self.prefix_ids.drop(prefix_id)

    # -- for tests and for people

    def queue(self) -> list[int]:
        """The free queue from head (reused next) to tail."""
        order: list[int] = []
        block = self._next[self._end]
        while block != self._end:
            order.append(block)
            block = self._next[block]
        return order

    def named_blocks(self) -> dict[int, int]:
        """Block → prefix id, of all blocks that look-ups can find or that wait as copies."""
        return {block: key for block, key in enumerate(self._key) if key != _NO_KEY}

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """AssertionError unless every invariant holds, given the block tables of all requests that own blocks."""
        owners = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a table names a block twice"
            for block in table:
                owners[block] += 1
        assert owners[NULL_BLOCK] == 0, "a request owns the null block"
        assert owners == self._references, "reference counts differ from the tables"
        queue = self.queue()
        assert len(queue) == self._queued == len(set(queue)), "the free queue's length is wrong or it has a loop"
        assert set(queue) == {block for block in range(1, self.num_blocks) if not owners[block]}, "queue ≠ unowned"
        assert all(self._previous[self._next[block]] == block for block in [*queue, self._end]), "broken links"
        named = self.named_blocks()
        assert self._evictable == sum(block in named for block in queue), "the evictable count is wrong"
        listed = {block: key for key, block in self._first.items()}
        listed.update((block, key) for key, copies in self._copies.items() for block in copies)
        assert listed == named, "a block's key and the look-up table disagree"
        assert len(listed) == len(self._first) + sum(map(len, self._copies.values())), "a block is listed twice"
        assert all(key in self._first and copies for key, copies in self._copies.items()), "copies without a first"
