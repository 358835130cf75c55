"""From what an engine says about itself to the settings of its model here; or why it is not modelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from native_core.engine_config import EngineConfig
from native_core.oracle.load import InfoLike, WorkloadLike
from native_core.profiles import PROFILES, find_profile
from native_core.scheduler_queues import Policy

DEFAULT_SEQS, DEFAULT_BUDGET = 256, 2048  # vLLM's server on a CPU or a small GPU, where the engine does not say


class OracleError(ValueError):
    """Settings that make no engine."""


@dataclass(frozen=True)
class Settings:
    """`config` has a pool of the engine's size; `unlimited` says that the engine did not tell it, or has none."""

    config: EngineConfig
    unlimited: bool
    grade: Literal["code-parity", "read"]
    assumed: list[str] = field(default_factory=list)  # what the engine did not say, in words

    def with_blocks(self, usable: int) -> EngineConfig:
        """The same engine with another pool. Block 0 is never used (V11)."""
        return replace(self.config, num_blocks=usable + 1)


def refusal(workload: WorkloadLike, info: InfoLike) -> str | None:
    """Why nothing is predicted; None if the engine and the workload are modelled."""
    profile = profile_name(info)
    if profile is None:
        return f"the scheduling rules of a {info.kind} server are not modelled"
    if profile not in PROFILES:
        return f"no scheduling rules are known for {profile}; known are {', '.join(PROFILES)}"
    if info.block_size is None:
        return "the engine does not say its block size"
    return _unmodelled_engine(info.resolved) or _unmodelled_request(workload) or _too_long(workload, info)


def profile_name(info: InfoLike) -> str | None:
    """The profile that an engine follows: native says its own, vLLM's is its release without a local suffix."""
    if info.kind == "native":
        named = info.resolved.get("profile")
        return None if named is None else str(named)
    if info.kind == "vllm" and info.version:
        return f"vllm-{info.version.split('+')[0]}"
    return None


def _unmodelled_engine(resolved: Mapping[str, Any]) -> str | None:
    if _above_one(_find(resolved, "data_parallel_size")):
        return "several replicas share the load, and which one serves a request is not modelled"
    if _above_one(_find(resolved, "pipeline_parallel_size")):
        return "pipeline parallelism is not modelled"
    if _find(resolved, "sliding_window") not in (None, "", "None"):
        return "sliding-window attention is not modelled: its blocks leave the cache early"
    if _find(resolved, "method") not in (None, "", "None"):
        return "speculative decoding is not modelled"
    if _find(resolved, "enable_chunked_prefill") in (False, "False"):
        return "prefill without chunks is not modelled"
    return None


def _unmodelled_request(workload: WorkloadLike) -> str | None:
    for request in workload.requests:
        if request.grammar is not None:
            return f"constrained decoding is not modelled ({request.request_id} has a grammar)"
        for key in ("n", "prompt_logprobs", "best_of"):
            if request.sampling.get(key) not in (None, 1):
                return f"{key} in the sampling of {request.request_id} is not modelled"
    return None


def _too_long(workload: WorkloadLike, info: InfoLike) -> str | None:
    """The engine would answer such a request with an error, and what follows it is another workload."""
    limits = [
        (info.max_model_len, "its context holds {}"),
        (info.kv_tokens + 1 if info.kv_tokens is not None else None, "its cache leaves room for {}"),
    ]
    answers = {request.request_id: request.max_tokens for request in workload.requests}
    for request in workload.requests:
        parts = (
            len(workload.segments[part]) if isinstance(part, str) else answers[part.request_id]
            for part in request.prompt
        )
        tokens = sum(parts) + request.max_tokens
        for limit, words in limits:
            if limit is not None and tokens > limit:
                return f"the engine would refuse {request.request_id}: {tokens} tokens, and {words.format(limit)}"
    return None


def settle(info: InfoLike, *, longest: int, footprint: int) -> Settings:
    """Settings for a workload that `refusal` let pass. `longest` request in tokens; `footprint` in blocks, enough for
    all requests at once: the pool of an engine that does not say its own."""
    profile, block = profile_name(info), info.block_size
    assert profile is not None, "refusal() first"
    assert block is not None, "refusal() first"
    assumed: list[str] = []

    def said(value: int | None, default: int, name: str) -> int:
        if value is None:
            assumed.append(f"{name} {default:,}")
        return default if value is None else value

    unlimited = info.kv_tokens is None
    usable = footprint if info.kv_tokens is None else info.kv_tokens // block
    if unlimited:
        assumed.append("a cache without limit")
    resolved = info.resolved
    policy: Policy = "priority" if info.scheduler == "priority" else "fcfs"
    threshold = _find(resolved, "long_prefill_token_threshold")
    reserve = _find(resolved, "scheduler_reserve_full_isl")
    try:
        config = EngineConfig(
            num_blocks=max(usable, 1) + 1,
            block_size=block,
            max_num_seqs=said(info.max_num_seqs, DEFAULT_SEQS, "max_num_seqs"),
            max_batched_tokens=said(info.max_batched_tokens, DEFAULT_BUDGET, "max_num_batched_tokens"),
            max_model_len=info.max_model_len or longest + 1,
            policy=policy,
            prefix_caching=info.prefix_caching is not False,
            long_prefill_threshold=int(threshold or _find(resolved, "long_prefill_threshold") or 0),
            watermark=float(_find(resolved, "watermark") or 0.0),
            reserve_full_prompt=reserve not in (False, "False"),
            profile=profile,
            async_scheduling=bool(info.async_loop),
            # vLLM finds blocks that a withdrawn request was about to fill; the native core takes them back.
            forget_uncomputed=info.kind == "native",
        )
    except ValueError as error:
        raise OracleError(str(error)) from None
    return Settings(config, unlimited, find_profile(profile).grade, assumed)


def _find(resolved: Mapping[str, Any], name: str) -> Any:
    """A resolved setting by its last name: engines say `section.key` or `key`."""
    return next((value for key, value in resolved.items() if key == name or key.endswith(f".{name}")), None)


def _above_one(value: Any) -> bool:
    return value is not None and str(value).isdigit() and int(value) > 1
