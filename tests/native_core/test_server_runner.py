"""The engine thread: what is handed over between steps, and that nothing ever waits for ever."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from native_core.engine import Engine, EngineConfig
from native_core.executor import Executor, StepResult, Work
from native_core.request import Request, RequestError
from native_core.server.metered import MeteredExecutor
from native_core.server.runner import Answer, EngineDiedError, EngineRunner, Report, Update
from native_core.server.text import AnswerText
from native_core.virtual import VirtualExecutor


class Letters:
    """Every token is one letter."""

    def push(self, token_id: int) -> str:
        return "abcdefgh"[token_id % 8]

    def flush(self) -> str:
        return ""


class Failing:
    """An executor that breaks at its third step."""

    def __init__(self) -> None:
        self._inner = VirtualExecutor()
        self._steps = 0

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._inner.allocate(num_blocks, block_size)

    def execute(self, work: Sequence[Work]) -> StepResult:
        self._steps += 1
        if self._steps == 3:
            raise FloatingPointError("not a number")
        return self._inner.execute(work)

    def now(self) -> float:
        return self._inner.now()


@dataclass
class Bench:
    engine: Engine
    runner: EngineRunner
    reports: list[Report] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    made: int = 0

    def answer(self, max_tokens: int, *, prompt: Sequence[int] = (1, 2, 3), stops: Sequence[str] = ()) -> Answer:
        self.made += 1
        request = Request(f"r{self.made}", list(prompt), max_tokens, ignore_eos=True, arrival=self.runner.now())
        return Answer(request, 0, True, AnswerText(Letters(), stops), asyncio.Queue(), submitted=0.0)


async def rest(answer: Answer) -> list[Update]:
    """Updates of an answer up to its last."""
    updates = []
    while True:
        update = await asyncio.wait_for(answer.updates.get(), 5)
        if isinstance(update, Exception):
            raise update
        updates.append(update)
        if update.output.finished:
            return updates


@asynccontextmanager
async def bench(executor: Executor | None = None, **settings: int) -> AsyncIterator[Bench]:
    metered = MeteredExecutor(executor or VirtualExecutor())
    sizes = {"num_blocks": 65, "block_size": 4, "max_num_seqs": 8, "max_batched_tokens": 64, "max_model_len": 128}
    engine = Engine(EngineConfig(**{**sizes, **settings}), metered)  # type: ignore[arg-type]
    held: list[Bench] = []
    runner = EngineRunner(
        engine,
        metered,
        on_report=lambda report: held[0].reports.append(report),
        on_failure=lambda error: held[0].failures.append(error),
    )
    held.append(Bench(engine, runner))
    runner.start(asyncio.get_running_loop())
    try:
        yield held[0]
    finally:
        runner.stop()


def test_an_answer_has_one_update_per_token_and_one_report_per_step() -> None:
    async def check() -> None:
        async with bench() as b:
            answer = b.answer(5)
            await b.runner.submit([answer])
            updates = await rest(answer)
            assert [update.output.num_output_tokens for update in updates] == [1, 2, 3, 4, 5]
            assert [update.output.finished for update in updates] == [False] * 4 + [True]
            assert sum(report.step_s is not None for report in b.reports) == 5

    asyncio.run(check())


def test_a_refused_answer_takes_its_whole_group_with_it() -> None:
    async def check() -> None:
        async with bench() as b:
            with pytest.raises(RequestError):
                await b.runner.submit([b.answer(5), b.answer(5, prompt=[])])
            assert not b.engine.has_work
            assert b.engine.stats().blocks_used == 0

    asyncio.run(check())


def test_a_stop_string_ends_the_sequence_before_the_next_step() -> None:
    async def check() -> None:
        async with bench() as b:
            free = b.answer(30)
            await b.runner.submit([free])
            text = "".join(Letters().push(u.output.token.token_id) for u in await rest(free) if u.output.token)
            before = b.engine.stats().output_tokens
            stopped = b.answer(30, stops=[text[7:10]])
            await b.runner.submit([stopped])
            updates = await rest(stopped)
            at = text.find(text[7:10])
            assert "".join(update.text or "" for update in updates) == text[:at]
            assert len(updates) == at + 3
            assert updates[-1].output.finish_reason == "stop"
            assert b.engine.stats().output_tokens - before == at + 3
            assert b.engine.stats().blocks_used == 0

    asyncio.run(check())


def test_random_aborts_leave_nothing_behind() -> None:
    draw = random.Random(3)

    async def one(b: Bench) -> None:
        answer = b.answer(draw.randint(1, 40), prompt=[draw.randrange(50) for _ in range(draw.randint(1, 60))])
        await b.runner.submit([answer])
        for _ in range(draw.randint(0, 6)):
            update = await asyncio.wait_for(answer.updates.get(), 5)
            if not isinstance(update, Update) or update.output.finished:
                return
        b.runner.abort([answer.request.request_id])
        assert (await rest(answer))[-1].output.finish_reason in ("abort", "length")

    async def check() -> None:
        async with bench() as b:
            for _ in range(10):
                await asyncio.gather(*(one(b) for _ in range(20)))
            assert not b.engine.has_work
            assert b.engine.stats().blocks_used == 0
            b.engine.scheduler.check()
            assert await b.runner.reset_prefix_cache()

    asyncio.run(check())


def test_an_engine_that_dies_tells_everybody() -> None:
    async def check() -> None:
        async with bench(Failing()) as b:
            answer = b.answer(10)
            await b.runner.submit([answer])
            with pytest.raises(EngineDiedError, match="not a number"):
                await rest(answer)
            assert isinstance(b.runner.failure, FloatingPointError)
            assert len(b.failures) == 1
            with pytest.raises(EngineDiedError):
                await b.runner.submit([b.answer(1)])

    asyncio.run(check())


def test_commands_that_the_death_overtakes_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with bench() as b:

            def broken() -> bool:
                raise MemoryError("no more")

            monkeypatch.setattr(b.engine, "reset_prefix_cache", broken)
            with pytest.raises(EngineDiedError, match="no more"):
                await asyncio.wait_for(b.runner.reset_prefix_cache(), 5)

    asyncio.run(check())


def test_an_idle_engine_thread_sleeps() -> None:
    async def check() -> None:
        async with bench() as b:
            answer = b.answer(3)
            await b.runner.submit([answer])
            await rest(answer)
            await asyncio.sleep(0.05)
            reports = len(b.reports)
            await asyncio.sleep(0.2)
            assert len(b.reports) == reports
        assert not [thread for thread in threading.enumerate() if thread.name == "engine" and thread.is_alive()]

    asyncio.run(check())
