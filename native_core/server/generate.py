"""From a job to its answer: engine requests in, updates out, as one document or as a stream that follows the client.

A stream sends one event per token the moment it comes. If the client goes away, everything it asked for is aborted and
the blocks are free before the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from native_core.request import Request, RequestError
from native_core.server.errors import ApiError, json_response
from native_core.server.jobs import Job
from native_core.server.runner import Answer, EngineDiedError, EngineRunner, Update
from native_core.server.served import Served
from native_core.server.shapes import DONE, Piece, Shapes, metrics_of, sse, usage_of
from native_core.server.text import AnswerText


class ClientGone(Exception):
    """The connection closed before the answer was complete."""


class Generation:
    """One HTTP request in the engine."""

    def __init__(self, job: Job, served: Served, runner: EngineRunner) -> None:
        self._job = job
        self._runner = runner
        self._shapes = Shapes(job, served)
        self._updates: asyncio.Queue[Update | Exception] = asyncio.Queue()
        self._answers = _answers(job, served, runner, self._updates)
        self._open = {answer.request.request_id for answer in self._answers}
        self._outputs: dict[int, int] = {}  # tokens so far, by choice
        self._cached: dict[int, int] = {}  # cached tokens of billed prompts, by choice

    async def submit(self) -> None:
        """ApiError if the engine refuses: queue full, prompt that can never fit."""
        try:
            await self._runner.submit(self._answers)
        except RequestError as error:
            raise ApiError(str(error), status=error.http_status, code=error.code) from None
        except EngineDiedError as error:
            raise ApiError(str(error), status=503, code="engine_dead") from None

    def client_gone(self) -> None:
        self._updates.put_nowait(ClientGone())

    def release(self) -> None:
        """Aborts what is unfinished."""
        if self._open and self._runner.failure is None:
            self._runner.abort(self._open)
            self._open = set()

    async def events(self) -> AsyncIterator[bytes]:
        """Encoded server-sent events, the last one `[DONE]`. ClientGone, or the engine's failure, end it early."""
        begun: set[int] = set()
        while self._open:
            update = await self._next()
            answer, piece = update.answer, self._piece(update)
            first = answer.index not in begun
            if first:
                begun.add(answer.index)
                opening = self._shapes.opening(answer)
                if opening is not None:
                    yield opening
            usage = self._usage_so_far(answer) if self._job.continuous_usage else None
            yield self._shapes.event(answer, piece, first=first, usage=usage)
        if self._job.include_usage:
            yield self._shapes.closing(self._usage(), self._metrics())
        yield DONE

    async def whole(self) -> dict[str, object]:
        """The complete answer as one document."""
        pieces = {answer.index: Piece() for answer in self._answers}
        while self._open:
            update = await self._next()
            fresh, piece = self._piece(update), pieces[update.answer.index]
            piece.text += fresh.text
            piece.tokens += fresh.tokens
            piece.finish_reason, piece.stop_reason = fresh.finish_reason, fresh.stop_reason
        pairs = [(answer, pieces[answer.index]) for answer in self._answers]
        return self._shapes.whole(pairs, self._usage(), self._metrics())

    async def _next(self) -> Update:
        update = await self._updates.get()
        if isinstance(update, Exception):
            raise update
        output, index = update.output, update.answer.index
        self._outputs[index] = output.num_output_tokens
        if update.answer.billed_prompt:
            self._cached[index] = output.cached_tokens or 0
        if output.finished:
            self._open.discard(output.request_id)
        return update

    def _piece(self, update: Update) -> Piece:
        output, text = update.output, update.answer.text
        if output.token is None:
            return Piece(text=text.rest(), finish_reason=output.finish_reason)
        words = update.text if update.text is not None else text.push(output)
        piece = Piece(text=words, tokens=[output.token], finish_reason=output.finish_reason)
        if text.stopped_by is not None:
            piece.stop_reason = text.stopped_by
        elif output.finish_reason == "stop" and output.token.token_id in self._job.stop_token_ids:
            piece.stop_reason = output.token.token_id
        return piece

    def _usage(self) -> dict[str, object]:
        """Each prompt once, however many answers it has; every output token."""
        prompt = sum(len(ids) for ids in self._job.prompts)
        return usage_of(prompt, sum(self._outputs.values()), sum(self._cached.values()))

    def _usage_so_far(self, answer: Answer) -> dict[str, object]:
        """Of one choice, as vLLM's continuous usage."""
        cached = self._cached.get(answer.index - answer.index % self._job.n, 0)
        return usage_of(len(answer.request.prompt_ids), self._outputs[answer.index], cached)

    def _metrics(self) -> dict[str, object]:
        return metrics_of([answer.request for answer in self._answers])


def _answers(
    job: Job, served: Served, runner: EngineRunner, updates: asyncio.Queue[Update | Exception]
) -> list[Answer]:
    """One engine request per choice. A seed counts up over the n answers to a prompt, else they would be one answer."""
    arrival = runner.now()
    answers = []
    for at, (ids, limit) in enumerate(zip(job.prompts, job.max_tokens, strict=True)):
        for turn in range(job.n):
            index = at * job.n + turn
            seed = job.sampling.seed
            request = Request(
                request_id=f"{job.id}-{index}",
                prompt_ids=ids,
                max_tokens=limit,
                sampling=replace(job.sampling, seed=seed + turn) if seed is not None else job.sampling,
                ignore_eos=job.ignore_eos,
                stop_token_ids=job.stop_token_ids,
                min_tokens=job.min_tokens,
                priority=job.priority,
                arrival=arrival,
                salt=job.salt,
            )
            text = AnswerText(
                served.tokenizer.detokenizer(skip_special_tokens=job.skip_special),
                job.stops,
                keep_stop=job.keep_stop,
                min_tokens=job.min_tokens,
            )
            answers.append(Answer(request, index, turn == 0, text, updates, submitted=time.perf_counter()))
    return answers


class GenerationResponse(Response):
    """Sends a submitted generation and watches the connection meanwhile."""

    def __init__(self, generation: Generation, *, stream: bool) -> None:
        self._generation = generation
        self._stream = stream
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            with contextlib.suppress(ClientGone):
                await (self._send_events(send) if self._stream else self._send_whole(scope, receive, send))
        finally:
            watch.cancel()
            self._generation.release()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._generation.client_gone()

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = json_response(await self._generation.whole())
        except EngineDiedError as error:
            response = ApiError(str(error), status=500, code="engine_error").response()
        await response(scope, receive, send)

    async def _send_events(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for event in self._generation.events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except EngineDiedError as error:
            failure = ApiError(str(error), status=500, code="engine_error")
            await send({"type": "http.response.body", "body": sse(failure.document()), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
