"""Any server that speaks the OpenAI dialect: driven as it is, described as far as it says."""

from __future__ import annotations

from pathlib import Path

from harness.engines.http import get_json
from harness.engines.openai_stream import COMPLETIONS, completion_body, decode_event, pack
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


class OpenAIEngine:
    kind = "openai"
    capabilities = Capabilities()  # nothing beyond the public dialect can be relied on

    def launch(self, config: EngineConfig, model: ModelDir, port: int) -> LaunchSpec:
        raise UsageError(
            f"engine {config.name!r} of kind openai cannot be started", mend="start it yourself and give url ="
        )

    def describe(self, endpoint: Endpoint, *, log: Path | None = None) -> EngineInfo:
        card = model_card(endpoint)
        length = card.get("max_model_len")
        return EngineInfo(
            kind=self.kind,
            name=self.kind,
            url=endpoint.base_url,
            max_model_len=length if isinstance(length, int) else None,
            resolved={"model_card": card} if card else {},
        )

    def reset_cache(self, endpoint: Endpoint, state: CacheState) -> CacheProof:
        return declared(state, "an OpenAI-compatible server has no route that empties its prefix cache")

    def encode(self, request: GenerationRequest, model: str) -> Encoded:
        body = completion_body(request, model)
        if request.ignore_eos:
            body["ignore_eos"] = True  # many engines behind this dialect know it; the others skip it or say so
        return pack(COMPLETIONS, body)

    def decode(self, event: bytes) -> Delta:
        return decode_event(event)


def declared(state: CacheState, why: str) -> CacheProof:
    """The proof of a state nobody brought about."""
    return CacheProof(state=state, method="declared", proven=False, evidence=why)


def served_models(endpoint: Endpoint) -> list[str]:
    """Names that /v1/models lists; empty if the server does not say."""
    rows = (get_json(endpoint, "/v1/models") or {}).get("data") or []
    return [str(row["id"]) for row in rows if isinstance(row, dict) and row.get("id")]


def check_model(endpoint: Endpoint) -> None:
    """UsageError if the server lists models and the endpoint's is not among them.

    Asked before any load, since SGLang answers for any name at all.
    """
    names = served_models(endpoint)
    if names and endpoint.model not in names:
        raise UsageError(
            f"{endpoint.base_url} serves no model {endpoint.model!r}", mend=f"it serves {', '.join(names[:5])}"
        )


def model_card(endpoint: Endpoint) -> dict[str, object]:
    """The row of /v1/models for the endpoint's model, else the first; empty if there is none."""
    models = get_json(endpoint, "/v1/models") or {}
    rows = [row for row in models.get("data") or [] if isinstance(row, dict)]
    chosen = next((row for row in rows if row.get("id") == endpoint.model), rows[0] if rows else {})
    return dict(chosen)
