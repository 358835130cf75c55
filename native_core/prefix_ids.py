"""Exact identities of full blocks: a number for (all tokens before, these tokens), without hashes and collisions.

vLLM identifies a full block by H(hash of the block before, its tokens, extra keys), the cache salt being an extra key
of a request's first block only (V1, V2). Here the same equality is exact: equal (parent id, tokens) are interned to
one small number, and a salt is a root of its own, so that requests share an id exactly if they share every token up
to the block's end and the salt.

Who keeps an id alive (`uses` counts them):

    request ──holds──▶ deepest id of its chain ──parent──▶ … ──parent──▶ root
    block   ──key────▶ id under which look-ups find it

A parent outlives its children: when its block is evicted and computed anew by another request, it must get the same
number again, or its children, still cached, would be lost to look-ups that vLLM's hashes would still find.
"""

from __future__ import annotations

from array import array

ROOT = 0  # the empty prefix without a salt

_Key = tuple[int, bytes | str]  # (parent id, tokens as native 32-bit integers) or (ROOT, salt)


class PrefixIds:
    """The table of identities in use. An id that nothing reaches is dropped at once and its number used again."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ids: dict[_Key, int] = {}
        self._key: list[_Key] = [(ROOT, b"")]
        self._uses: list[int] = [1]  # the root stays
        self._unused: list[int] = []

    def __len__(self) -> int:
        """Identities alive, the root not counted."""
        return len(self._ids)

    def extend(self, chain: list[int], tokens: array[int], salt: str | None) -> None:
        """Append to `chain` the id of each full block of `tokens` that it lacks; the caller's hold moves to the last.

        A chain that was empty takes a new hold, if it gets an id at all. Give it back with `release(chain)`.
        """
        size = self._block_size
        first, last = len(chain), len(tokens) // size
        if first == last:
            return
        if chain:
            parent = chain[-1]
        elif salt is None:
            parent = ROOT
            self._uses[ROOT] += 1
        else:
            parent = self._intern((ROOT, salt))
        raw = tokens[first * size : last * size].tobytes()
        width = size * tokens.itemsize
        for at in range(0, len(raw), width):
            child = self._intern((parent, raw[at : at + width]))
            self._uses[parent] -= 1  # never the last use: the child is one
            chain.append(child)
            parent = child

    def release(self, chain: list[int]) -> None:
        """Give back the hold of a request that ends, and empty its chain."""
        if chain:
            self.drop(chain[-1])
            chain.clear()

    def hold(self, prefix_id: int) -> None:
        self._uses[prefix_id] += 1

    def drop(self, prefix_id: int) -> None:
        """Give back one use; the id and then its ancestors go as far as nothing else uses them."""
        uses = self._uses
        while True:
            uses[prefix_id] -= 1
            if uses[prefix_id]:
                return
            key = self._key[prefix_id]
            del self._ids[key]
            self._unused.append(prefix_id)
            prefix_id = key[0]

    def _intern(self, key: _Key) -> int:
        """The id of a key, with one more use. A new id is a use of its parent."""
        found = self._ids.get(key)
        if found is not None:
            self._uses[found] += 1
            return found
        self._uses[key[0]] += 1
        if self._unused:
            new = self._unused.pop()
            self._key[new] = key
            self._uses[new] = 1
        else:
            new = len(self._key)
            self._key.append(key)
            self._uses.append(1)
        self._ids[key] = new
        return new

    def check(self, holds: dict[int, int]) -> None:
        """AssertionError unless the uses are exactly `holds` (id → holders outside this table), children and root."""
        expected = dict(holds)
        expected[ROOT] = expected.get(ROOT, 0) + 1
        for key, prefix_id in self._ids.items():
            assert self._key[prefix_id] == key, f"prefix id {prefix_id} forgot its key"
            expected[key[0]] = expected.get(key[0], 0) + 1
        assert set(expected) == {ROOT, *self._ids.values()}, "a prefix id is alive that nothing reaches, or the reverse"
        for prefix_id, count in expected.items():
            assert self._uses[prefix_id] == count, f"prefix id {prefix_id}: {self._uses[prefix_id]} uses, not {count}"
        assert len(self._ids) + len(self._unused) + 1 == len(self._key), "prefix ids were lost"
