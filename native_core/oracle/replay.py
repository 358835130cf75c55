"""A prefix cache under a trace that names its prompts by block ids: hit rates against capacity, at any block size.

Requests come one at a time, in the order given. A request hits the leading run of its blocks that are cached; then all
its blocks become the most recent ones, the last first, so that a prefix outlives what follows it; then the least
recent go until the cache fits. That is the replay behind figure 9 of Mooncake (FAST'25), and what an engine's LRU
does when requests do not overlap and answers are not kept.

The cache is an ordered list of spans. A span is one id of the trace with the leading blocks of it that are cached:

    trace block (512 tokens)  ├──────────────────────────────┤
    blocks of 16 tokens       ├┤├┤├┤├┤ ... ├┤├┤  32 of them
    span                      ├─ cached ───────┤ ← evictions shorten the least recent span from its end

Blocks of one id are always touched together, so spans lose nothing: the cost does not grow as blocks get smaller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Rule = Literal["started", "full"]


class ReplayError(ValueError):
    """A block size or capacity that cannot be replayed."""


class TracedRequest(Protocol):
    @property
    def input_tokens(self) -> int: ...
    @property
    def block_ids(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class HitRates:
    """Totals of a replay. Rates are shares from 0 to 1; a trace without blocks has none, and its rates are 0."""

    requests: int
    blocks: int  # looked up
    hit_blocks: int
    tokens: int  # of all prompts
    hit_tokens: int
    sum_of_shares: float  # over requests, of hit tokens / prompt tokens

    @property
    def by_block(self) -> float:
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def by_token(self) -> float:
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    @property
    def by_request(self) -> float:
        """The mean of the requests' own token shares: a short prompt weighs as much as a long one."""
        return self.sum_of_shares / self.requests if self.requests else 0.0


class SpanCache:
    """Which leading blocks of each id are cached, least recent first. Capacity in blocks; None: without limit."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._spans: OrderedDict[int, int] = OrderedDict()
        self.blocks = 0

    def hits(self, ids: Sequence[int], sizes: Sequence[int]) -> int:
        """Blocks of the leading run that is cached; `sizes` are the blocks that each id has in this request."""
        found = 0
        for block_id, size in zip(ids, sizes, strict=True):
            cached = self._spans.get(block_id, 0)
            if cached < size:
                return found + cached
            found += size
        return found

    def touch(self, ids: Sequence[int], sizes: Sequence[int]) -> None:
        """Make a request's blocks the most recent, then let the least recent go."""
        spans = self._spans
        for at in range(len(ids) - 1, -1, -1):
            block_id, size = ids[at], sizes[at]
            cached = spans.get(block_id, 0)
            if size > cached:
                spans[block_id] = size
                self.blocks += size - cached
            if size or cached:
                spans.move_to_end(block_id)
        if self._capacity is None:
            return
        excess = self.blocks - self._capacity
        while excess > 0:
            block_id, size = next(iter(spans.items()))
            if size > excess:
                spans[block_id] = size - excess
                self.blocks -= excess
                return
            del spans[block_id]
            self.blocks -= size
            excess -= size


def replay(
    requests: Iterable[TracedRequest],
    *,
    trace_block: int,
    block_size: int | None = None,
    kv_tokens: int | None = None,
    rule: Rule = "started",
) -> HitRates:
    """Hit rates of a trace in its own order.

    `trace_block`: tokens that an id stands for. `block_size`: tokens of a cache block, which must divide it (default:
    the same). `kv_tokens`: capacity, of which whole blocks count; None is an infinite cache.

    rule "started" is the one of published replays: a prompt's last block counts like a full one. "full" is an
    engine's: only full blocks are cached, and the last token of a prompt is never taken from the cache (V3, V6).
    """
    size = block_size or trace_block
    if size < 1 or trace_block % size:
        raise ReplayError(
            f"block size {size} does not divide the trace's block of {trace_block} tokens; take one that does"
        )
    if kv_tokens is not None and kv_tokens < size:
        raise ReplayError(f"a cache of {kv_tokens} tokens holds no block of {size}; raise --kv-tokens")
    cache = SpanCache(None if kv_tokens is None else kv_tokens // size)
    whole = [trace_block // size]
    count = blocks = hit_blocks = tokens = hit_tokens = 0
    shares = 0.0
    for request in requests:
        length, ids = request.input_tokens, request.block_ids
        asked = -(-length // size) if rule == "started" else length // size
        sizes = whole * (len(ids) - 1)
        sizes.append(asked - whole[0] * len(sizes))
        found = cache.hits(ids, sizes)
        if rule == "full":
            found = min(found, (length - 1) // size)
        cache.touch(ids, sizes)
        saved = min(found * size, length)
        count += 1
        blocks += asked
        hit_blocks += found
        tokens += length
        hit_tokens += saved
        shares += saved / length
    return HitRates(count, blocks, hit_blocks, tokens, hit_tokens, shares)
