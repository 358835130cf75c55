"""Which kind of engine answers at a URL: told by what it exposes, never by its port or its name."""

from __future__ import annotations

from harness.engines.http import get, get_json, get_metrics
from harness.engines.openai import served_models
from harness.engines.protocol import Endpoint
from harness.records.errors import InfrastructureError

NAMESPACES = ("native", "vllm", "sglang")


def detect_kind(endpoint: Endpoint) -> str:
    """native, vllm, sglang or openai. InfrastructureError if nothing answers, or what answers serves no models.

    No generation: metrics names first, then routes that only one engine has.
    """
    metrics = get_metrics(endpoint) or ""
    for kind in NAMESPACES:
        if f"\n{kind}:" in f"\n{metrics}":
            return kind
    info = get_json(endpoint, "/server_info") or {}
    if "disable_radix_cache" in info:
        return "sglang"
    if "vllm_config" in info:
        return "vllm"
    if served_models(endpoint):
        owner = _owner(endpoint)
        return owner if owner in NAMESPACES else "openai"
    status = get(endpoint, "/v1/models").status_code
    raise InfrastructureError(
        f"{endpoint.base_url} answers, but is no LLM server: no metrics it could be told by, /v1/models says {status}",
        mend="give the base URL without /v1, e.g. http://127.0.0.1:8000",
    )


def _owner(endpoint: Endpoint) -> str:
    rows = (get_json(endpoint, "/v1/models") or {}).get("data") or [{}]
    return str(rows[0].get("owned_by", "")) if isinstance(rows[0], dict) else ""
