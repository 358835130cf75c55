"""The engine on a thread of its own; the HTTP side talks to it between steps.

Who owns what:

    event loop thread                          engine thread
    -----------------                          -------------
    HTTP, tokenising, text of answers          Engine, executor, KV pool: touched by nobody else
    Answer.updates (reads)                     text of sequences with stop strings, until they finish
    metrics
            -- commands: submit, abort, reset -->    taken over before each step
            <-- one Report per step, by call_soon_threadsafe: a single wake-up however many tokens --

The engine thread sleeps on a condition while there is nothing to do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from native_core.engine import Engine, Output
from native_core.engine_config import EngineStats
from native_core.request import FinishReason, Request, RequestError
from native_core.server.metered import Meter, MeteredExecutor
from native_core.server.text import AnswerText


class EngineDiedError(RuntimeError):
    """The engine thread ended with an exception; nothing that it was asked will be done."""


@dataclass(frozen=True, slots=True)
class Update:
    """One token of one sequence, or its end. `text` is set where the engine thread had to look for stop strings."""

    answer: Answer
    output: Output
    text: str | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """One answer in the making: an engine request, its text so far, and the queue of the HTTP request it belongs to."""

    request: Request
    index: int  # of the choice within its HTTP request
    billed_prompt: bool  # whether its prompt counts: of n answers to one prompt, only the first one's does
    text: AnswerText
    updates: asyncio.Queue[Update | Exception]
    submitted: float  # time.perf_counter()
    last_token: float | None = None  # time.perf_counter() of the latest token's report


@dataclass(frozen=True, slots=True)
class Report:
    """What happened since the last report: in a step, or by commands alone."""

    updates: Sequence[Update]
    stats: EngineStats
    meter: Meter  # cumulative seconds of the model
    busy_s: float  # wall seconds of this round on the engine thread
    step_s: float | None  # wall seconds of the step in it; None if there was none
    at: float  # time.perf_counter() at its end


@dataclass(slots=True)
class _Submit:
    answers: Sequence[Answer]
    accepted: asyncio.Future[None]


@dataclass(slots=True)
class _Abort:
    request_ids: Sequence[str]


@dataclass(slots=True)
class _Reset:
    done: asyncio.Future[bool]


_Command = _Submit | _Abort | _Reset


@dataclass(slots=True)
class _Round:
    """What the engine thread gathers before it reports."""

    began: float
    updates: list[Update] = field(default_factory=list)
    step_s: float | None = None


class EngineRunner:
    """Drives one engine. All public methods are for the event loop's thread."""

    def __init__(
        self,
        engine: Engine,
        executor: MeteredExecutor,
        *,
        on_report: Callable[[Report], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._on_report = on_report
        self._on_failure = on_failure
        self._wake = threading.Condition()
        self._commands: list[_Command] = []
        self._taken: list[_Command] = []  # by the engine thread, perhaps not answered yet
        self._stopping = False
        self._live: dict[str, Answer] = {}  # engine thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: BaseException | None = None

    # The event loop's side

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        """Ends the engine thread after the step under way. Unfinished sequences get no further updates."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def pending(self) -> int:
        """Sequences that wait for the step under way to end before the engine can see them."""
        with self._wake:
            return sum(len(command.answers) for command in self._commands if isinstance(command, _Submit))

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._executor.now()

    async def submit(self, answers: Sequence[Answer]) -> None:
        """Hands all sequences to the engine, or none: RequestError if it refuses one, EngineDiedError if it is dead."""
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send(_Submit(answers, accepted))
        await accepted

    def abort(self, request_ids: Iterable[str]) -> None:
        """Asks for the end of sequences nobody waits for; their blocks are free before the next step."""
        self._send(_Abort(list(request_ids)))

    async def reset_prefix_cache(self) -> bool:
        """False while a block is referenced."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._send(_Reset(done))
        return await done

    def _send(self, command: _Command) -> None:
        if self.failure is not None:
            raise EngineDiedError(f"the engine died: {self.failure}")
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    # The engine thread's side

    def _run(self) -> None:
        try:
            self._round(())  # so that the state of the idle engine is known before the first request
            while (commands := self._wait()) is not None:
                self._round(commands)
        except BaseException as error:  # whatever it is, no request may wait for ever
            self._call(self._fail, error)

    def _wait(self) -> list[_Command] | None:
        """Commands that came in, possibly none if the engine has work; None to stop."""
        with self._wake:
            while not (self._commands or self._engine.has_work or self._stopping):
                self._wake.wait()
            self._taken, self._commands = self._commands, []
            return None if self._stopping else self._taken

    def _round(self, commands: Sequence[_Command]) -> None:
        """Commands, then one step, then one report."""
        this = _Round(began=time.perf_counter())
        for command in commands:
            self._apply(command, this)
        if self._engine.has_work:
            before = time.perf_counter()
            outputs = self._engine.step()
            this.step_s = time.perf_counter() - before
            for output in outputs:
                self._follow(output, this)
        stats, meter, now = self._engine.stats(), self._executor.meter(), time.perf_counter()
        self._call(self._deliver, Report(this.updates, stats, meter, now - this.began, this.step_s, now))

    def _apply(self, command: _Command, this: _Round) -> None:
        """Does what a command says and answers it at once: who was refused must not wait for the step."""
        if isinstance(command, _Submit):
            self._admit(command)
        elif isinstance(command, _Abort):
            for request_id in command.request_ids:
                self._end(request_id, "abort", this)
        else:
            self._call(_settle, command.done, self._engine.reset_prefix_cache())

    def _admit(self, command: _Submit) -> None:
        taken: list[str] = []
        try:
            for answer in command.answers:
                self._engine.add(answer.request)
                taken.append(answer.request.request_id)
        except RequestError as error:
            for request_id in taken:
                self._engine.abort(request_id)
            self._call(_refuse, command.accepted, error)
            return
        self._live.update((answer.request.request_id, answer) for answer in command.answers)
        self._call(_settle, command.accepted, None)

    def _follow(self, output: Output, this: _Round) -> None:
        """Records an output, ending the sequence here if its text has reached a stop string.

        Done before the next step, so that nothing is computed, counted or billed beyond the stop.
        """
        answer = self._live.get(output.request_id)
        if answer is None:
            return
        text = None
        if answer.text.has_stops and output.token is not None:
            text = answer.text.push(output)
            if answer.text.stopped_by is not None:
                if not output.finished:
                    self._engine.abort(output.request_id)
                output = replace(output, finished=True, finish_reason="stop")
        if output.finished:
            del self._live[output.request_id]
        this.updates.append(Update(answer, output, text))

    def _end(self, request_id: str, reason: FinishReason, this: _Round) -> None:
        """Takes a sequence out of the engine, wherever it is in its life; nothing happens if it has ended."""
        answer = self._live.pop(request_id, None)
        if answer is None:
            return
        self._engine.abort(request_id)
        request = answer.request
        output = Output(
            request_id=request_id,
            token=None,
            finished=True,
            finish_reason=reason,
            cached_tokens=request.cached_tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
        )
        this.updates.append(Update(answer, output))

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # Called on the event loop by the engine thread

    def _deliver(self, report: Report) -> None:
        for update in report.updates:
            update.answer.updates.put_nowait(update)
        # Before any response can be written: whoever scrapes after its answer finds that answer counted.
        self._on_report(report)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._on_failure(error)
        died = EngineDiedError(f"the engine died: {error}")
        for answer in self._live.values():
            answer.updates.put_nowait(died)
        self._live.clear()
        for command in (*self._taken, *self._commands):
            if isinstance(command, _Submit):
                _refuse(command.accepted, died)
            elif isinstance(command, _Reset):
                _refuse(command.done, died)
        self._commands = []


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # whoever asked may have gone
        future.set_result(value)


def _refuse(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
