"""Warm-up: requests of the measured shape that leave nothing behind that a measured prompt could hit."""

from __future__ import annotations

from statistics import median_low

from workloads.lengths import prompt_lengths
from workloads.model import Load, Request, Workload, WorkloadError
from workloads.rng import Stream
from workloads.tokens import TokenSource
from workloads.vocabulary import Vocabulary

MAX_PROMPT_TOKENS = 256
MAX_OUTPUT_TOKENS = 16
MAX_REQUESTS = 4096


def warmup_workload(measured: Workload, vocabulary: Vocabulary, seed: int) -> Workload:
    """Requests to send in a closed loop before `measured`, as many as can differ in token 0 (4,096 at most).

    Token 0 of each is token 0 of no measured prompt and of no other warm-up prompt; a cache key is a chain from
    token 0, so not even an engine with pages of one token can hit. The rest of the prompt is therefore one segment
    for all. Length: the median measured prompt, at most 256 tokens, and at most 16 tokens of answer, so that several
    go through in the seconds that a warm-up has. They must not be sent twice. Raises WorkloadError when the measured
    prompts leave no token over.
    """
    taken = frozenset(measured.segments[part][0] for part in _first_segments(measured))
    free = len(vocabulary.ids) - len(taken.intersection(vocabulary.ids))
    if free < 1:
        raise WorkloadError(
            f"{measured.name}: its prompts begin with all {len(vocabulary.ids)} tokens of the vocabulary, none is left "
            "for a warm-up; set warmup_s = 0 or ask for fewer requests"
        )
    usable = [i for i in vocabulary.ids if i not in taken]
    order = Stream.of(seed, "warmup", "token 0").sample(free, min(free, MAX_REQUESTS))
    size = min(median_low(prompt_lengths(measured)), MAX_PROMPT_TOKENS)
    output = min(median_low([request.max_tokens for request in measured.requests]), MAX_OUTPUT_TOKENS)
    segments: dict[str, tuple[int, ...]] = {f"first-{i:04d}": (usable[at],) for i, at in enumerate(order)}
    if size > 1:
        segments["body"] = TokenSource(vocabulary, seed, "warmup").body("body", size - 1)
    requests = tuple(
        Request(
            request_id=f"warmup-{i:04d}",
            session_id=f"warmup-{i:04d}",
            turn=0,
            prompt=(f"first-{i:04d}", "body") if size > 1 else (f"first-{i:04d}",),
            max_tokens=output,
        )
        for i in range(len(order))
    )
    return Workload(
        name=f"{measured.name}.warmup",
        family="warmup",
        seed=seed,
        params={"prompt_tokens": size, "output_tokens": output},
        load=Load("closed", {"in_flight": _in_flight(measured)}),
        segments=segments,
        requests=requests,
        tokenizer_sha256=measured.tokenizer_sha256,
        vocab_size=measured.vocab_size,
        generator=measured.generator,
    )


def _first_segments(measured: Workload) -> set[str]:
    """The segments that prompts begin with. Answers never do: a prompt starts with what a user or system says."""
    firsts = set()
    for request in measured.requests:
        part = request.prompt[0]
        if not isinstance(part, str):
            raise WorkloadError(f"{measured.name}: the prompt of {request.request_id} begins with an answer")
        firsts.add(part)
    return firsts


def _in_flight(measured: Workload) -> int:
    """As many streams as a closed load keeps; 4 for an open one, which has no such number."""
    return int(measured.load.params.get("in_flight", 4))
