"""The routes: generation, tokens, and what an operator asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from native_core.server.bodies import ChatBody, CompletionBody, parse, read_json
from native_core.server.errors import ApiError, json_response
from native_core.server.generate import Generation, GenerationResponse
from native_core.server.jobs import Job, chat_job, chat_prompt, completion_job
from native_core.server.metrics import CONTENT_TYPE, Metrics
from native_core.server.prompts import check_ids
from native_core.server.runner import EngineRunner
from native_core.server.served import Served

OFF_LOOP_BYTES = 32_768  # prompts beyond this are tokenised on a thread, so that streams go on meanwhile


class TokenizeBody(BaseModel):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(BaseModel):
    model: str | None = None
    tokens: list[int]


class Routes:
    """Handlers over one server's state."""

    def __init__(self, served: Served, runner: EngineRunner, metrics: Metrics) -> None:
        self._served = served
        self._runner = runner
        self._metrics = metrics

    # Generation

    async def completions(self, http: HttpRequest) -> Response:
        return await self._generate(http, CompletionBody, completion_job)

    async def chat_completions(self, http: HttpRequest) -> Response:
        return await self._generate(http, ChatBody, chat_job)

    async def _generate(self, http: HttpRequest, kind: type[Any], make_job: Callable[[Any, Served], Job]) -> Response:
        try:
            document = await read_json(http)
            self._check_model(document.get("model"))
            body = parse(kind, document)
            if int(http.headers.get("content-length", 0)) > OFF_LOOP_BYTES:
                job = await asyncio.to_thread(make_job, body, self._served)
            else:
                job = make_job(body, self._served)
            self._check_alive()
            generation = Generation(job, self._served, self._runner)
            await generation.submit()
        except ApiError as error:
            self._metrics.rejected(error.code)
            raise
        return GenerationResponse(generation, stream=job.stream)

    def _check_model(self, name: Any) -> None:
        if name is not None and name != self._served.name:
            raise ApiError(
                f"the model {name!r} does not exist here; this server has {self._served.name!r}",
                status=404,
                code="model_not_found",
                param="model",
            )

    def _check_alive(self) -> None:
        if self._runner.failure is not None:
            raise ApiError(f"the engine died: {self._runner.failure}", status=503, code="engine_dead")

    # Tokens

    async def tokenize(self, http: HttpRequest) -> Response:
        body = parse(TokenizeBody, await read_json(http))
        self._check_model(body.model)
        tokenizer = self._served.tokenizer
        if body.messages is not None:
            chat = parse(ChatBody, body.model_dump(include={"messages", "add_generation_prompt"}))
            ids = chat_prompt(chat, self._served)
        elif body.prompt is not None:
            ids = tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
        else:
            raise ApiError("prompt or messages is needed", code="missing_parameter", param="prompt")
        words = [tokenizer.token(token) for token in ids] if body.return_token_strs else None
        length = self._served.settings.max_model_len
        return json_response({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": words})

    async def detokenize(self, http: HttpRequest) -> Response:
        body = parse(DetokenizeBody, await read_json(http))
        self._check_model(body.model)
        if body.tokens:
            check_ids(body.tokens, self._served.vocab_size, "tokens")
        return json_response({"prompt": self._served.tokenizer.decode(body.tokens, skip_special_tokens=False)})

    # Operation

    async def health(self, http: HttpRequest) -> Response:
        """200 while the engine thread lives. Runs no model."""
        return Response(status_code=200 if self._runner.failure is None else 503)

    async def version(self, http: HttpRequest) -> Response:
        return json_response({"version": self._served.version})

    async def models(self, http: HttpRequest) -> Response:
        served = self._served
        card = {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "servescope",
            "root": served.name,
            "parent": None,
            "max_model_len": served.settings.max_model_len,
        }
        return json_response({"object": "list", "data": [card]})

    async def metrics(self, http: HttpRequest) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def reset_prefix_cache(self, http: HttpRequest) -> Response:
        self._check_alive()
        return json_response({"success": await self._runner.reset_prefix_cache()})

    async def server_info(self, http: HttpRequest) -> Response:
        return json_response({**self._served.resolved(), "fingerprint": self._served.fingerprint})


def build_app(served: Served, runner: EngineRunner, metrics: Metrics) -> Starlette:
    routes = Routes(served, runner, metrics)
    table: list[tuple[str, str, Callable[[HttpRequest], Awaitable[Response]]]] = [
        ("POST", "/v1/completions", routes.completions),
        ("POST", "/v1/chat/completions", routes.chat_completions),
        ("POST", "/tokenize", routes.tokenize),
        ("POST", "/detokenize", routes.detokenize),
        ("GET", "/health", routes.health),
        ("GET", "/ping", routes.health),
        ("GET", "/version", routes.version),
        ("GET", "/v1/models", routes.models),
        ("GET", "/metrics", routes.metrics),
        ("GET", "/server_info", routes.server_info),
        ("POST", "/reset_prefix_cache", routes.reset_prefix_cache),
    ]
    return Starlette(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in table],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _defect},
    )


async def _api_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    words = {404: f"no route {http.url.path}", 405: f"{http.url.path} does not take {http.method}"}
    codes = {404: "unknown_route", 405: "method_not_allowed"}
    status = error.status_code
    return ApiError(words.get(status, error.detail), status=status, code=codes.get(status, "http_error")).response()


async def _defect(http: HttpRequest, error: Exception) -> Response:
    """A defect of ours: the client learns that, the traceback goes to the log."""
    return ApiError(f"internal error: {type(error).__name__}", status=500, code="internal_error").response()
