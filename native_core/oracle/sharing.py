"""What each prompt can find in a cache that forgets nothing, from contents and from what must precede what.

A request offers the blocks that it leaves: prompt and answer but for the last token, which is never computed (V9).

    low   longest prefix offered by a request that has surely ended before this one is sent
    high  longest prefix offered by any request that does not surely come after it

bound an engine's hits whatever its scheduler does, as long as nothing is evicted. Where they are equal the hits do not
depend on the order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from native_core.oracle.load import RequestLike, in_flight
from native_core.oracle.load import WorkloadLike as Workload
from native_core.prefix_ids import PrefixIds

MOST_REQUESTS = 4096  # beyond it the order is not looked into: the sets of predecessors grow with the square


@dataclass(frozen=True)
class Bounds:
    """Tokens in whole blocks per request; `footprint` in blocks: what all requests own if only `low` is shared."""

    low: list[int]
    high: list[int]
    footprint: int
    at_most: int  # tokens of all requests together: somebody has to compute what nobody has computed before
    in_turn: bool  # the workload leaves no choice of order: each request is sent when all before it have ended


@dataclass(frozen=True)
class Contents:
    """Prompts and answers of a workload, in its order, as token ids."""

    prompts: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]
    salts: Sequence[str | None]

    @classmethod
    def of(cls, workload: Workload, prompts: Sequence[Sequence[int]], answers: Mapping[str, Sequence[int]]) -> Contents:
        rows = workload.requests
        return cls(prompts, [answers[row.request_id] for row in rows], [row.adapter for row in rows])


def bounds(contents: Contents, before: Sequence[int] | None, block: int) -> Bounds:
    """`before`: for each request the set of those that surely ended before it is sent, as bits; None: not known."""
    chains = _chains(contents, block)
    if before is None:
        return _unordered(contents, chains, block)
    offers: dict[int, int] = {}
    for index, chain in enumerate(chains):
        for node in chain:
            offers[node] = offers.get(node, 0) | 1 << index
    low, high = [], []
    for index, chain in enumerate(chains):
        limit = (len(contents.prompts[index]) - 1) // block
        certain = 0
        while certain < limit and offers[chain[certain]] & before[index]:
            certain += 1
        possible = certain
        while possible < limit and _someone(offers[chain[possible]] & ~(1 << index), index, before):
            possible += 1
        low.append(certain * block)
        high.append(possible * block)
    return Bounds(
        low, high, _footprint(contents, low, block), _at_most(contents, chains, high, block), _in_turn(before)
    )


def _unordered(contents: Contents, chains: Sequence[Sequence[int]], block: int) -> Bounds:
    """Nothing is certain; possible is what any other request offers."""
    offered = Counter(node for chain in chains for node in chain)
    high = []
    for prompt, chain in zip(contents.prompts, chains, strict=True):
        limit = (len(prompt) - 1) // block
        possible = 0
        while possible < limit and offered[chain[possible]] > 1:
            possible += 1
        high.append(possible * block)
    low = [0] * len(chains)
    return Bounds(low, high, _footprint(contents, low, block), _at_most(contents, chains, high, block), False)


def _footprint(contents: Contents, low: Sequence[int], block: int) -> int:
    sizes = (len(prompt) + len(answer) for prompt, answer in zip(contents.prompts, contents.answers, strict=True))
    return sum(-(-size // block) - certain // block for size, certain in zip(sizes, low, strict=True))


def _at_most(contents: Contents, chains: Sequence[Sequence[int]], high: Sequence[int], block: int) -> int:
    """Tokens. Of the requests that look a block up, one must miss it, unless others leave it that do not look it up."""
    offered = Counter(node for chain in chains for node in chain)
    asked: Counter[int] = Counter()
    possible: Counter[int] = Counter()
    for prompt, chain, most in zip(contents.prompts, chains, high, strict=True):
        asked.update(chain[: (len(prompt) - 1) // block])
        possible.update(chain[: most // block])
    return block * sum(min(hits, asked[node] - (offered[node] == asked[node])) for node, hits in possible.items())


def _chains(contents: Contents, block: int) -> list[list[int]]:
    """Identities of the full blocks that each request leaves."""
    ids = PrefixIds(block)
    chains: list[list[int]] = []
    for prompt, answer, salt in zip(contents.prompts, contents.answers, contents.salts, strict=True):
        chain: list[int] = []
        tokens = array("i", prompt)
        tokens.extend(answer[:-1])
        ids.extend(chain, tokens, salt)
        chains.append(chain)
    return chains


def _someone(offering: int, index: int, before: Sequence[int]) -> bool:
    """Whether any request of a set may be computed before request `index` is looked up."""
    while offering:
        lowest = offering & -offering
        if not before[lowest.bit_length() - 1] >> index & 1:
            return True
        offering ^= lowest
    return False


def _in_turn(before: Sequence[int]) -> bool:
    return sorted(known.bit_count() for known in before) == list(range(len(before)))


def predecessors(workload: Workload, finished: Sequence[str]) -> list[int] | None:
    """For each request, as bits, those that have surely ended before it is sent. None for very large workloads.

    One in flight: everything that went before, in the order `finished` of any schedule. Otherwise only `after` is
    sure, and what it implies.
    """
    rows = workload.requests
    if len(rows) > MOST_REQUESTS:
        return None
    places = {row.request_id: index for index, row in enumerate(rows)}
    if in_flight(workload.load) == 1 and workload.load.mode != "sessions":
        before, gone = [0] * len(rows), 0
        for request_id in finished:
            before[places[request_id]] = gone
            gone |= 1 << places[request_id]
        return before
    known = _through_after(rows, places, finished)
    if in_flight(workload.load) == 1:
        _add_sessions(rows, known)
    return known


def _through_after(rows: Sequence[RequestLike], places: Mapping[str, int], finished: Sequence[str]) -> list[int]:
    before = [0] * len(rows)
    for request_id in finished:  # an order in which each comes after all that it waits for
        index = places[request_id]
        for earlier in rows[index].after:
            before[index] |= before[places[earlier]] | 1 << places[earlier]
    return before


def _add_sessions(rows: Sequence[RequestLike], before: list[int]) -> None:
    """One session at a time: in the order of their first rows, unless sessions wait for each other."""
    sessions: dict[str, int] = {}
    for index, row in enumerate(rows):
        sessions[row.session_id] = sessions.get(row.session_id, 0) | 1 << index
    session_of = {row.request_id: row.session_id for row in rows}
    if any(session_of[earlier] != row.session_id for row in rows for earlier in row.after):
        return
    gone = 0
    for session, mask in sessions.items():
        for index, row in enumerate(rows):
            if row.session_id == session:
                before[index] |= gone
        gone |= mask


def shared_tokens(contents: Contents, order: Sequence[int]) -> list[int]:
    """Per request, the tokens that it shares with the longest prefix computed before it, one after the other in
    `order` (indices): what an infinite cache of single tokens would know."""
    seen: dict[str | None, list[bytes]] = {}
    shared = [0] * len(contents.prompts)
    for index in order:
        keys = seen.setdefault(contents.salts[index], [])
        key = _key(contents.prompts[index])
        at = bisect_left(keys, key)
        # Of all sequences seen, a neighbour in sorted order shares the longest prefix.
        shared[index] = max((_common(key, keys[near]) for near in (at - 1, at) if 0 <= near < len(keys)), default=0)
        insort(keys, key + _key(contents.answers[index][:-1]))
    return shared


def _key(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype=">u4").tobytes()  # big-endian, so that bytes sort as the ids do


def _common(one: bytes, other: bytes) -> int:
    """Tokens of the longest common prefix, by halving."""
    low, high = 0, min(len(one), len(other)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if one[: 4 * middle] == other[: 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low
