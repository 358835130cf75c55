"""What a cell keeps of its prompts when they must not be kept: who shares which prefix with whom, and nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness.records.prefixes import common_tokens, encode_ids
from workloads.model import AnswerOf, Request, Workload


def pseudonyms(sequences: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
    """A number in place of each token: two sequences have the same at a place exactly if they are equal up to it.

    So all prefixes stay what they were, which is all that a cache can see. A token that is said twice gets two
    numbers: nothing can be counted, as it could if each id had a number of its own, and letters are found by that.
    """
    keys = [encode_ids(sequence) for sequence in sequences]
    order = sorted(range(len(keys)), key=keys.__getitem__)  # each shares most with the one before it
    shared = dict.fromkeys(order[:1], 0)
    shared |= {place: common_tokens(keys[before], keys[place]) for before, place in pairwise(order)}
    first: dict[int, int] = {}  # numbers are handed out in random order, or they would tell that of the prompts
    used = 0
    for place in secrets.SystemRandom().sample(order, len(order)):
        first[place] = used
        used += len(sequences[place]) - shared[place]
    found: dict[int, NDArray[np.int64]] = {}
    last = np.zeros(0, dtype=np.int64)
    for place in order:
        fresh = len(sequences[place]) - shared[place]
        last = np.concatenate([last[: shared[place]], np.arange(first[place], first[place] + fresh, dtype=np.int64)])
        found[place] = last
    return [found[place] for place in range(len(keys))]


def redacted(workload: Workload) -> Workload:
    """The workload with every prompt under pseudonyms, in segments of its own.

    Answers that are known only at run time stay answers; what follows one is shared only with what follows the same.
    """
    top = 1 + max((max(ids, default=0) for ids in workload.segments.values()), default=0)
    answers = {request.request_id: top + place for place, request in enumerate(workload.requests)}
    hidden = pseudonyms([_flat(workload, request, answers) for request in workload.requests])
    segments: dict[str, tuple[int, ...]] = {}
    requests = []
    for number, (request, ids) in enumerate(zip(workload.requests, hidden, strict=True)):
        parts: list[str | AnswerOf] = []
        at = 0
        for part in request.prompt:
            if isinstance(part, AnswerOf):
                parts.append(part)
                at += 1
                continue
            name, size = f"{number}.{len(parts)}", len(workload.segments[part])
            segments[name] = tuple(ids[at : at + size].tolist())
            parts.append(name)
            at += size
        requests.append(replace(request, prompt=tuple(parts)))
    return replace(workload, segments=segments, requests=tuple(requests), vocab_size=None)


def without_words(requests: pa.Table) -> pa.Table:
    """requests.parquet without what a server said of a failure, which may quote a prompt; its kind and status stay."""
    place = requests.schema.get_field_index("error")
    field = requests.schema.field(place)
    return requests.set_column(place, field, pa.nulls(requests.num_rows, field.type))


def _flat(workload: Workload, request: Request, answers: dict[str, int]) -> list[int]:
    """The ids of a prompt, with one that no vocabulary has for each answer."""
    ids: list[int] = []
    for part in request.prompt:
        ids += workload.segments[part] if isinstance(part, str) else [answers[part.request_id]]
    return ids
