"""vLLM's V1 scheduler: which tokens of which requests are computed in the next step.

There is no prefill phase and no decode phase. Every request has tokens and a count of those computed; each step gives
out one token budget so that the counts catch up:

    schedule()   RUNNING in list order, then WAITING in queue order, until the budget is spent
    (compute)    the executor fills the blocks and samples
    update()     tokens are appended, requests that are done leave

Rules V1 … V26 are those of vLLM 0.32.0 (vllm/v1/core/sched/scheduler.py and async_scheduler.py); profiles.py has what
differs in other releases. Both loops are here: the synchronous one, and the asynchronous one, in which `placeholders`
stand for the tokens of steps in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from native_core import events
from native_core.engine_config import Counters, EngineConfig
from native_core.events import Event, EventLog
from native_core.executor import Sampled
from native_core.profiles import find_profile
from native_core.request import FinishReason, Request, State
from native_core.scheduler_blocks import BlockManager
from native_core.scheduler_queues import make_queue


@dataclass(frozen=True, slots=True)
class Output:
    """One request's news from one step: a token, and whether it was the last."""

    request_id: str
    token: Sampled | None
    finished: bool
    finish_reason: FinishReason | None
    cached_tokens: int | None
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(slots=True)
class Scheduled:
    """Tokens start … start + count - 1 of a request, and the list that was its block table in this step."""

    request: Request
    start: int
    count: int
    table: list[int]
    decode: bool
    emits: bool = False


@dataclass(slots=True)
class Batch:
    """One step's work by request id, in scheduling order."""

    step: int
    budget: int  # tokens not given out
    items: dict[str, Scheduled] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)

    def give(self, request: Request, count: int, *, decode: bool) -> None:
        self.items[request.request_id] = Scheduled(request, request.computed, count, request.block_table, decode)
        self.budget -= count


class Scheduler:
    """Owns the requests and, through `blocks`, the pool. `now` is in seconds on the executor's clock."""

    def __init__(self, config: EngineConfig, on_event: Callable[[Event], None] | None = None) -> None:
        self.config = config
        self.profile = find_profile(config.profile)
        self.counters = Counters()
        self.log = EventLog(on_event)
        self.blocks = BlockManager(config, self.counters, self.log)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = make_queue(config.policy)
        self._steps = 0

    # -- requests come and go

    def add(self, request: Request, now: float) -> None:
        """Queue a request; engine.py has found that it can be served."""
        self.log.now = now
        if request.arrival is None:
            request.arrival = now
        request.t_queued = request.arrival
        if not request.ignore_eos:
            request.ending_ids = request.stop_token_ids | self.config.eos_token_ids
        self.blocks.name(request)
        self.requests[request.request_id] = request
        self.waiting.add(request)
        self.log(events.Arrive, request.request_id, request.num_prompt_tokens, request.max_tokens, request.priority)

    def abort(self, request_id: str, now: float) -> bool:
        """End a request wherever it is; its blocks are free at once (V18). False if there is none of that id."""
        self.log.now = now
        request = self.requests.get(request_id)
        if request is None:
            return False
        if request.state is State.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._end(request, "abort")
        return True

    # -- before the step

    def schedule(self, now: float) -> Batch:
        """The next step's work; without items if nothing can be scheduled. Computed counts advance at once (V24)."""
        self._steps += 1
        self.log.now, self.log.step = now, self._steps
        batch = Batch(self._steps, self.config.max_batched_tokens)
        cap = self._chunk_cap()
        self._schedule_running(batch, cap)
        if not batch.preempted:  # V22
            self._schedule_waiting(batch, cap)
        for request_id, item in batch.items.items():
            request = item.request
            request.computed += item.count
            item.emits = request.computed >= len(request.tokens) + request.placeholders
            if item.emits and self.config.async_scheduling:
                request.placeholders += 1
            if not item.decode:
                self.counters.prefill_computed_tokens += item.count
            self.log(events.Chunk, request_id, item.start, item.count, item.decode)
        self.counters.steps += bool(batch.items)
        return batch

    def _chunk_cap(self) -> int:
        """Most tokens that one request gets in this step, from the long-prefill threshold (V19)."""
        cap, alone = self.config.long_prefill_threshold, len(self.running) + len(self.waiting) <= 1
        if not cap or (alone and not self.profile.caps_lone_request):
            return self.config.max_batched_tokens
        return cap

    def _schedule_running(self, batch: Batch, cap: int) -> None:
        """RUNNING, in list order (V20). Where blocks are short, requests give up theirs until it fits (V21)."""
        at = 0
        while at < len(self.running) and batch.budget > 0:
            request = self.running[at]
            count = self._next_tokens(request, min(cap, batch.budget))
            if not count:
                at += 1  # passed over; those behind it still run
                continue
            while not self.blocks.grow(request, count):
                victim = self._choose_victim()
                index = self.running.index(victim)
                del self.running[index]
                at -= index < at
                self._preempt(victim, batch)
                if victim is request:
                    return
            batch.give(request, count, decode=count == 1 and request.computed >= request.num_prompt_tokens)
            at += 1

    def _next_tokens(self, request: Request, most: int) -> int:
        """How many tokens a running request gets (V20), in the asynchronous loop up to the surely last one (V25)."""
        computed, placeholders = request.computed, request.placeholders
        if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens:
            return 0
        missing = len(request.tokens) + placeholders - computed
        return min(missing, most, self.config.max_model_len - computed - 1)

    def _schedule_waiting(self, batch: Batch, cap: int) -> None:
        """WAITING, from the head of the queue; the first that does not fit blocks all behind it (V22).

        Only here is the cache looked up: a request that runs never looks again (V7).
        """
        while batch.budget > 0 and len(self.waiting) and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.head()
            hits = self.blocks.look_up(request)
            hit_tokens = len(hits) * self.config.block_size
            count = min(len(request.tokens) - hit_tokens, cap, batch.budget)
            if self.profile.counts_retries:
                self._count_look_up(request, hit_tokens)
            if not self.blocks.admit(request, count, hits, others_run=bool(self.running)):
                break
            if not self.profile.counts_retries:
                self._count_look_up(request, hit_tokens)
            self.running.append(self.waiting.pop())
            self._note_admission(request, hit_tokens)
            batch.give(request, count, decode=False)

    def _count_look_up(self, request: Request, hit_tokens: int) -> None:
        if not self.config.prefix_caching:
            return
        if request.preemptions:
            self.counters.preempted_query_tokens += len(request.tokens)
            self.counters.preempted_hit_tokens += hit_tokens
        else:
            self.counters.prefix_query_tokens += len(request.tokens)
            self.counters.prefix_hit_tokens += hit_tokens

    def _note_admission(self, request: Request, hit_tokens: int) -> None:
        request.state = State.RUNNING
        request.computed = hit_tokens
        queried = len(request.tokens) if self.config.prefix_caching else 0
        waited = self.log.now - request.t_queued
        resumed = request.preemptions > 0
        if request.t_admitted is None:
            request.t_admitted = self.log.now
            request.cached_tokens = hit_tokens
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.queue_seconds_sum += waited
            self.counters.queue_seconds_count += 1
        self.log(events.Admit, request.request_id, hit_tokens, queried, waited, resumed)

    # -- preemption

    def _choose_victim(self) -> Request:
        """fcfs: the last of the running list. priority: the least urgent, the first of equals (V21)."""
        if self.config.policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda request: (request.priority, request.arrival or 0.0))

    def _preempt(self, victim: Request, batch: Batch) -> None:
        """Take all its blocks away and let it wait again, with nothing computed (V21)."""
        withdrawn = batch.items.pop(victim.request_id, None)
        if withdrawn:  # it was scheduled earlier in this very step
            batch.budget += withdrawn.count
            if self.config.forget_uncomputed:
                self.blocks.forget_from(victim, withdrawn.start)
        self.log(events.Preempt, victim.request_id, victim.computed)
        self.blocks.release(victim)
        victim.computed = victim.placeholders = 0
        victim.preemptions += 1
        victim.state = State.PREEMPTED
        victim.t_queued = self.log.now
        self.counters.preemptions += 1
        self.waiting.put_back(victim)
        batch.preempted.append(victim)

    # -- after the step

    def update(self, batch: Batch, sampled: Mapping[str, Sampled], now: float) -> list[Output]:
        """Append the tokens that the step brought and end the requests that are done.

        `sampled` has a token for each item that emits, unless its request has ended while the step was in flight:
        those tokens are surplus and dropped (V25).
        """
        self.log.now, self.log.step = now, batch.step
        outputs: list[Output] = []
        left_running = False
        for request_id, item in batch.items.items():
            request = item.request
            if not item.emits or request.state is State.FINISHED:
                continue
            token = sampled[request_id]
            reason = self._append(request, token)
            if reason:
                if request.state is State.RUNNING:
                    left_running = True
                else:
                    self.waiting.remove(request)  # preempted while the step was in flight
                self._end(request, reason)
            outputs.append(
                Output(
                    request_id,
                    token,
                    reason is not None,
                    reason,
                    request.cached_tokens,
                    request.num_prompt_tokens,
                    request.num_output_tokens,
                )
            )
        if left_running:
            self.running = [request for request in self.running if request.state is State.RUNNING]
        return outputs

    def _append(self, request: Request, token: Sampled) -> FinishReason | None:
        """One token more. The reason to stop, in vLLM's order: an id that ends it, then a limit (V26)."""
        request.tokens.append(token.token_id)
        self.blocks.name(request)
        if request.t_first_token is None:
            request.t_first_token = self.log.now
        if self.config.async_scheduling and request.state is State.RUNNING:
            request.placeholders -= 1
            self.blocks.register(request, request.computed - request.placeholders)  # V10
        outputs = request.num_output_tokens
        self.counters.output_tokens += 1
        self.log(events.Token, request.request_id, token.token_id, outputs - 1)
        if token.token_id in request.ending_ids:  # never before min_tokens: the executor was told not to sample it
            return "stop"
        if outputs >= request.max_tokens or len(request.tokens) >= self.config.max_model_len:
            return "length"
        return None

    def _end(self, request: Request, reason: FinishReason) -> None:
        self.blocks.end(request)
        del self.requests[request.request_id]
        request.state = State.FINISHED
        request.finish_reason = reason
        request.t_finished = self.log.now
        self.counters.finished[reason] += 1
        self.log(events.Finish, request.request_id, reason, request.num_output_tokens)

    # -- for tests

    def check(self) -> None:
        """AssertionError unless requests, queues, pool and identities agree with each other."""
        states = {request_id: request.state for request_id, request in self.requests.items()}
        running = [request.request_id for request in self.running]
        assert len(running) == len(set(running)) <= self.config.max_num_seqs
        assert set(running) == {request_id for request_id, state in states.items() if state is State.RUNNING}
        assert len(states) == len(running) + len(self.waiting), "a request is neither running nor waiting, or both"
        named = self.blocks.pool.named_blocks()
        holds: dict[int, int] = {}
        for key in [
            *named.values(),
            *(request.prefix_ids[-1] for request in self.requests.values() if request.prefix_ids),
        ]:
            holds[key] = holds.get(key, 0) + 1
        for request in self.requests.values():
            assert request.state is State.RUNNING or not request.block_table, "a waiting request owns blocks"
            assert request.computed <= len(request.block_table) * self.config.block_size, "computed without a block"
            assert request.computed <= len(request.tokens) + request.placeholders
            for block, key in zip(request.block_table[: request.registered], request.prefix_ids, strict=False):
                assert named.get(block) == key, "a registered block is found under another identity"
            assert not any(block in named for block in request.block_table[request.registered :])
        self.blocks.pool.check(request.block_table for request in self.requests.values())
        self.blocks.prefix_ids.check(holds)
