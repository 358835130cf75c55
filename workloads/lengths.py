"""Lengths in tokens: one number, or a pair [low, high] drawn uniformly, both ends included."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from workloads.model import Workload
from workloads.rng import Stream

MAX_TOKENS = 10_000_000


def _length(value: object) -> int | tuple[int, int]:
    pair = list(value) if isinstance(value, list | tuple) else [value, value]
    ends = [end for end in pair if isinstance(end, int) and not isinstance(end, bool)]
    if len(pair) != 2 or len(ends) != 2 or not 1 <= ends[0] <= ends[1] <= MAX_TOKENS:
        raise ValueError(f"a length is a number of tokens from 1 to {MAX_TOKENS}, or [low, high] with low <= high")
    return ends[0] if ends[0] == ends[1] else (ends[0], ends[1])


def _plain(length: int | tuple[int, int]) -> int | list[int]:
    return length if isinstance(length, int) else list(length)


Length = Annotated[int | tuple[int, int], PlainValidator(_length), PlainSerializer(_plain)]


def bounds(length: int | tuple[int, int]) -> tuple[int, int]:
    return (length, length) if isinstance(length, int) else length


def draw(length: int | tuple[int, int], stream: Stream) -> int:
    """One length in tokens. A fixed one draws nothing, so that it costs no randomness."""
    low, high = bounds(length)
    return low if low == high else low + stream.below(high - low + 1)


def prompt_lengths(workload: Workload) -> list[int]:
    """Tokens of each prompt, in request order. An answer that is known only at run time counts with the max_tokens of
    its request: exact where that request ignores the end of sequence, else the most it can be."""
    limits = {row.request_id: row.max_tokens for row in workload.requests}
    sizes = {name: len(ids) for name, ids in workload.segments.items()}
    return [
        sum(sizes[part] if isinstance(part, str) else limits[part.request_id] for part in request.prompt)
        for request in workload.requests
    ]


def longest(workload: Workload) -> int:
    """The largest prompt + answer of the workload in tokens: what an engine's context must hold."""
    pairs = zip(prompt_lengths(workload), workload.requests, strict=True)
    return max((length + request.max_tokens for length, request in pairs), default=0)
