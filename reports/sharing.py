"""What each prompt could have found in the cache, from contents and times alone: no cache figure is looked at.

An earlier request offers its prompt and its answer but for the last token, which is never computed. It is a *certain*
source once the client saw its answer end, and its prompt alone once the client saw its first token: both come after
the computation. It is a *possible* source for any prompt whose first token came after it was sent. So

    low  = longest prefix shared with a certain source at the time of sending
    high = longest prefix shared with a possible source

bound what an engine can reuse whatever its scheduler did, as long as nothing was evicted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from harness.records.prefixes import common_tokens, encode_ids

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Sent:
    """One request as it went out. Times in seconds, NaN where the thing did not happen."""

    request_id: str
    prompt: Ids
    answer: Ids | None  # None: the engine returned no ids
    output_tokens: int
    t_sent: float
    t_first: float
    t_done: float
    ok: bool
    namespace: str = ""  # adapter: prompts of two adapters share nothing
    warmup: bool = False

    @property
    def offered(self) -> int:
        """Tokens whose K and V exist when the request has finished."""
        return len(self.prompt) + max(self.output_tokens - 1, 0)


@dataclass(frozen=True)
class Shared:
    """Tokens of a prompt that certainly were, and at most can have been, computed before. Not yet cut to blocks."""

    low: int
    high: int


@dataclass
class _Prefixes:
    """Sequences sorted by content: the best match of a key is one of its neighbours."""

    keys: list[tuple[bytes, str]] = field(default_factory=list)

    def add(self, key: bytes, owner: str) -> None:
        insort(self.keys, (key, owner))

    def best(self, key: bytes, without: str) -> int:
        at = bisect_left(self.keys, (key, ""))
        found = 0
        for places in (range(at, len(self.keys)), range(at - 1, -1, -1)):
            for place in places:
                other, owner = self.keys[place]
                if owner != without:
                    found = max(found, common_tokens(other, key))
                    break
        return found


@dataclass
class _Namespace:
    certain: _Prefixes = field(default_factory=_Prefixes)
    possible: _Prefixes = field(default_factory=_Prefixes)
    unread: list[tuple[bytes, int, str]] = field(default_factory=list)  # prompts whose answers are unknown


_READ_CERTAIN, _ADD_POSSIBLE, _READ_POSSIBLE, _ADD_CERTAIN = range(4)  # order of what happens at one instant


def shared_prefixes(sent: Sequence[Sent]) -> list[Shared]:
    """Bounds for each request, in the order given. O(n log n) prefix comparisons."""
    events: list[tuple[float, int, int, int]] = []
    for place, request in enumerate(sent):
        first = _first_known(request.t_first, request.t_done, math.inf)
        events.append((request.t_sent, _READ_CERTAIN, place, 0))
        events.append((request.t_sent, _ADD_POSSIBLE, place, 0))
        events.append((first, _READ_POSSIBLE, place, 0))
        if math.isfinite(request.t_first):
            events.append((request.t_first, _ADD_CERTAIN, place, len(request.prompt)))
        if request.ok and math.isfinite(request.t_done):
            events.append((request.t_done, _ADD_CERTAIN, place, request.offered))
    keys = [_key(request.prompt) for request in sent]
    low, high = [0] * len(sent), [0] * len(sent)
    spaces: dict[str, _Namespace] = {}
    for _, what, place, size in sorted(events):
        request, key = sent[place], keys[place]
        space = spaces.setdefault(request.namespace, _Namespace())
        if what == _READ_CERTAIN:
            low[place] = space.certain.best(key, request.request_id)
        elif what == _READ_POSSIBLE:
            high[place] = max(
                space.possible.best(key, request.request_id), _into_unread(space, key, request.request_id)
            )
        elif what == _ADD_POSSIBLE:
            space.possible.add(_sequence(request, key, request.offered), request.request_id)
            if request.answer is None and request.output_tokens > 1:
                space.unread.append((key, request.offered, request.request_id))
        else:
            space.certain.add(_sequence(request, key, size), request.request_id)
    return [Shared(one, max(one, other)) for one, other in zip(low, high, strict=True)]


def _key(ids: Ids) -> bytes:
    return encode_ids(cast("Sequence[int]", ids))


def _first_known(*times: float) -> float:
    return next(time for time in times if not math.isnan(time))


def _sequence(request: Sent, key: bytes, size: int) -> bytes:
    """The first `size` tokens of prompt and answer, as far as they are known."""
    whole = key if request.answer is None else key + _key(request.answer)
    return whole[: 4 * size]


def _into_unread(space: _Namespace, key: bytes, without: str) -> int:
    """A prompt that goes on where another ends may repeat that one's answer, which nobody recorded."""
    return max(
        (
            min(offered, len(key) // 4)
            for other, offered, owner in space.unread
            if owner != without and key.startswith(other)
        ),
        default=0,
    )


def in_blocks(shared: int, prompt_tokens: int, block_size: int) -> int:
    """Tokens that hit: whole blocks, and never the prompt's last token, which must be computed to give an answer."""
    return max(min(shared, prompt_tokens - 1), 0) // block_size * block_size


def parting_token(prompts: Sequence[Ids], block_size: int, *, most: int = 200) -> int | None:
    """Where prompts that are alike part too early to share a block; None when no such prompts are found.

    Two prompts are alike when what comes after their first difference is equal at equal places for at least a block
    and half of the shorter prompt: that much would have hit but for the tokens before it. The answer is the most
    common first difference, the earliest where several are as common.
    """
    found: dict[int, int] = {}
    for place, prompt in enumerate(prompts[:most]):
        for other in prompts[max(0, place - 8) : place]:
            size = min(len(prompt), len(other))
            equal = prompt[:size] == other[:size]
            if equal.all():
                continue
            first = int(np.argmin(equal))
            if first < block_size and equal[first:].sum() >= max(block_size, size // 2):
                found[first] = found.get(first, 0) + 1
    return min(found, key=lambda token: (-found[token], token)) if found else None
