"""Requests and their blocks: look-up, growth, admission, release. vLLM 0.32.0's KVCacheManager, one group.

    pool ── take, touch ──▶ request.block_table ── release ──▶ pool

A request's table is only ever appended to (V5). Releasing gives the request a new list instead of emptying the old
one: a step in flight may still read it (V18).
"""

from __future__ import annotations

from native_core import events
from native_core.block_pool import BlockPool
from native_core.engine_config import Counters, EngineConfig
from native_core.events import EventLog
from native_core.prefix_ids import PrefixIds
from native_core.profiles import find_profile
from native_core.request import Request


class BlockManager:
    """Every method that can fail for want of blocks changes nothing when it does."""

    def __init__(self, config: EngineConfig, counters: Counters, log: EventLog) -> None:
        first = find_profile(config.profile).unhashed_first
        self.prefix_ids = PrefixIds(config.block_size)
        self.pool = BlockPool(
            config.num_blocks,
            self.prefix_ids,
            unhashed_first=first == "always" or (first == "if caching" and config.prefix_caching),
        )
        self._config = config
        self._size = config.block_size
        self._watermark = int(config.watermark * config.num_blocks)  # blocks (V17)
        self._counters = counters
        self._log = log

    def name(self, request: Request) -> None:
        """Bring the identities of its full blocks up to date: when it is added, and after each token (V3)."""
        if self._config.prefix_caching and len(request.tokens) // self._size > len(request.prefix_ids):
            self.prefix_ids.extend(request.prefix_ids, request.tokens, request.salt)

    def look_up(self, request: Request) -> list[int]:
        """Blocks of its longest cached prefix. Its last token is always computed, for its logits (V6)."""
        if not self._config.prefix_caching:
            return []
        return self.pool.find(request.prefix_ids, (len(request.tokens) - 1) // self._size)

    def grow(self, request: Request, count: int) -> bool:
        """Blocks for a running request's next `count` tokens."""
        wanted = self._blocks_for(request.computed + count) - len(request.block_table)
        if wanted > self.pool.available:
            return False
        if wanted > 0:
            self._take(request, wanted)
        self.register(request, request.computed + count)
        return True

    def admit(self, request: Request, count: int, hits: list[int], *, others_run: bool) -> bool:
        """A waiting request's hits, and blocks for the `count` tokens after them (V16).

        Hits that nobody owns leave the free queue, so they use up available blocks as new ones do. The watermark
        holds only while something else runs (V17).
        """
        spare = self.pool.available - self.pool.count_unowned(hits) - (self._watermark if others_run else 0)
        if self._config.reserve_full_prompt and self._blocks_for(len(request.tokens)) - len(hits) > spare:
            return False
        end = len(hits) * self._size + count
        wanted = self._blocks_for(end) - len(hits)
        if wanted > spare:
            return False
        self.pool.touch(hits)
        request.block_table.extend(hits)
        request.registered = len(hits)
        self._take(request, wanted, reused=len(hits))
        self.register(request, end)
        return True

    def register(self, request: Request, computed: int) -> None:
        """Make its full blocks findable up to `computed` tokens, as far as those are known.

        Called when they are scheduled, before they are filled: the next request of the same step shares them, since
        the executor fills a batch in its order (V8). Blocks filled by decoding are no different (V9).
        """
        if not self._config.prefix_caching:
            return
        end = min(computed, len(request.tokens)) // self._size
        if end > request.registered:
            self.pool.register(request.block_table, request.prefix_ids, request.registered, end)
            request.registered = end

    def forget_from(self, request: Request, token: int) -> None:
        """Make its blocks unfindable that would hold `token` or a later one: nobody will fill them."""
        first = token // self._size
        self.pool.forget(request.block_table[first : request.registered])
        request.registered = min(first, request.registered)

    def release(self, request: Request) -> None:
        """Give all its blocks back."""
        self.pool.release(request.block_table)
        self._log(events.Free, request.request_id, len(request.block_table))
        request.block_table = []
        request.registered = 0

    def end(self, request: Request) -> None:
        """Give back its blocks, and its hold on the identities."""
        self.release(request)
        self.prefix_ids.release(request.prefix_ids)

    def _blocks_for(self, tokens: int) -> int:
        return -(-min(tokens, self._config.max_model_len) // self._size)

    def _take(self, request: Request, count: int, reused: int = 0) -> None:
        before = self.pool.evicted_blocks
        request.block_table.extend(self.pool.take(count))
        lost = (self.pool.evicted_blocks - before) * self._size
        self._counters.evicted_tokens += lost
        if lost:
            self._log(events.Evict, request.request_id, lost)
        self._log(events.Alloc, request.request_id, count, reused)
