"""The step loop: one scheduler, one executor, no clock of its own. Engine and oracle differ only in the executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from native_core import events
from native_core.engine_config import EngineConfig, EngineStats
from native_core.events import Event
from native_core.executor import Executor, Sampled, Work
from native_core.request import Request, RequestError
from native_core.scheduler import Batch, Output, Scheduled, Scheduler

__all__ = ["Engine", "EngineConfig", "EngineStats", "Output", "RequestError"]


class EngineError(RuntimeError):
    """The engine cannot go on: its executor failed earlier, or nothing that waits can ever be scheduled."""


class Engine:
    """Not thread-safe: add, abort, step and stats belong to one thread, and only between steps."""

    def __init__(
        self, config: EngineConfig, executor: Executor, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config, on_event)
        self._executor = executor
        self._depth = 2 if config.async_scheduling else 1
        self._in_flight: deque[Batch] = deque()
        self._last = (0, 0, 0, 0, 0.0)  # of the last step: prefill, decode and context tokens, requests, seconds
        self._broken = False
        executor.allocate(config.num_blocks, config.block_size)

    def add(self, request: Request) -> None:
        """Queue a request. RequestError if it can never be served, or not now (http_status 503)."""
        self._check_limits(request)
        limit = self.config.max_waiting
        if limit is not None and len(self.scheduler.waiting) >= limit:
            raise RequestError(f"{limit} requests are waiting already; try again", code="queue_full", http_status=503)
        self.scheduler.add(request, self._executor.now())

    def _check_limits(self, request: Request) -> None:
        prompt, context, config = request.num_prompt_tokens, self.config.max_model_len, self.config
        if not prompt:
            raise RequestError("the prompt is empty", code="empty_prompt")
        if prompt >= context:
            raise RequestError(
                f"the prompt has {prompt} tokens; a context of {context} leaves no room for an answer",
                code="prompt_too_long",
            )
        if request.max_tokens < 1 or not 0 <= request.min_tokens <= request.max_tokens:
            raise RequestError(
                f"max_tokens is {request.max_tokens} and min_tokens {request.min_tokens}; "
                "max_tokens must be at least 1, min_tokens from 0 to max_tokens",
                code="invalid_limit",
            )
        # The last token is never computed. A request that does not fit alone would be preempted for ever.
        longest = min(prompt + request.max_tokens, context) - 1
        capacity = (config.num_blocks - 1) * config.block_size
        if longest > capacity:
            raise RequestError(
                f"prompt and answer may grow to {longest} tokens in the cache, which holds {capacity}",
                code="pool_too_small",
            )
        if request.request_id in self.scheduler.requests:
            raise RequestError(f"request {request.request_id!r} is in the engine already", code="duplicate_request_id")

    def abort(self, request_id: str) -> bool:
        """End a request and free its blocks at once. False if it is not here (any more). It gets no Output."""
        return self.scheduler.abort(request_id, self._executor.now())

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests or self._in_flight)

    def step(self) -> list[Output]:
        """Compute one step and return its news, which may be none (a chunk of a prompt was computed).

        Asynchronous: schedules until two steps are in flight, then computes the older one. Its tokens are known when
        the younger one is computed, as on a device that keeps them to itself; only the scheduler had not seen them.
        """
        if self._broken:
            raise EngineError("the executor failed in an earlier step; blocks that look filled may not be")
        while self.scheduler.requests and len(self._in_flight) < self._depth:
            batch = self.scheduler.schedule(self._executor.now())
            if not batch.items:
                self._check_progress(batch)
                break
            self._in_flight.append(batch)
        self._last = _measure([], 0.0)
        return self._compute(self._in_flight.popleft()) if self._in_flight else []

    def _check_progress(self, batch: Batch) -> None:
        if not self._in_flight and not batch.preempted:
            raise EngineError(f"step {batch.step}: {len(self.scheduler.requests)} requests, none can be scheduled")

    def _compute(self, batch: Batch) -> list[Output]:
        scheduler, pool = self.scheduler, self.scheduler.blocks.pool
        # Of a request aborted while two of its steps were in flight, the second would need a token it never got.
        items = [item for item in batch.items.values() if len(item.request.tokens) > item.start]
        blocks = pool.used, pool.evictable, pool.free
        try:
            result = self._executor.execute([self._work(item) for item in items])
        except BaseException:
            self._broken = True
            raise
        sampled: dict[str, Sampled] = {}
        for item, token in zip(items, result.sampled, strict=True):
            if item.emits:
                if token is None:
                    raise EngineError(f"the executor sampled no token for {item.request.request_id!r}")
                sampled[item.request.request_id] = token
        self._last = _measure(items, result.seconds)
        now = self._executor.now()
        scheduler.log.now, scheduler.log.step = now, batch.step
        queues = len(scheduler.running), len(scheduler.waiting)
        scheduler.log(events.Step, None, *self._last[:4], *queues, *blocks, result.seconds)
        return scheduler.update(batch, sampled, now)

    def _work(self, item: Scheduled) -> Work:
        """What the executor sees of an item.

        An item whose request has ended while it was in flight is computed all the same: its blocks are registered, so
        others may count on their content.
        """
        request = item.request
        return Work(
            request.request_id,
            request.tokens[item.start : item.start + item.count],
            item.start,
            item.table,
            request.sampling if item.emits else None,
            request.num_output_tokens,
            request.ending_ids if request.num_output_tokens < request.min_tokens else frozenset(),
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing done, while a request owns blocks (V15)."""
        return self.scheduler.blocks.pool.reset()

    def stats(self) -> EngineStats:
        """A snapshot; the totals are those of the event log, folded."""
        counters, pool = self.scheduler.counters, self.scheduler.blocks.pool
        prefill, decode, context, batch, seconds = self._last
        return EngineStats(
            **asdict(counters),
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            block_size=self.config.block_size,
            blocks_total=pool.total,
            blocks_used=pool.used,
            blocks_evictable=pool.evictable,
            blocks_free=pool.free,
            last_prefill_tokens=prefill,
            last_decode_tokens=decode,
            last_context_tokens=context,
            last_batch=batch,
            last_seconds=seconds,
        )


def _measure(items: list[Scheduled], seconds: float) -> tuple[int, int, int, int, float]:
    """Prefill and decode tokens, tokens attended to, requests and seconds of a step."""
    tokens, decoded = sum(item.count for item in items), sum(item.decode for item in items)
    return tokens - decoded, decoded, sum(item.start + item.count for item in items), len(items), seconds
