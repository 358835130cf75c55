"""Cached tokens as they must be: from the workload's contents, the client's times and the engine's block size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.records.judgements import Expected, ExpectedClass, Grade
from harness.records.manifest import EngineInfo
from reports.cache_verdict import Facts, judge
from reports.cell import Cell, Mask
from reports.series import Signals
from reports.sharing import Sent, Shared, in_blocks, parting_token, shared_prefixes

# How the reuse rules of a release were checked. code-parity: run against the engine's own scheduler or tree, case by
# case; read: taken from its source. For a release that is not listed they are those of the nearest listed one.
GRADES: dict[tuple[str, str], Grade] = {
    ("vllm", "0.21.0"): "code-parity",
    ("vllm", "0.24.0"): "code-parity",
    ("vllm", "0.27.1"): "code-parity",
    ("vllm", "0.28.0"): "code-parity",
    ("vllm", "0.31.0"): "code-parity",
    ("vllm", "0.32.0"): "code-parity",
}
MODELLED = ("vllm", "sglang", "native")
RANKS = ("parallel_config.data_parallel_size", "data_parallel_size", "dp_size")
WARMUP = "warm-up"

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Basis:
    """What can hit, per row of `Cell.requests`, in whole blocks. `certain` is `low` if nothing is evicted."""

    low: Tokens
    high: Tokens
    certain: Tokens
    possible: int = 0  # the sum of `high` if the cache was empty at the start
    longest: int = 0
    footprint: int = 0
    parting: int | None = None
    why_interval: str | None = None
    refused: str | None = None


def expect(cell: Cell, signals: Signals) -> Expected:
    """The expectation for a cell with the verdict on what was measured."""
    basis = expectation(cell)
    counters = _growth(signals, "prefix_hit_tokens")
    everything = cell.requests["status"] == "ok"
    total = _summed("all", cell, basis, everything, None if counters is None else round(counters))
    classes = [_summed(name, cell, basis, mask, None) for name, mask in _classes(cell)]
    verdict, explanation = judge(_facts(cell, basis, total, signals))
    exact = basis.refused is None and bool((basis.low[everything] == basis.high[everything]).all())
    why = basis.why_interval or "requests overlapped, and which of them was computed first is not known"
    return Expected(
        exact=exact,
        grade=None if basis.refused else _grade(cell.manifest.engine),
        block_size=cell.manifest.engine.block_size,
        refused=basis.refused,
        why_interval=None if exact or basis.refused else why,
        total=total,
        classes=classes,
        verdict=verdict,
        explanation=explanation,
    )


def expectation(cell: Cell) -> Basis:
    """What each request can have hit, without a look at what it did hit."""
    info = cell.manifest.engine
    nothing = np.zeros(len(cell.requests), dtype=np.int64)
    refused = _refused(cell)
    if refused:
        return Basis(nothing, nothing, nothing, refused=refused)
    if info.prefix_caching is False:
        return Basis(nothing, nothing, nothing)
    assert info.block_size is not None  # by _refused
    sent, places = _sent(cell)
    redacted = _lengths_only(cell)
    shared = _from_lengths(cell, places) if redacted else shared_prefixes(sent)
    lengths = cell.requests["prompt_tokens"][places] if redacted else np.asarray([len(s.prompt) for s in sent])
    certain, high = nothing.copy(), nothing.copy()
    for place, bounds, size in zip(places, shared, lengths, strict=True):
        prompt = int(size) if math.isfinite(size) else 0
        certain[place] = in_blocks(bounds.low, prompt, info.block_size)
        high[place] = in_blocks(bounds.high, prompt, info.block_size)
    footprint = _footprint(cell, info.block_size, certain)
    possible = int(high.sum())
    low, why = certain, None
    leftovers = _leftovers(cell)
    if len(sent) < int(np.isfinite(cell.requests["t_sent"]).sum()) and not redacted:
        leftovers = leftovers or "the prompts of some requests were not kept"
    if leftovers:
        known = np.nan_to_num(cell.requests["prompt_tokens"]).astype(np.int64)
        high = np.maximum(np.maximum(known - 1, 0) // info.block_size * info.block_size, high)
        why = leftovers
    if info.kv_tokens is None:
        low, why = nothing, "the size of the KV cache is not known, so evictions cannot be ruled out"
    elif footprint > info.kv_tokens:
        low = nothing
        why = (
            f"the requests need up to {footprint:,} tokens and the cache holds {info.kv_tokens:,}: evictions may happen"
        )
    return Basis(
        low=low,
        high=high,
        certain=certain,
        possible=possible,
        longest=max((bounds.high for bounds in shared), default=0),
        footprint=footprint,
        parting=None if redacted else parting_token([s.prompt for s in sent if not s.warmup], info.block_size),
        why_interval=why,
    )


def _refused(cell: Cell) -> str | None:
    info = cell.manifest.engine
    if info.kind not in MODELLED:
        return f"the cache rules of a {info.kind} server are not known here"
    if info.prefix_caching is False:
        return None
    if info.block_size is None:
        return "the engine does not say its block size"
    ranks = [info.resolved[name] for name in RANKS if name in info.resolved]
    if any(str(rank).isdigit() and int(rank) > 1 for rank in ranks):
        return "several replicas share the load, and which one served a request is not known"
    return None if _lengths_only(cell) else _other_tokens(cell)


def _lengths_only(cell: Cell) -> bool:
    """Whether the cell keeps of its prompts only how much they share: a redacted one without even pseudonyms."""
    prompts = cell.tables["tokens"]["prompt_ids"]
    return cell.manifest.redacted and prompts.null_count == len(prompts)


def _other_tokens(cell: Cell) -> str | None:
    """The engine must have counted the tokens that were sent; if not, its keys are not made of ours."""
    sent = _prompt_sizes(cell)
    if not sent:
        return "no prompt was kept"
    rows = cell.requests
    for name, status, counted in zip(rows["request_id"], rows["status"], rows["prompt_tokens"], strict=True):
        if status == "ok" and name in sent and math.isfinite(counted) and counted != sent[name]:
            return f"the engine counted {counted:,.0f} prompt tokens in {name} where {sent[name]:,} were sent"
    return None


def _prompt_sizes(cell: Cell) -> dict[str, int]:
    table = cell.tables["tokens"]
    names, prompts = table["request_id"].to_pylist(), table["prompt_ids"]
    return {name: len(prompt) for name, prompt in zip(names, prompts, strict=True) if prompt.is_valid}


def _sent(cell: Cell) -> tuple[list[Sent], list[int]]:
    """The requests that went out and whose prompts are known, with their places in `Cell.requests`."""
    table = cell.tables["tokens"]
    prompts = dict(zip(table["request_id"].to_pylist(), table["prompt_ids"], strict=True))
    answers = dict(zip(table["request_id"].to_pylist(), table["output_ids"], strict=True))
    rows = cell.requests
    lengths_only = _lengths_only(cell)
    found, places = [], []
    for place in np.flatnonzero(np.isfinite(rows["t_sent"])):
        name = rows["request_id"][place]
        if name not in prompts or not (prompts[name].is_valid or lengths_only):
            continue
        prompt = np.asarray(prompts[name].values if prompts[name].is_valid else [], dtype=np.int64)
        answer = np.asarray(answers[name].values, dtype=np.int64) if answers[name].is_valid else None
        tokens = rows["output_tokens"][place]
        found.append(
            Sent(
                request_id=name,
                prompt=prompt,
                answer=answer,
                output_tokens=int(tokens)
                if math.isfinite(tokens)
                else _unknown_answer(answer, rows["max_tokens"][place]),
                t_sent=float(rows["t_sent"][place]),
                t_first=float(rows["t_first_token"][place]),
                t_done=float(rows["t_done"][place]),
                ok=rows["status"][place] == "ok",
                namespace=str(rows["adapter"][place]),
                warmup=rows["phase"][place] == "warmup",
            )
        )
        places.append(int(place))
    return found, places


def _unknown_answer(answer: Tokens | None, max_tokens: float) -> int:
    """The most that an answer without a count can have had."""
    return int(max_tokens) if math.isfinite(max_tokens) else 0 if answer is None else len(answer)


def _from_lengths(cell: Cell, places: Sequence[int]) -> list[Shared]:
    """Bounds for a redacted cell, from the shared lengths that were kept in place of the tokens.

    A request sent later can only be a source if it overlapped, and then its own shared length is a bound.
    """
    table = cell.tables["tokens"]
    rows = cell.requests
    owner = dict(zip(table["request_id"].to_pylist(), table["lcp_request_id"].to_pylist(), strict=True))
    length = dict(zip(table["request_id"].to_pylist(), table["lcp_tokens"].to_pylist(), strict=True))
    place_of = {name: place for place, name in enumerate(rows["request_id"])}
    names = [rows["request_id"][place] for place in places]
    lengths = np.asarray([length[name] or 0 for name in names])
    sent = rows["t_sent"][list(places)]
    bounds = []
    for at, (name, place) in enumerate(zip(names, places, strict=True)):
        source = place_of.get(owner[name] or "", -1)
        done = rows["t_done"][source] if source >= 0 and rows["status"][source] == "ok" else math.inf
        low = int(lengths[at]) if done < sent[at] else 0
        if low:
            offered = rows["prompt_tokens"][source] + max(rows["output_tokens"][source] - 1, 0)
            low = min(low, int(offered)) if math.isfinite(offered) else 0
        first = rows["t_first_token"][place]
        overlapped = (sent > sent[at]) & (sent <= (first if math.isfinite(first) else math.inf))
        bounds.append(Shared(low, int(max(lengths[at], lengths[overlapped].max(initial=0)))))
    return bounds


def _footprint(cell: Cell, block_size: int, certain: Tokens) -> int:
    """Tokens in whole blocks that all requests of the cell occupy at most, if nothing but certain hits is shared."""
    rows = cell.requests
    tokens = np.nan_to_num(rows["prompt_tokens"]) + np.where(
        np.isfinite(rows["output_tokens"]), rows["output_tokens"], np.nan_to_num(rows["max_tokens"])
    )
    went_out = np.isfinite(rows["t_sent"])
    blocks = np.ceil(tokens[went_out] / block_size) * block_size
    return int(blocks.sum() - certain[went_out].sum())


def _leftovers(cell: Cell) -> str | None:
    """Why the cache may have held something before the first request."""
    proof = cell.manifest.cache
    if proof.state == "warm":
        return "the cache was left warm, and what it held is not known"
    return None if proof.proven else f"nothing proves that the cache was {proof.state} at the start"


def _grade(info: EngineInfo) -> Grade:
    kind, version = info.kind, info.version or ""
    if kind == "native":  # it follows the rules of the release that its profile names
        kind, _, version = str(info.resolved.get("profile", "")).partition("-")
    return GRADES.get((kind, version), "read")


def _classes(cell: Cell) -> list[tuple[str, Mask]]:
    """The ok rows of each cache class, and of the warm-up, where there are any."""
    rows = cell.requests
    masks = [(name, cell.ok_mask & (rows["cache_class"] == name)) for name in ("full", "partial", "miss", "none")]
    masks.append((WARMUP, (rows["phase"] == "warmup") & (rows["status"] == "ok")))
    return [(name, np.asarray(mask, dtype=bool)) for name, mask in masks if mask.any()]


def _summed(name: str, cell: Cell, basis: Basis, mask: Mask, counters: int | None) -> ExpectedClass:
    """One class. Usage is None unless every request of the class reported it, for a part cannot be compared."""
    rows = cell.requests.where(mask)
    told = np.isfinite(rows["cached_tokens"])
    return ExpectedClass(
        cache_class=name,
        requests=len(rows),
        prompt_tokens=rows.sum("prompt_tokens"),
        low=None if basis.refused else int(basis.low[mask].sum()),
        high=None if basis.refused else int(basis.high[mask].sum()),
        usage=rows.sum("cached_tokens") if len(rows) and told.all() else None,
        counters=counters,
    )


def _growth(signals: Signals, name: str) -> float | None:
    series = signals.get(name)
    return None if series is None else series.growth()


def _facts(cell: Cell, basis: Basis, total: ExpectedClass, signals: Signals) -> Facts:
    info = cell.manifest.engine
    queries = _growth(signals, "prefix_query_tokens")
    usage = signals.get("kv_usage")
    ok = cell.requests["status"] == "ok"
    return Facts(
        requests=total.requests,
        prompt_tokens=total.prompt_tokens,
        caching=info.prefix_caching,
        block_size=info.block_size,
        refused=basis.refused,
        low=total.low,
        high=total.high,
        certain=int(basis.certain[ok].sum()),
        possible=basis.possible,
        longest=basis.longest,
        footprint=basis.footprint,
        capacity=info.kv_tokens,
        parting=basis.parting,
        usage=total.usage,
        counters=total.counters,
        queries=None if queries is None else round(queries),
        evicted=_growth(signals, "evicted_tokens"),
        preempted=_growth(signals, "preemptions"),
        kv_max=usage.maximum(-math.inf, math.inf) if usage is not None else None,
        unanswered=int((~ok & np.isfinite(cell.requests["t_sent"])).sum()),
    )
