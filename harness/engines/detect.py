"""Which kind of engine answers at a URL: told by what it exposes, never by its port or its name."""

from __future__ import annotations

from harness.engines.http import get, get_json, get_metrics
from harness.engines.openai import served_models
from harness.engines.protocol import Endpoint
from harness.records.errors import InfrastructureError

NAMESPACES = ("native", "vllm", "sglang")
NO_ROUTE = (404, 405, 501)


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
    raise _no_llm_server(endpoint)


def check_serves(endpoint: Endpoint, kind: str) -> None:
    """InfrastructureError if what answers lists no models, for a kind that was given and not found out.

    A server of the OpenAI dialect may lack the route; one that has it and answers with something else is none.
    """
    if served_models(endpoint):
        return
    if kind != "openai" or get(endpoint, "/v1/models").status_code not in NO_ROUTE:
        raise _no_llm_server(endpoint)


def _no_llm_server(endpoint: Endpoint) -> InfrastructureError:
    status = get(endpoint, "/v1/models").status_code
    return InfrastructureError(
        f"{endpoint.base_url} answers, but is no LLM server: /v1/models lists no models (status {status})",
        mend="give the base URL without /v1, e.g. http://127.0.0.1:8000",
    )


def _owner(endpoint: Endpoint) -> str:
    rows = (get_json(endpoint, "/v1/models") or {}).get("data") or [{}]
    return str(rows[0].get("owned_by", "")) if isinstance(rows[0], dict) else ""
