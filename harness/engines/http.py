"""Untimed HTTP to a running engine: small requests for its configuration and its control endpoints."""

from __future__ import annotations

from typing import Any

import httpx

from harness.engines.protocol import Endpoint
from harness.records.errors import InfrastructureError

TIMEOUT_S = 10.0


def get(endpoint: Endpoint, path: str, *, timeout_s: float = TIMEOUT_S) -> httpx.Response:
    """GET below the endpoint's base path. InfrastructureError if nothing answers or the key is refused."""
    return _send(endpoint, "GET", endpoint.base_url + path, timeout_s)


def post(endpoint: Endpoint, path: str, *, timeout_s: float = TIMEOUT_S) -> httpx.Response:
    return _send(endpoint, "POST", endpoint.base_url + path, timeout_s)


def get_json(endpoint: Endpoint, path: str) -> dict[str, Any] | None:
    """The JSON object at `path`; None if the server has no such route or answers something else."""
    response = get(endpoint, path)
    if response.status_code != 200:
        return None
    try:
        document = response.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def succeeded(response: httpx.Response) -> bool:
    """Whether a control endpoint says `{"success": true}`; a 200 alone is no proof."""
    try:
        document = response.json()
    except ValueError:
        return False
    return response.status_code == 200 and isinstance(document, dict) and document.get("success") is True


def get_metrics(endpoint: Endpoint) -> str | None:
    """The exposition text, or None if the server exposes none."""
    url = endpoint.metrics_url or f"{endpoint.base_url}/metrics"
    response = _send(endpoint, "GET", url, TIMEOUT_S)
    return response.text if response.status_code == 200 else None


def _send(endpoint: Endpoint, method: str, url: str, timeout_s: float) -> httpx.Response:
    try:
        # trust_env=False: a proxy variable must not stand between us and a server on loopback.
        with httpx.Client(timeout=timeout_s, headers=endpoint.headers, trust_env=False) as client:
            response = client.request(method, url)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InfrastructureError(f"{url} is not a usable URL: {error}", mend="write http://host:port") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise InfrastructureError(f"{url} does not answer: {reason}", mend="check that the server is up") from None
    if response.status_code in (401, 403):
        raise InfrastructureError(
            f"{url} refuses the request with status {response.status_code}",
            mend="name the variable that holds its key with --api-key-env",
        )
    return response
