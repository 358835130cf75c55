"""What vLLM's scheduler did, replayed by ours; and deliberate mistakes, each of which the replay must notice."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from native_core.block_pool import BlockPool
from native_core.prefix_ids import PrefixIds
from native_core.profiles import PROFILES
from native_core.request import Request
from native_core.scheduler import Batch, Scheduler
from native_core.scheduler_blocks import BlockManager
from native_core.scheduler_queues import FcfsQueue
from tests.native_core.vllm_golden import first_difference, golden_cases, read_golden

Patch = pytest.MonkeyPatch


def test_every_step_is_vllms() -> None:
    header, cases = read_golden()
    assert header["version"].startswith("0.32.0")
    assert [case for case, _ in cases] == golden_cases()
    assert [first_difference(case, operations) for case, operations in cases] == [None] * len(cases)


def test_the_log_reaches_what_it_is_for() -> None:
    _, cases = read_golden()
    lines = [line for _, operations in cases for line in operations]
    scheduled = [line for line in lines if line[0] == "schedule"]
    assert len(scheduled) > 300
    assert sum(len(line[2]) for line in scheduled) > 15, "preemptions"
    assert sum(line[0] == "abort" for line in lines) > 5
    assert sum(operations[-1][2][1] for _, operations in cases) > 1000, "hit tokens"
    assert sum(operations[-1][2][3] for _, operations in cases) > 50, "hit tokens after preemptions"
    assert {case["policy"] for case, _ in cases} == {"fcfs", "priority"}


# -- mistakes in the pool


def first_block_freed_first(patch: Patch) -> None:
    right = BlockPool.release
    patch.setattr(BlockPool, "release", lambda self, table: right(self, table[::-1]))


def freed_blocks_all_go_to_the_tail(patch: Patch) -> None:
    right = BlockPool.__init__

    def wrong(self: BlockPool, count: int, ids: PrefixIds, *, unhashed_first: bool = True) -> None:
        right(self, count, ids, unhashed_first=False)

    patch.setattr(BlockPool, "__init__", wrong)


def most_recent_is_evicted_first(patch: Patch) -> None:
    right = BlockPool._link
    patch.setattr(BlockPool, "_link", lambda self, blocks, before: right(self, blocks, self._end))


def hits_stay_in_the_free_queue_count(patch: Patch) -> None:
    patch.setattr(BlockPool, "count_unowned", lambda self, blocks: 0)


def newest_copy_is_found(patch: Patch) -> None:
    right = BlockPool.register

    def wrong(self: BlockPool, table: Sequence[int], chain: Sequence[int], start: int, end: int) -> None:
        right(self, table, chain, start, end)
        for at in range(start, end):
            first, new = self._first[chain[at]], table[at]
            if first != new:
                self._copies[chain[at]].remove(new)
                self._copies[chain[at]].append(first)
                self._first[chain[at]] = new

    patch.setattr(BlockPool, "register", wrong)


# -- mistakes in who gets which blocks


def last_token_may_hit(patch: Patch) -> None:
    patch.setattr(
        BlockManager,
        "look_up",
        lambda self, r: self.pool.find(r.prefix_ids, max(len(r.tokens) - 1, 0) // self._size + 1),
    )


def blocks_are_findable_a_step_late(patch: Patch) -> None:
    right = BlockManager.register
    patch.setattr(BlockManager, "register", lambda self, r, computed: right(self, r, min(computed, r.computed)))


def only_prompts_are_cached(patch: Patch) -> None:
    right = BlockManager.register
    patch.setattr(
        BlockManager, "register", lambda self, r, computed: right(self, r, min(computed, r.num_prompt_tokens))
    )


def salts_are_ignored(patch: Patch) -> None:
    right = PrefixIds.extend

    def wrong(self: PrefixIds, chain: list[int], tokens: array[int], salt: str | None) -> None:
        right(self, chain, tokens, None)

    patch.setattr(PrefixIds, "extend", wrong)


def whole_prompts_need_no_room(patch: Patch) -> None:
    right = BlockManager.admit

    def wrong(self: BlockManager, *args: Any, **more: Any) -> bool:
        self._config = replace(self._config, reserve_full_prompt=False)
        return right(self, *args, **more)

    patch.setattr(BlockManager, "admit", wrong)


def watermark_is_ignored(patch: Patch) -> None:
    right = BlockManager.admit

    def wrong(self: BlockManager, request: Request, count: int, hits: list[int], *, others_run: bool) -> bool:
        return right(self, request, count, hits, others_run=False)

    patch.setattr(BlockManager, "admit", wrong)


# -- mistakes in the scheduler


def oldest_is_preempted(patch: Patch) -> None:
    patch.setattr(Scheduler, "_choose_victim", lambda self: self.running[0])


def preempted_wait_behind_all(patch: Patch) -> None:
    patch.setattr(FcfsQueue, "put_back", FcfsQueue.add)


def admits_in_a_step_that_preempted(patch: Patch) -> None:
    right = Scheduler._schedule_running

    def wrong(self: Scheduler, batch: Batch, cap: int) -> None:
        right(self, batch, cap)
        if batch.preempted:
            self._schedule_waiting(batch, cap)

    patch.setattr(Scheduler, "_schedule_running", wrong)


def lone_requests_are_capped(patch: Patch) -> None:
    patch.setitem(PROFILES, "vllm-0.32.0", replace(PROFILES["vllm-0.32.0"], caps_lone_request=True))


def retries_are_counted(patch: Patch) -> None:
    patch.setitem(PROFILES, "vllm-0.32.0", replace(PROFILES["vllm-0.32.0"], counts_retries=True))


def waiting_go_before_running(patch: Patch) -> None:
    right = Scheduler._schedule_running

    def wrong(self: Scheduler, batch: Batch, cap: int) -> None:
        running = list(self.running)
        self._schedule_waiting(batch, cap)
        late = self.running[len(running) :]
        self.running = running
        right(self, batch, cap)
        self.running += late

    patch.setattr(Scheduler, "_schedule_running", wrong)


MISTAKES: Iterable[Callable[[Patch], None]] = (
    first_block_freed_first,
    freed_blocks_all_go_to_the_tail,
    most_recent_is_evicted_first,
    hits_stay_in_the_free_queue_count,
    newest_copy_is_found,
    last_token_may_hit,
    blocks_are_findable_a_step_late,
    only_prompts_are_cached,
    salts_are_ignored,
    whole_prompts_need_no_room,
    watermark_is_ignored,
    oldest_is_preempted,
    preempted_wait_behind_all,
    admits_in_a_step_that_preempted,
    lone_requests_are_capped,
    retries_are_counted,
    waiting_go_before_running,
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_noticed(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """A difference in a step; or the engine's own assertions stop it first."""
    _, cases = read_golden()
    mistake(monkeypatch)
    for case, operations in cases:
        try:
            if first_difference(case, operations):
                return
        except (AssertionError, ValueError):
            return
    pytest.fail("no case of the golden log tells this mistake from the right rule")
