"""From a checked body to a job: prompts as ids, limits against the context, sampling with its defaults filled in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from native_core.executor import SamplingParams
from native_core.server.bodies import MAX_LOGPROBS, MAX_SEQUENCES, ChatBody, CompletionBody, GenerationBody
from native_core.server.errors import ApiError
from native_core.server.prompts import check_ids, read_prompts
from native_core.server.served import Served

Kind = Literal["completion", "chat"]
TEMPLATE_NAMES = {"messages", "add_generation_prompt", "bos_token", "eos_token", "unk_token", "pad_token"}


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request for text. It becomes len(prompts) x n engine requests; choice i answers prompt i // n."""

    kind: Kind
    id: str
    created: int
    prompts: list[list[int]]
    n: int
    max_tokens: list[int]  # one per prompt
    sampling: SamplingParams
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    keep_stop: bool
    skip_special: bool
    ignore_eos: bool
    min_tokens: int
    priority: int
    salt: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    started: float = field(default_factory=time.perf_counter)

    @property
    def logprobs(self) -> int | None:
        return self.sampling.logprobs


def completion_job(body: CompletionBody, served: Served) -> Job:
    """Encodes the prompts: for long text worth a thread of its own. ApiError for what the model cannot take."""
    prompts = []
    for at, prompt in enumerate(read_prompts(body.prompt)):
        param = f"prompt.{at}" if isinstance(body.prompt, list) and body.prompt is not prompt else "prompt"
        if isinstance(prompt, str):
            ids = served.tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens)
        else:
            ids = prompt
        check_ids(ids, served.vocab_size, param)
        prompts.append(ids)
    limit = body.max_tokens if body.max_tokens is not None else 16
    return _job("completion", body, served, prompts, [limit] * len(prompts), body.logprobs)


def chat_job(body: ChatBody, served: Served) -> Job:
    """Renders the messages with the model's template. Without a limit the answer may fill the context."""
    ids = chat_prompt(body, served)
    check_ids(ids, served.vocab_size, "messages")
    limit = body.max_completion_tokens or body.max_tokens or max(1, served.settings.max_model_len - len(ids))
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    return _job("chat", body, served, [ids], [limit], (body.top_logprobs or 0) if body.logprobs else None)


def chat_prompt(body: ChatBody, served: Served) -> list[int]:
    """The ids of the rendered messages. ApiError for content that is not text, or that the template refuses."""
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    for message in messages:
        message["content"] = plain_text(message.get("content"))
    extra = body.chat_template_kwargs or {}
    if TEMPLATE_NAMES.intersection(extra):
        raise ApiError("chat_template_kwargs must not name what the body has fields for", param="chat_template_kwargs")
    try:
        text = served.tokenizer.apply_chat_template(messages, add_generation_prompt=body.add_generation_prompt, **extra)
    except ValueError as error:
        raise ApiError(f"messages: {error}", param="messages", code="chat_template") from None
    return served.tokenizer.encode(text, add_special_tokens=False)  # the template writes them itself


def plain_text(content: str | list[dict[str, Any]] | None) -> str:
    """Content parts joined; only text is taken."""
    if isinstance(content, list):
        for part in content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ApiError("only text content is supported", param="messages", code="unsupported_content")
        return "".join(part["text"] for part in content)
    return content or ""


def _job(
    kind: Kind, body: GenerationBody, served: Served, prompts: list[list[int]], limits: list[int], logprobs: int | None
) -> Job:
    n = body.n or 1
    _check_limits(body, served, prompts, limits, n)
    stream, options = bool(body.stream), body.stream_options
    if options is not None and not stream:
        raise ApiError("stream_options needs stream: true", param="stream_options")
    return Job(
        kind=kind,
        id=f"{'cmpl' if kind == 'completion' else 'chatcmpl'}-{secrets.token_hex(16)}",
        created=int(time.time()),
        prompts=prompts,
        n=n,
        max_tokens=limits,
        sampling=_sampling(body, served.sampling_defaults, n, logprobs),
        stops=_stops(body),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        keep_stop=body.include_stop_str_in_output,
        skip_special=body.skip_special_tokens,
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        priority=body.priority,
        salt=body.cache_salt,
        stream=stream,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
    )


def _check_limits(body: GenerationBody, served: Served, prompts: list[list[int]], limits: list[int], n: int) -> None:
    context = served.settings.max_model_len
    for ids, limit in zip(prompts, limits, strict=True):
        if len(ids) + limit > context:
            raise ApiError(
                f"the model's context is {context} tokens, but the prompt has {len(ids)} and {limit} more were asked "
                f"for; shorten the prompt or lower max_tokens",
                code="context_length_exceeded",
                param="max_tokens" if len(ids) < context else "prompt",
            )
        if body.min_tokens > limit:
            raise ApiError(f"min_tokens {body.min_tokens} is more than max_tokens {limit}", param="min_tokens")
    if len(prompts) * n > MAX_SEQUENCES:
        raise ApiError(f"{len(prompts)} prompts x n {n} is more than {MAX_SEQUENCES} answers", param="n")
    wrong = [token for token in body.stop_token_ids or () if not 0 <= token < served.vocab_size]
    if wrong:
        raise ApiError(f"stop_token_ids: {wrong[0]} is outside the vocabulary", param="stop_token_ids")
    if body.priority and served.settings.options.policy != "priority":
        raise ApiError("priority other than 0 needs a server started with --policy priority", param="priority")


def _stops(body: GenerationBody) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stops:
        raise ApiError("stop must not contain an empty string", param="stop")
    return stops


def _sampling(body: GenerationBody, defaults: Mapping[str, Any], n: int, logprobs: int | None) -> SamplingParams:
    """What the body says, else what the model's generation_config.json says, else OpenAI's defaults."""

    def pick(name: str, otherwise: Any) -> Any:
        said = getattr(body, name)
        return said if said is not None else defaults.get(name, otherwise)

    temperature = float(pick("temperature", 1.0))
    if n > 1 and temperature == 0:
        raise ApiError("n above 1 needs a temperature above 0: greedy answers are all the same", param="n")
    return SamplingParams(
        temperature=temperature,
        top_p=float(pick("top_p", 1.0)),
        top_k=max(int(pick("top_k", 0)), 0),
        min_p=float(pick("min_p", 0.0)),
        seed=body.seed,
        logprobs=min(logprobs, MAX_LOGPROBS) if logprobs is not None else None,
    )
