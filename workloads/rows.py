"""The lines of a workload file as strict models: an unknown key is a foreign file, not something to skip."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from workloads.model import AnswerOf, CacheClass, Request

SCHEMA = 1

Name = Annotated[str, Field(min_length=1)]
Natural = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LoadLine(Line):
    mode: Name
    params: dict[str, float]


class HeaderLine(Line):
    """The first line. `seeded_ids` = [low, high]: the ids below high that `seed` segments draw from."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    family: Name
    seed: int
    tokenizer_sha256: str | None
    vocab_size: Positive | None
    params: dict[str, Any]
    load: LoadLine
    generator: str
    seeded_ids: Annotated[list[Natural], Field(min_length=2, max_length=2)] | None = None


class SegmentLine(Line):
    """Either `ids`, base64 of little-endian uint32, or `seed` and `n`."""

    segment: Name
    ids: str | None = None
    seed: int | None = None
    n: Positive | None = None

    @model_validator(mode="after")
    def _one_form(self) -> SegmentLine:
        given = (self.ids is not None, self.seed is not None, self.n is not None)
        if given not in {(True, False, False), (False, True, True)}:
            raise ValueError("a segment has either ids, or seed and n")
        return self


class AnswerPart(Line):
    answer_of: Name


class RequestLine(Line):
    request_id: Name
    session: Name
    turn: Natural
    after: list[Name]
    think_s: Seconds
    arrival_s: Seconds | None
    cache_class: CacheClass
    shared_tokens: Natural
    prompt: Annotated[list[Name | AnswerPart], Field(min_length=1)]
    max_tokens: Positive
    ignore_eos: bool
    sampling: dict[str, Any]
    priority: int | None
    adapter: str | None
    grammar: str | None

    @classmethod
    def of(cls, request: Request) -> RequestLine:
        return cls(
            request_id=request.request_id,
            session=request.session_id,
            turn=request.turn,
            after=list(request.after),
            think_s=float(request.think_s),
            arrival_s=None if request.arrival_s is None else float(request.arrival_s),
            cache_class=request.cache_class,
            shared_tokens=request.shared_tokens,
            prompt=[
                part if isinstance(part, str) else AnswerPart(answer_of=part.request_id) for part in request.prompt
            ],
            max_tokens=request.max_tokens,
            ignore_eos=request.ignore_eos,
            sampling=dict(request.sampling),
            priority=request.priority,
            adapter=request.adapter,
            grammar=request.grammar,
        )

    def request(self) -> Request:
        return Request(
            request_id=self.request_id,
            session_id=self.session,
            turn=self.turn,
            prompt=tuple(part if isinstance(part, str) else AnswerOf(part.answer_of) for part in self.prompt),
            max_tokens=self.max_tokens,
            cache_class=self.cache_class,
            shared_tokens=self.shared_tokens,
            after=tuple(self.after),
            think_s=self.think_s,
            arrival_s=self.arrival_s,
            ignore_eos=self.ignore_eos,
            sampling=self.sampling,
            priority=self.priority,
            adapter=self.adapter,
            grammar=self.grammar,
        )
