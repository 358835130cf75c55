"""Request bodies of the two generation routes: types and ranges, checked before anything is tokenised.

Fields that nobody knows are ignored, as vLLM does. Fields that vLLM honours and this server does not are refused unless
they carry their neutral value: an answer that silently left one out would look right and be wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request as HttpRequest

from native_core.server.errors import ApiError

MAX_BODY_BYTES = 32 << 20
MAX_SEQUENCES = 1024  # prompts x n of one request
MAX_LOGPROBS = 20  # vLLM's default of --max-logprobs
INT64 = 1 << 63

# Options that change the answer and are not built: name -> values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None, []),
    "audio": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "functions": (None, []),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "logit_bias": (None, {}),
    "logprob_token_ids": (None, []),
    "presence_penalty": (None, 0),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "tools": (None, []),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
}

Stop = str | list[str] | None
Count = Annotated[int, Field(ge=1)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationBody(BaseModel):
    """What completions and chat have in common. `None` is "not said": the model's or OpenAI's default applies."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = 1
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None  # -1 and 0 are off
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Stop = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    priority: Annotated[int, Field(ge=-INT64, lt=INT64)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False


class CompletionBody(GenerationBody):
    prompt: Any = None  # str | list[str] | list[int] | list[list[int]]; read by prompts.py, which names the bad item
    max_tokens: Count | None = 16  # OpenAI's default; an explicit null means the same
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool = True


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")  # templates read fields of their own

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(GenerationBody):
    messages: list[Message] = Field(min_length=1)
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: Literal[False] = False
    chat_template: None = None  # a template from outside is code from outside
    chat_template_kwargs: dict[str, Any] | None = None


Body = TypeVar("Body", bound=BaseModel)


async def read_json(http: HttpRequest) -> dict[str, Any]:
    """The JSON object of a request. ApiError 413 beyond MAX_BODY_BYTES, 400 for anything but an object."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in http.stream():
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            chunks.append(chunk)
    if size > MAX_BODY_BYTES:  # read to its end all the same: who is still sending sees a reset, not an answer
        raise ApiError(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", status=413, code="body_too_large")
    try:
        document = orjson.loads(b"".join(chunks))
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise ApiError("the body must be a JSON object", code="invalid_json")
    return document


def parse(kind: type[Body], document: dict[str, Any]) -> Body:
    """A checked body. ApiError 400 that names the first wrong field, or the first option that is not built."""
    for name, neutral in UNSUPPORTED.items():
        if name in document and document[name] not in neutral:
            raise ApiError(f"{name} is not supported by this server", code="unsupported_parameter", param=name)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(part) for part in first["loc"] if part not in ("str", "list[str]"))
        code = "missing_parameter" if first["type"] == "missing" else "invalid_value"
        raise ApiError(f"{param}: {first['msg']}", code=code, param=param) from None
