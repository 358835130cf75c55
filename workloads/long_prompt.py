"""long-prompt: a long prompt now and then among steady short requests that are decoding.

What it shows: how much a long prefill stalls the streams beside it (chunk gaps, TPOT of the short ones) and how long
the long one itself waits. No two prompts share their first token, so no cache hides the work.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from workloads.lengths import Length, draw
from workloads.model import Request
from workloads.params import Params, Some
from workloads.rng import Stream
from workloads.tokens import TokenSource
from workloads.vocabulary import Vocabulary


class LongPrompt(Params):
    """Every long_every-th of `requests` is long. Lengths are tokens, or [low, high]."""

    requests: Some = 32
    long_every: Annotated[int, Field(ge=2)] = 8
    long_tokens: Length = 1024
    short_tokens: Length = 64
    short_output_tokens: Length = 32
    long_output_tokens: Length = 8

    @model_validator(mode="after")
    def _has_both(self) -> LongPrompt:
        if self.requests < self.long_every:
            raise ValueError(
                f"requests = {self.requests} holds no long prompt, one comes every {self.long_every}; raise requests"
            )
        return self


def build(params: LongPrompt, seed: int, vocabulary: Vocabulary) -> tuple[dict[str, tuple[int, ...]], list[Request]]:
    """Segments and requests in sending order; ids begin with `short` or `long`."""
    source = TokenSource(vocabulary, seed, "long_prompt")
    firsts = source.distinct("token 0", params.requests)
    lengths = Stream.of(seed, "long_prompt", "lengths")
    segments: dict[str, tuple[int, ...]] = {}
    requests = []
    for i, first in enumerate(firsts):
        is_long = i % params.long_every == params.long_every - 1
        name = f"{'long' if is_long else 'short'}-{i:04d}"
        size = draw(params.long_tokens if is_long else params.short_tokens, lengths)
        output = draw(params.long_output_tokens if is_long else params.short_output_tokens, lengths)
        segments[name] = (first, *source.body(name, size - 1))
        requests.append(Request(request_id=name, session_id=name, turn=0, prompt=(name,), max_tokens=output))
    return segments, requests
