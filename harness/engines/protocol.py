"""What every engine adapter provides. Adapters hold no state: everything they need is in their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from harness.records.manifest import CacheProof, CacheState, EngineInfo, EvidenceProfile

DeltaKind = Literal["content", "reasoning", "tool", "role", "usage", "error", "done", "other"]


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do over HTTP; what it cannot, reports say plainly."""

    id_prompts: bool = False  # prompts as token ids
    token_ids_back: bool = False  # answer ids in the stream, on request
    continuous_usage: bool = False  # usage in every event, on request
    cached_tokens: bool = False  # usage.prompt_tokens_details.cached_tokens
    ignore_eos: bool = False
    salt: bool = False  # cache_salt
    reset: bool = False  # an endpoint that empties the prefix cache
    priority: bool = False
    metrics: bool = False  # a Prometheus endpoint


@dataclass(frozen=True)
class EngineConfig:
    """One `[[engine]]` of a plan. The adapter translates canonical `options`; `args` go to the engine as they are.

    Canonical options: block_size, kv_tokens, max_model_len, max_num_seqs, max_batched_tokens, prefix_caching (bool),
    dtype, threads, device (left out, an environment named …-cpu is a CPU build); native also: profile.
    """

    name: str
    kind: str
    env: str | None = None  # a row of `servescope engines list`
    python: str | None = None  # interpreter of that environment, resolved from `env`
    url: str | None = None
    api_key_env: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    evidence: EvidenceProfile = "full"


@dataclass(frozen=True)
class ModelDir:
    """A local Hugging Face directory and the name it is served under."""

    name: str
    path: Path


@dataclass(frozen=True)
class LaunchSpec:
    """How to start an engine: pure data, so that it can be shown, tested and recorded."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]  # added to the caller's environment
    ready_path: str  # answers 200 once the engine serves
    ready_s: float  # longest start worth waiting for


@dataclass(frozen=True)
class Endpoint:
    """A server that answers. The key never appears in a repr, and so in no log."""

    base_url: str  # without a trailing slash, base path included: "http://127.0.0.1:8000"
    model: str
    api_key: str | None = field(default=None, repr=False)
    metrics_url: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class GenerationRequest:
    """One request, engine-neutral. Exactly one of `prompt_ids` and `prompt_text` is set."""

    request_id: str
    max_tokens: int
    prompt_ids: tuple[int, ...] | None = None
    prompt_text: str | None = None
    ignore_eos: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, top_p, seed …; empty is greedy
    priority: int | None = None
    adapter: str | None = None
    salt: str | None = None
    want_token_ids: bool = False
    want_continuous_usage: bool = False


@dataclass(frozen=True)
class Encoded:
    """Bytes ready to send, made before the clock starts. `path` is relative to the endpoint's base path."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True)
class Delta:
    """What one stream event says. `n_tokens` is None when the event does not tell (text only).

    One event may carry content and usage at once; `kind` is then that of the content. An event without tokens has
    kind usage, role, other or done ("[DONE]"); an error object inside the stream has kind error and `error` text.
    """

    kind: DeltaKind
    n_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    engine_request_id: str | None = None
    queue_s: float | None = None  # the engine's own queue time, where it returns one
    preemptions: int | None = None
    error: str | None = None


class Engine(Protocol):
    """One adapter per kind: vllm, sglang, native, openai."""

    kind: str
    capabilities: Capabilities

    def launch(self, config: EngineConfig, model: ModelDir, port: int) -> LaunchSpec:
        """Pure: the command that starts this engine on loopback. UsageError for options it cannot honour."""
        ...

    def describe(self, endpoint: Endpoint, *, log: Path | None = None) -> EngineInfo:
        """Read version and resolved configuration from a running server. InfrastructureError if it does not answer."""
        ...

    def reset_cache(self, endpoint: Endpoint, state: CacheState) -> CacheProof:
        """Bring the prefix cache to `state`; `proven` only if something showed that it worked."""
        ...

    def encode(self, request: GenerationRequest, model: str) -> Encoded:
        """Pure: the streaming HTTP request, before timing."""
        ...

    def decode(self, event: bytes) -> Delta:
        """Pure: one SSE data payload, after timing. Malformed payloads give kind error, never an exception."""
        ...
