"""`predict`: what an engine must make of a workload or of a Mooncake trace, with nothing sent and no engine started."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.records.errors import UsageError
from harness.records.manifest import EngineInfo
from native_core.oracle.prediction import Prediction, Range
from native_core.oracle.replay import HitRates
from workloads.model import Workload

PROFILE = "vllm-0.32.0"
BLOCK = 16  # vLLM's own where it runs on a GPU
CURVE = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)  # tokens of cache


def predict_command(
    source: Path, *, profile: str | None, kv_tokens: str | None, block_size: int | None, as_json: bool
) -> int:
    """Print the prediction. 0 also where it is an interval; 2 where nothing is predicted, with the reason."""
    from workloads.traces.mooncake import looks_like_mooncake

    if block_size is not None and block_size < 1:
        raise UsageError(f"--block-size {block_size} is no block", mend="give a number of tokens, such as 16")
    capacity = _capacity(kv_tokens)
    if looks_like_mooncake(source):
        if profile is not None:
            raise UsageError(f"{source} is a trace and is replayed without a scheduler", mend="leave --profile out")
        return _trace(source, capacity, block_size, as_json)
    return _workload(source, profile or PROFILE, capacity, block_size or BLOCK, as_json)


def _capacity(given: str | None) -> int | None:
    """Tokens; None without limit, which is also the default."""
    if given is None or given in ("inf", "infinite"):
        return None
    number = given.replace("_", "").replace(",", "")
    if not number.isdigit() or not int(number):
        raise UsageError(f"--kv-tokens {given} is no number of tokens", mend="give one above 0, or inf")
    return int(number)


def _workload(path: Path, profile: str, kv_tokens: int | None, block_size: int, as_json: bool) -> int:
    from native_core.oracle.expect import expect
    from native_core.profiles import find_profile
    from workloads.file import read_workload

    find_profile(profile)
    workload = read_workload(path)
    info = EngineInfo(
        kind="vllm",  # native follows the same profiles
        name=profile,
        version=profile.removeprefix("vllm-"),
        block_size=block_size,
        kv_tokens=_everything(workload, block_size) if kv_tokens is None else kv_tokens,
        prefix_caching=True,
    )
    prediction = expect(workload, info)
    if prediction.refused:
        raise UsageError(f"{path}: {prediction.refused}", mend="nothing is predicted for it")
    if as_json:
        print(json.dumps({"source": str(path), **prediction.as_record()}, indent=2))
    else:
        print("\n".join(_lines(workload, prediction, unlimited=kv_tokens is None)))
    return 0


def _everything(workload: Workload, block_size: int) -> int:
    """Tokens of a pool that holds all prompts and answers at once."""
    from workloads.lengths import prompt_lengths

    pairs = zip(prompt_lengths(workload), workload.requests, strict=True)
    return sum(-(-(length + row.max_tokens) // block_size) * block_size for length, row in pairs)


def _lines(workload: Workload, prediction: Prediction, *, unlimited: bool) -> list[str]:
    total = prediction.total
    assert total is not None  # not refused
    cache = "a cache without limit" if unlimited else f"{prediction.kv_tokens:,} KV tokens"
    kind = "exact" if prediction.exact else f"over {prediction.schedules} schedules"
    engine = f"{prediction.profile}, block {prediction.block_size}, {cache}, empty at the start"
    share = f"{total.prompt_tokens:,} prompt tokens ({_percent(total.cached, total.prompt_tokens)})"
    lines = [
        f"{workload.name}: {len(workload.requests)} requests on {engine}",
        f"cached  {_tokens(total.cached)} of {share}, {kind} [{prediction.grade}]",
        f"        {prediction.why}",
    ]
    if not prediction.exact:
        lines.append(f"        surely between {prediction.at_least:,} and {prediction.at_most:,}")
    lines += ["", "class    requests  prompt tokens  cached"]
    lines += [
        f"{part.cache_class:8} {part.requests:8,}  {part.prompt_tokens:13,}  {_tokens(part.cached)}"
        for part in prediction.classes
    ]
    lines += ["", f"an infinite cache of single tokens would save {prediction.ceiling:,}; of these are lost to"]
    lines += [
        f"  {loss.cause:16} {_tokens(loss.tokens):>14}  {_points(loss.tokens, total.prompt_tokens)}"
        for loss in prediction.losses
    ]
    return lines + _pool_lines(prediction, unlimited=unlimited) + _queue_lines(prediction)


def _pool_lines(prediction: Prediction, *, unlimited: bool) -> list[str]:
    assert prediction.preemptions is not None  # not refused
    assert prediction.peak_usage is not None
    assert prediction.mean_usage is not None
    assert prediction.kv_tokens is not None  # given, or made to hold everything
    peak, mean = prediction.peak_usage, prediction.mean_usage
    if unlimited:  # a share of no limit says nothing
        size = prediction.kv_tokens
        tokens = [Range(round(found.low * size), round(found.high * size)) for found in (peak, mean)]
        words = f"peak {_tokens(tokens[0])} tokens, mean over time {_tokens(tokens[1])}"
    else:
        words = f"peak {_share(peak)}, mean over time {_share(mean)}"
    return [
        "",
        f"preemptions {_tokens(prediction.preemptions)} [{prediction.grade}]",
        f"KV in use   {words} [{prediction.grade}, given the step model]",
    ]


def _queue_lines(prediction: Prediction) -> list[str]:
    model = prediction.step_time
    words = (
        f"step model: {model['fixed'] * 1e3:g} ms + {model['per_sequence'] * 1e3:g} ms a sequence + "
        f"{model['per_prefill_token'] * 1e6:g} µs a prefill token + "
        f"{model['per_context_token'] * 1e6:g} µs a token read"
    )
    lines = []
    if prediction.queue is None:
        lines.append(f"queue       no bound: {prediction.queue_refused}")
    else:
        queue = prediction.queue
        lines.append(
            f"queue       waits are at least {queue.mean_wait_s:.3f} s in the mean and {queue.max_wait_s:.3f} s in the "
            f"worst case; TTFT {queue.mean_ttft_s:.3f} and {queue.max_ttft_s:.3f} s "
            f"[{prediction.queue_grade}, given the step model]"
        )
    lines.append(words)
    if prediction.assumed:
        lines.append(f"assumed: {', '.join(prediction.assumed)}")
    return lines


def _tokens(found: Range[int]) -> str:
    return f"{found.low:,}" if found.low == found.high else f"{found.low:,} to {found.high:,}"


def _percent(found: Range[int], whole: int) -> str:
    low, high = 100 * found.low / whole, 100 * found.high / whole
    return f"{low:.2f} %" if low == high else f"{low:.2f} to {high:.2f} %"


def _points(found: Range[int], whole: int) -> str:
    low, high = 100 * found.low / whole, 100 * found.high / whole
    return f"{low:.2f} points" if low == high else f"{low:.2f} to {high:.2f} points"


def _share(found: Range[float]) -> str:
    low, high = f"{100 * found.low:.1f}", f"{100 * found.high:.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _trace(path: Path, capacity: int | None, block_size: int | None, as_json: bool) -> int:
    """A replay in file order, one request at a time, prompts only: what published hit rates of traces are."""
    from native_core.oracle.replay import replay
    from workloads.traces.mooncake import BLOCK as TRACE_BLOCK
    from workloads.traces.mooncake import read_mooncake

    rows = read_mooncake(path)
    size = block_size or TRACE_BLOCK
    capacities: list[int | None] = [None, *(tokens for tokens in CURVE if tokens >= size)]
    if capacity is not None:
        capacities = [capacity, None]
    found = [replay(rows, trace_block=TRACE_BLOCK, block_size=size, kv_tokens=tokens) for tokens in capacities]
    engine = replay(rows, trace_block=TRACE_BLOCK, block_size=size, kv_tokens=capacities[0], rule="full")
    if as_json:
        table = [_rates(tokens, rates) for tokens, rates in zip(capacities, found, strict=True)]
        document = {"source": str(path), "block_size": size, "grade": "read", "order": "file"}
        print(json.dumps({**document, "replay": table, "full_blocks": _rates(capacities[0], engine)}, indent=2))
        return 0
    print(f"{path.name}: {len(rows):,} requests, {found[0].tokens:,} prompt tokens, block {size}")
    print("replayed in file order, one at a time, LRU, answers not kept [read]")
    print("KV tokens     hits by block   by token   by request   of the maximum")
    maximum = found[capacities.index(None)]
    for tokens, rates in zip(capacities, found, strict=True):
        name = "unlimited" if tokens is None else f"{tokens:,}"
        of_all = rates.hit_blocks / maximum.hit_blocks if maximum.hit_blocks else 0.0
        shares = [100 * share for share in (rates.by_block, rates.by_token, rates.by_request, of_all)]
        print(f"{name:12}  {shares[0]:11.2f} %  {shares[1]:7.2f} %  {shares[2]:9.2f} %  {shares[3]:13.1f} %")
    name = "unlimited" if capacities[0] is None else f"{capacities[0]:,} tokens"
    print(f"an engine caches full blocks only and always computes the last token: {100 * engine.by_token:.2f} % of the")
    print(f"prompt tokens ({name}) where the lines above, as published replays do, count a started block as cached")
    return 0


def _rates(kv_tokens: int | None, rates: HitRates) -> dict[str, Any]:
    shares = {"by_block": rates.by_block, "by_token": rates.by_token, "by_request": rates.by_request}
    return {"kv_tokens": kv_tokens, **asdict(rates), **shares}
