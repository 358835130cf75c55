"""From logits to a token: greedy, or drawn after temperature, min-p, top-k and top-p, in vLLM's order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from native_core.executor import Sampled, SamplingParams

Array = NDArray[np.float32]
GREEDY_BELOW = 1e-5  # temperatures under it are 0, as in vLLM: dividing by them would overflow


def sample(
    logits: Array, params: SamplingParams, *, stream: int, step: int, banned: frozenset[int] = frozenset()
) -> Sampled:
    """One token from logits (vocabulary,).

    `stream` separates requests without a seed of their own; the draw depends on (seed or stream, step) alone, so it
    is the same in any batch. Log probabilities are the model's own, before temperature and bans, as vLLM reports them.
    """
    allowed = logits
    if banned:
        allowed = logits.copy()
        allowed[list(banned)] = -np.inf
    greedy = params.temperature < GREEDY_BELOW
    token = int(np.argmax(allowed)) if greedy else _draw(allowed, params, stream, step)
    if params.logprobs is None:
        return Sampled(token)
    scores = log_softmax(logits)
    top = _best(scores, params.logprobs)
    return Sampled(token, float(scores[token]), tuple((int(i), float(scores[i])) for i in top))


def _draw(logits: Array, params: SamplingParams, stream: int, step: int) -> int:
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    kept = weights[order]
    if params.min_p > 0.0:
        kept[kept < params.min_p * kept[0]] = 0.0
    if 0 < params.top_k < len(kept):
        kept[kept < kept[params.top_k - 1]] = 0.0  # equals of the last one stay
    if params.top_p < 1.0:
        share = np.cumsum(kept) / kept.sum()
        kept[1:][share[:-1] >= params.top_p] = 0.0  # the token that crosses the line stays
    cumulative = np.cumsum(kept)
    at = np.searchsorted(cumulative, _uniform(params.seed, stream, step) * cumulative[-1], side="right")
    return int(order[min(int(at), int(np.flatnonzero(kept)[-1]))])


def _uniform(seed: int | None, stream: int, step: int) -> float:
    """In [0, 1), from Philox words: the generator's raw output never changes between numpy releases."""
    key = (stream if seed is None else seed) & (2**64 - 1)
    raw = int(np.random.Philox(key=np.array([key, int(seed is None)], dtype=np.uint64), counter=step).random_raw())
    return (raw >> 11) * 2.0**-53


def log_softmax(logits: Array) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    top = wide.max()
    return np.asarray(wide - (top + np.log(np.exp(wide - top).sum())))


def _best(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Indices of the largest scores, best first, ties by index."""
    count = min(count, len(scores))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(scores, -count)[-count]
    candidates = np.flatnonzero(scores >= least)  # in order of index, which a stable sort keeps among equals
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]
