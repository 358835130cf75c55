"""The in-repo reference engine, started as a process and driven over HTTP like any other."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.engines.facts import integer, truth, word
from harness.engines.http import get_json, post, succeeded
from harness.engines.log_facts import log_facts
from harness.engines.openai import declared, model_card
from harness.engines.openai_stream import COMPLETIONS, completion_body, decode_event, pack
from harness.engines.options import check_options, evidence, flags
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
    "profile": "--profile",
    "block_size": "--block-size",
    "kv_tokens": "--kv-tokens",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_batched_tokens": "--max-batched-tokens",
    "threads": "--threads",
}


class NativeEngine:
    kind = "native"
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
        options = check_options(config, (*FLAGS, "prefix_caching", "device"))
        argv = [sys.executable, "-m", "native_core", "--model", str(model.path), "--served-model-name", model.name]
        argv += ["--host", "127.0.0.1", "--port", str(port), *flags(options, FLAGS)]
        if options.get("prefix_caching") is False:
            argv.append("--no-prefix-caching")
        more, environ = evidence(config)
        return LaunchSpec(argv=(*argv, *more, *config.args), environ=environ, ready_path="/health", ready_s=120.0)

    def describe(self, endpoint: Endpoint, *, log: Path | None = None) -> EngineInfo:
        info = get_json(endpoint, "/server_info") or {}
        version = get_json(endpoint, "/version") or {}
        return EngineInfo(
            kind=self.kind,
            name=self.kind,
            version=word(version.get("version")) or word(info.get("version")),
            url=endpoint.base_url,
            block_size=integer(info.get("block_size")),
            kv_tokens=integer(info.get("kv_tokens")),
            max_model_len=integer(info.get("max_model_len")) or integer(model_card(endpoint).get("max_model_len")),
            prefix_caching=truth(info.get("prefix_caching")),
            scheduler=word(info.get("policy")),
            async_loop=False,
            max_num_seqs=integer(info.get("max_num_seqs")),
            max_batched_tokens=integer(info.get("max_batched_tokens")),
            resolved=info,
            fingerprint=word(info.get("fingerprint")),
            log_facts=log_facts(self.kind, log),
        )

    def reset_cache(self, endpoint: Endpoint, state: CacheState) -> CacheProof:
        if state != "flushed":
            return declared(state, f"nothing was asked of the engine for state {state}")
        response = post(endpoint, "/reset_prefix_cache")
        said = response.text.strip()[:200]
        return CacheProof(
            state=state,
            method="POST /reset_prefix_cache",
            proven=succeeded(response),
            evidence=f"status {response.status_code}, {said}",
        )

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
