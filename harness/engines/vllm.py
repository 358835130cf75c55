"""vLLM: its command line, its configuration as it resolved it, its reset. Checked on 0.32.0."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from harness.engines.exposition_facts import gauge, info_labels
from harness.engines.facts import fingerprint, inner, integer, truth, word
from harness.engines.http import get_json, get_metrics, post, succeeded
from harness.engines.log_facts import log_facts
from harness.engines.openai import declared, model_card
from harness.engines.openai_stream import COMPLETIONS, completion_body, decode_event, pack
from harness.engines.options import check_options, evidence, flags, interpreter, on_cpu
from harness.engines.protocol import (
    Capabilities,
    Delta,
    Encoded,
    Endpoint,
    EngineConfig,
    GenerationRequest,
    LaunchSpec,
    ModelDir,
)
from harness.records.errors import UsageError
from harness.records.manifest import CacheProof, CacheState, EngineInfo

FLAGS = {
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_batched_tokens": "--max-num-batched-tokens",
    "dtype": "--dtype",
}
CACHE_SETTINGS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_max_concurrency",
    "kv_cache_memory_bytes",
    "kv_cache_size_tokens",
    "num_gpu_blocks",
    "prefix_caching_hash_algo",
    "sliding_window",
)
# Of the whole configuration, what changes behaviour and stays equal from start to start: no ports, paths or keys.
SETTINGS: dict[str, tuple[str, ...]] = {
    "model_config": ("dtype", "max_model_len", "quantization", "enforce_eager", "seed", "generation_config"),
    "scheduler_config": (
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_num_active_seqs",
        "long_prefill_token_threshold",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "enable_chunked_prefill",
        "policy",
        "scheduler_reserve_full_isl",
        "watermark",
        "prefill_schedule_interval",
        "async_scheduling",
        "stream_interval",
    ),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "distributed_executor_backend",
    ),
    "compilation_config": ("mode", "backend", "cudagraph_mode", "cudagraph_capture_sizes", "custom_ops"),
    "kernel_config": ("ir_op_priority", "moe_backend", "linear_backend"),
    "attention_config": ("backend",),
    "speculative_config": ("method", "num_speculative_tokens", "model"),
    "device_config": ("device",),
}
CPU_BLOCK, GPU_BLOCK = 128, 16  # defaults of 0.32 where no block size is given


class VLLMEngine:
    kind = "vllm"
    capabilities = Capabilities(
        id_prompts=True,
        token_ids_back=True,
        continuous_usage=True,
        cached_tokens=True,
        ignore_eos=True,
        salt=True,
        reset=True,
        priority=True,
        metrics=True,
    )

    def launch(self, config: EngineConfig, model: ModelDir, port: int) -> LaunchSpec:
        options = check_options(config, (*FLAGS, "kv_tokens", "prefix_caching", "threads", "device"))
        cpu = on_cpu(config)
        argv = [interpreter(config), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model.path)]
        argv += ["--served-model-name", model.name, "--host", "127.0.0.1", "--port", str(port)]
        argv += flags(options, FLAGS)
        argv += _pool(config, options, cpu)
        if "prefix_caching" in options:
            argv.append("--enable-prefix-caching" if options["prefix_caching"] else "--no-enable-prefix-caching")
        more, environ = evidence(config)
        environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if cpu:
            environ |= _cpu_environ(options)
        return LaunchSpec(argv=(*argv, *more, *config.args), environ=environ, ready_path="/health", ready_s=600.0)

    def describe(self, endpoint: Endpoint, *, log: Path | None = None) -> EngineInfo:
        version = get_json(endpoint, "/version") or {}
        metrics = get_metrics(endpoint)
        cache = info_labels(metrics, "vllm:cache_config_info")
        server = get_json(endpoint, "/server_info?config_format=json") or {}  # dev mode only
        config = inner(server, "vllm_config")
        block = integer(cache.get("block_size"))
        resolved = _resolved(cache, config)
        return EngineInfo(
            kind=self.kind,
            name=self.kind,
            version=word(version.get("version")),
            url=endpoint.base_url,
            block_size=block,
            kv_tokens=usable_tokens(integer(cache.get("num_gpu_blocks")), block),
            max_model_len=integer(model_card(endpoint).get("max_model_len")),
            prefix_caching=truth(cache.get("enable_prefix_caching")),
            scheduler=word(inner(config, "scheduler_config", "policy")),
            async_loop=truth(inner(config, "scheduler_config", "async_scheduling")),
            max_num_seqs=integer(inner(config, "scheduler_config", "max_num_seqs")),
            max_batched_tokens=integer(inner(config, "scheduler_config", "max_num_batched_tokens")),
            resolved=resolved,
            # Its own system_fingerprint stands only in answers, and asking for one would be a generation.
            fingerprint=fingerprint(self.kind, word(version.get("version")), resolved),
            log_facts=log_facts(self.kind, log),
        )

    def reset_cache(self, endpoint: Endpoint, state: CacheState) -> CacheProof:
        if state != "flushed":
            return declared(state, f"nothing was asked of the engine for state {state}")
        response = post(endpoint, "/reset_prefix_cache")
        if response.status_code == 404:
            return declared(state, "no /reset_prefix_cache: the server runs without VLLM_SERVER_DEV_MODE=1")
        usage = gauge(get_metrics(endpoint), "vllm:kv_cache_usage_perc")
        said = f"status {response.status_code}, {response.text.strip()[:200]}, KV usage {usage}"
        proven = succeeded(response) and usage == 0
        return CacheProof(state=state, method="POST /reset_prefix_cache", proven=proven, evidence=said)

    def encode(self, request: GenerationRequest, model: str) -> Encoded:
        body = completion_body(request, model)
        body["ignore_eos"] = request.ignore_eos
        if request.want_token_ids:
            body["return_token_ids"] = True
        if request.priority is not None:
            body["priority"] = request.priority
        if request.salt is not None:
            body["cache_salt"] = request.salt
        return pack(COMPLETIONS, body)

    def decode(self, event: bytes) -> Delta:
        return decode_event(event)


def usable_tokens(blocks: int | None, block_size: int | None) -> int | None:
    """Tokens that requests can occupy: the pool holds back one block, the null block.

    `cache_config_info{kv_cache_size_tokens}` counts that block too; `kv_cache_usage_perc` does not.
    """
    return None if blocks is None or block_size is None else (blocks - 1) * block_size


def _pool(config: EngineConfig, options: dict[str, Any], cpu: bool) -> list[str]:
    """Flags for a pool of exactly `kv_tokens` usable tokens, rounded up to whole blocks, plus the null block."""
    if "kv_tokens" not in options:
        return []
    block = options.get("block_size", CPU_BLOCK if cpu else GPU_BLOCK)
    if cpu and block % 32:
        raise UsageError(
            f"engine {config.name!r}: block_size = {block} is not a multiple of 32", mend="vLLM on a CPU needs one"
        )
    return ["--num-gpu-blocks-override", str(math.ceil(options["kv_tokens"] / block) + 1)]


def _cpu_environ(options: dict[str, Any]) -> dict[str, str]:
    """Variables of the CPU build.

    With a pool given in blocks the space in GiB decides nothing, but set it must be: else the engine first measures
    what memory is free. Threads: left alone, the engine keeps one core back for its scheduler; a count asks for that
    many unbound threads.
    """
    environ = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    if "threads" in options:
        environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(options["threads"])}
    return environ


def _resolved(cache: dict[str, str], config: Any) -> dict[str, Any]:
    """Settings that change behaviour, `section.key`: from the dev-mode document, the cache's from metrics too."""
    resolved: dict[str, Any] = {f"cache_config.{key}": value for key, value in cache.items() if key in CACHE_SETTINGS}
    for section, keys in SETTINGS.items():
        found = inner(config, section)
        if isinstance(found, dict):
            resolved |= {f"{section}.{key}": found[key] for key in keys if key in found}
    return resolved
