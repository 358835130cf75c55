"""The workload families by name, and the one way to make a workload from parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from workloads import long_prompt, multi_turn, prefix_hit
from workloads.arrivals import CLOSED, arrival_times, check_load
from workloads.model import Load, Request, Workload, WorkloadError
from workloads.params import Params, parse, suggest
from workloads.rng import Stream
from workloads.vocabulary import Vocabulary

# Raised when a family gives other tokens for the same seed and parameters, so that two files can be told apart.
GENERATOR = "servescope/1"

Built = tuple[dict[str, tuple[int, ...]], list[Request]]


@dataclass(frozen=True)
class Family:
    """One kind of workload. `arrives`: what an open load's arrival times are given to."""

    summary: str
    params: type[Params]
    build: Callable[[Any, int, Vocabulary], Built]
    load: Load
    arrives: Literal["requests", "sessions"] = "requests"

    @property
    def defaults(self) -> dict[str, Any]:
        return self.params().model_dump(mode="json")


FAMILIES: Mapping[str, Family] = {
    "prefix_hit": Family(
        "full, partial and no prefix hits in prompts of one shape",
        prefix_hit.PrefixHit,
        prefix_hit.build,
        Load("closed", {"in_flight": 4}),
    ),
    "long_prompt": Family(
        "long prompts now and then among steady short decodes",
        long_prompt.LongPrompt,
        long_prompt.build,
        Load("closed", {"in_flight": 8}),
    ),
    "multi_turn": Family(
        "conversations that send their whole history with every turn",
        multi_turn.MultiTurn,
        multi_turn.build,
        Load("sessions", {"in_flight": 4}),
        arrives="sessions",
    ),
}


def check(family: str, params: Mapping[str, Any], load: Load | None, where: str = "workload") -> tuple[Params, Load]:
    """Checked parameters with defaults, and the load (the family's own when None). Needs no model.

    Raises WorkloadError, one line that names the key, for anything that makes no workload.
    """
    kind = FAMILIES.get(family)
    if kind is None:
        raise WorkloadError(f"{where}: unknown family {family!r}{suggest(family, list(FAMILIES))}")
    parsed = parse(kind.params, params, where)
    load = load or kind.load
    check_load(load, where)
    if load.mode == "trace":
        raise WorkloadError(f"{where}: a trace load comes with a workload file; {family} needs another mode")
    if load.mode == "sessions" and kind.arrives != "sessions":
        raise WorkloadError(f"{where}: {family} has no conversations; use a closed load with in_flight")
    return parsed, load


def generate(
    family: str,
    *,
    name: str,
    seed: int,
    params: Mapping[str, Any],
    load: Load | None,
    vocabulary: Vocabulary,
) -> Workload:
    """The workload of a family: the same tokens and times for the same arguments, on every machine."""
    parsed, load = check(family, params, load, name)
    kind = FAMILIES[family]
    segments, requests = kind.build(parsed, seed, vocabulary)
    return Workload(
        name=name,
        family=family,
        seed=seed,
        params=parsed.model_dump(mode="json"),
        load=load,
        segments=segments,
        requests=tuple(_timed(requests, load, kind, seed)),
        tokenizer_sha256=vocabulary.tokenizer_sha256,
        vocab_size=vocabulary.size,
        generator=GENERATOR,
    )


def _timed(requests: list[Request], load: Load, kind: Family, seed: int) -> list[Request]:
    """Arrival times in row order; turns after the first of a conversation have none, they follow an answer."""
    if load.mode in CLOSED:
        return requests
    arriving = [r for r in requests if kind.arrives == "requests" or r.turn == 0]
    times = arrival_times(load, len(arriving), Stream.of(seed, "arrivals")) or []
    at = {request.request_id: time for request, time in zip(arriving, times, strict=True)}
    return [replace(r, arrival_s=at.get(r.request_id)) for r in requests]
