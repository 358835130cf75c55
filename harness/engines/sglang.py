"""SGLang: its command line, its configuration as it resolved it, its flush. Checked on 0.5.23."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.engines.exposition_facts import gauge
from harness.engines.facts import fingerprint, first, inner, integer, negated, word
from harness.engines.http import get_json, get_metrics, post
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
from harness.records.manifest import CacheProof, CacheState, EngineInfo

FLAGS = {
    "block_size": "--page-size",
    "kv_tokens": "--max-total-tokens",
    "max_model_len": "--context-length",
    "max_num_seqs": "--max-running-requests",
    "max_batched_tokens": "--chunked-prefill-size",
    "dtype": "--dtype",
}
# What else of /server_info changes behaviour; the whole document holds several hundred settings.
SETTINGS = (
    "attention_backend",
    "sampling_backend",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_running_requests",
    "max_total_tokens",
    "mem_fraction_static",
    "page_size",
    "schedule_policy",
    "schedule_conservativeness",
    "disable_radix_cache",
    "radix_eviction_policy",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "num_continuous_decode_steps",
    "stream_interval",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "device",
    "tp_size",
    "pp_size",
    "dp_size",
    "speculative_algorithm",
    "decode_log_interval",
    "enable_metrics",
    "enable_cache_report",
    "context_length",
    "sampling_defaults",
    "random_seed",
)


class SGLangEngine:
    kind = "sglang"
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
        options = check_options(config, (*FLAGS, "prefix_caching", "threads", "device"))
        argv = [interpreter(config), "-m", "sglang.launch_server", "--model-path", str(model.path)]
        argv += ["--served-model-name", model.name, "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--random-seed", "0"]  # the default is drawn at each start
        more, environ = evidence(config)
        environ |= {"HF_HUB_OFFLINE": "1"}
        if on_cpu(config):
            argv += ["--device", "cpu"]
            environ |= {"SGLANG_USE_CPU_ENGINE": "1"}
        argv += flags(options, FLAGS)
        if options.get("prefix_caching") is False:
            argv.append("--disable-radix-cache")
        if "threads" in options:
            environ |= {"OMP_NUM_THREADS": str(options["threads"])}
        # /ready runs no generation; /health would, see profiles.toml.
        return LaunchSpec(argv=(*argv, *more, *config.args), environ=environ, ready_path="/ready", ready_s=600.0)

    def describe(self, endpoint: Endpoint, *, log: Path | None = None) -> EngineInfo:
        info = get_json(endpoint, "/server_info") or {}
        metrics = get_metrics(endpoint)
        state = (info.get("internal_states") or [{}])[0]
        pool = [
            gauge(metrics, "sglang:max_total_num_tokens"),
            info.get("max_total_num_tokens"),
            inner(state, "memory_usage", "token_capacity"),
        ]
        page = gauge(metrics, "sglang:page_size")
        running = [inner(state, "effective_max_running_requests_per_dp"), info.get("max_running_requests")]
        return EngineInfo(
            kind=self.kind,
            name=self.kind,
            version=word(info.get("version")),
            url=endpoint.base_url,
            block_size=integer(first([page, info.get("page_size")])),
            kv_tokens=integer(first(pool)),
            max_model_len=integer(
                first([gauge(metrics, "sglang:context_len"), model_card(endpoint).get("max_model_len")])
            ),
            prefix_caching=negated(info.get("disable_radix_cache")),
            scheduler=word(info.get("schedule_policy")),
            async_loop=negated(info.get("disable_overlap_schedule")),
            max_num_seqs=integer(first(running)),
            max_batched_tokens=integer(info.get("chunked_prefill_size")),
            resolved=_settings(info),
            fingerprint=fingerprint(self.kind, word(info.get("version")), _settings(info)),  # the engine has none
            log_facts=log_facts(self.kind, log),
        )

    def reset_cache(self, endpoint: Endpoint, state: CacheState) -> CacheProof:
        if state != "flushed":
            return declared(state, f"nothing was asked of the engine for state {state}")
        # The timeout lets the engine wait until it is idle; while it is busy it answers 400 and flushes nothing.
        response = post(endpoint, "/flush_cache?timeout=5", timeout_s=15.0)
        said = " ".join(response.text.split())[:200]
        return CacheProof(
            state=state,
            method="POST /flush_cache",
            proven=response.status_code == 200 and said.startswith("Cache flushed"),
            evidence=f"status {response.status_code}, {said}",
        )

    def encode(self, request: GenerationRequest, model: str) -> Encoded:
        body = completion_body(request, model)
        if request.adapter is not None:
            body |= {"model": model, "lora_path": request.adapter}
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


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    """The settings of a /server_info document that change behaviour."""
    return {name: document[name] for name in SETTINGS if name in document}
