"""prefix-hit: full, partial and miss sets of one shape, so that the cache alone makes the difference between them.

Each group first plants its prefix; its followers wait for that answer, so what is cached when they arrive is known.
All prompts have prefix_tokens + suffix_tokens tokens (k = partial_share × prefix_tokens, rounded down):

    plant    F | head        | t | tail      | own suffix       class none
    full     F | head        | t | tail      | the same suffix  the whole prompt was sent before
    partial  F | head        | X | tail      | own suffix       the first k tokens were
    miss     X | head        | t | tail      | own suffix       none were: the key chain breaks at token 0
             0   1 … k − 1     k   k + 1 …     prefix_tokens …

X is a token that no other prompt has at that place, so nothing more is ever shared, even in pages of one token. All
other tokens of a partial or miss prefix are the group's: an engine that hit on them would have lost its chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from workloads.model import CacheClass, Request
from workloads.params import Count, Params, Some
from workloads.rng import Stream
from workloads.tokens import TokenSource
from workloads.vocabulary import Vocabulary

FOLLOWERS: tuple[CacheClass, ...] = ("full", "partial", "miss")


class PrefixHit(Params):
    """Counts are requests over all groups, dealt to the groups in turn."""

    full: Count = 8
    partial: Count = 8
    miss: Count = 8
    groups: Some = 2
    prefix_tokens: Some = 256
    partial_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    suffix_tokens: Count = 32
    output_tokens: Some = 24
    order: Literal["interleaved", "blocked", "shuffled"] = "interleaved"

    @property
    def shared(self) -> int:
        """k: tokens from the start that a partial prompt shares with its group."""
        return int(self.partial_share * self.prefix_tokens)

    @property
    def prompt_tokens(self) -> int:
        return self.prefix_tokens + self.suffix_tokens

    @model_validator(mode="after")
    def _splits(self) -> PrefixHit:
        if self.partial and self.shared < 1:
            raise ValueError(f"partial_share × prefix_tokens is {self.shared} tokens; a partial hit needs at least 1")
        if self.partial and self.shared == self.prompt_tokens:
            raise ValueError("partial_share = 1 needs suffix_tokens >= 1, or a partial prompt would be a full one")
        return self


def build(params: PrefixHit, seed: int, vocabulary: Vocabulary) -> tuple[dict[str, tuple[int, ...]], list[Request]]:
    """Segments and requests: the planting requests of all groups, then the followers in their order."""
    source = TokenSource(vocabulary, seed, "prefix_hit")
    firsts = source.distinct("token 0", params.groups + params.miss)
    segments: dict[str, tuple[int, ...]] = {}
    for group in range(params.groups):
        _plant_segments(segments, source, params, group, firsts[group])
    requests = [_plant(params, segments, group) for group in range(params.groups)]

    dealt = _deal(params, seed)
    breaks = _break_tokens(params, source, segments, dealt)
    misses = iter(firsts[params.groups :])
    for cache_class, index in dealt:
        group = index % params.groups
        name = f"{cache_class}-{index:04d}"
        if cache_class != "full":
            at = next(misses) if cache_class == "miss" else breaks[index]
            _own_segments(segments, source, params, name, cache_class, at)
        requests.append(_follower(params, segments, name, cache_class, group))
    return segments, requests


def _plant_segments(
    segments: dict[str, tuple[int, ...]], source: TokenSource, params: PrefixHit, group: int, first: int
) -> None:
    prefix = (first, *source.body(f"group {group}", params.prefix_tokens - 1))
    k = max(params.shared, 1)
    parts = {"first": prefix[:1], "head": prefix[1:k], "turn": prefix[k : k + 1], "tail": prefix[k + 1 :]}
    parts["suffix"] = source.body(f"group {group} suffix", params.suffix_tokens)
    segments.update({f"group-{group}.{part}": ids for part, ids in parts.items() if ids})


def _own_segments(
    segments: dict[str, tuple[int, ...]],
    source: TokenSource,
    params: PrefixHit,
    name: str,
    cache_class: CacheClass,
    at: int,
) -> None:
    """The distinct token and the suffix of one partial or miss prompt."""
    suffix = source.body(name, params.suffix_tokens)
    if cache_class == "partial" and params.shared == params.prefix_tokens:
        suffix = (at, *suffix[1:])
    else:
        segments[f"{name}.{'first' if cache_class == 'miss' else 'turn'}"] = (at,)
    if suffix:
        segments[f"{name}.suffix"] = suffix


def _break_tokens(
    params: PrefixHit,
    source: TokenSource,
    segments: Mapping[str, tuple[int, ...]],
    dealt: list[tuple[CacheClass, int]],
) -> dict[int, int]:
    """For each partial request the token at which it leaves its group, unlike the group's own and each other's."""
    tokens: dict[int, int] = {}
    for group in range(params.groups):
        members = sorted(i for cache_class, i in dealt if cache_class == "partial" and i % params.groups == group)
        where = "turn" if params.shared < params.prefix_tokens else "suffix"
        taken = frozenset(segments[f"group-{group}.{where}"][:1]) if members else frozenset()
        drawn = source.distinct(f"token {params.shared} of group {group}", len(members), without=taken)
        tokens.update(zip(members, drawn, strict=True))
    return tokens


def _deal(params: PrefixHit, seed: int) -> list[tuple[CacheClass, int]]:
    """(class, index within the class) of every follower, in sending order."""
    counts = {"full": params.full, "partial": params.partial, "miss": params.miss}
    if params.order == "interleaved":
        rounds = range(max(counts.values()))
        return [(cache_class, i) for i in rounds for cache_class in FOLLOWERS if i < counts[cache_class]]
    blocked = [(cache_class, i) for cache_class in FOLLOWERS for i in range(counts[cache_class])]
    return Stream.of(seed, "prefix_hit", "order").shuffled(blocked) if params.order == "shuffled" else blocked


def _prompt(segments: Mapping[str, tuple[int, ...]], name: str, group: int) -> tuple[str, ...]:
    """Own segments where the request has them, else the group's; parts of no length are left out."""
    parts = []
    for part in ("first", "head", "turn", "tail", "suffix"):
        own, shared = f"{name}.{part}", f"group-{group}.{part}"
        parts.append(own if own in segments else shared)
    return tuple(part for part in parts if part in segments)


def _plant(params: PrefixHit, segments: Mapping[str, tuple[int, ...]], group: int) -> Request:
    name = f"group-{group}"
    return Request(
        request_id=f"plant-{group:04d}",
        session_id=name,
        turn=0,
        prompt=_prompt(segments, name, group),
        max_tokens=params.output_tokens,
    )


def _follower(
    params: PrefixHit, segments: Mapping[str, tuple[int, ...]], name: str, cache_class: CacheClass, group: int
) -> Request:
    shared = {"full": params.prompt_tokens, "partial": params.shared}.get(cache_class, 0)
    return Request(
        request_id=name,
        session_id=f"group-{group}",
        turn=1,
        prompt=_prompt(segments, name, group),
        max_tokens=params.output_tokens,
        cache_class=cache_class,
        shared_tokens=shared,
        after=(f"plant-{group:04d}",),
    )
