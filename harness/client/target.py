"""Where requests go: a base URL taken apart once, and request heads built before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from harness.records.errors import UsageError

_FIXED = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding"}


@dataclass(frozen=True)
class Target:
    """One server. `headers` holds the authorisation and is therefore in no repr."""

    scheme: str
    host: str
    port: int
    base_path: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, base_url: str, headers: Mapping[str, str] | None = None) -> Target:
        """UsageError for anything but http(s)://host[:port][/path] without credentials, query or fragment."""
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError:
            raise UsageError("the engine's URL is malformed", mend="use http://host:port[/path]") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{base_url!r} is not an HTTP URL", mend="use http://host:port[/path]")
        if parts.username or parts.password:
            raise UsageError("the engine's URL holds credentials", mend="name a variable with api_key_env instead")
        if parts.query or parts.fragment:
            raise UsageError("the engine's URL has a query or fragment", mend="use http://host:port[/path]")
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"), dict(headers or {}))

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        return host if self.port == default else f"{host}:{self.port}"

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """A whole POST request, head and body, as the bytes that go on the wire.

        Answers must come uncompressed: a compressor holds events back, and bytes are counted as they arrive.
        """
        lines = [
            f"POST {self.base_path}/{path.lstrip('/')} HTTP/1.1",
            f"host: {self.authority}",
            f"content-length: {len(body)}",
            "accept-encoding: identity",
        ]
        merged = {"content-type": "application/json", "accept": "text/event-stream"}
        for name, value in (*self.headers.items(), *headers.items()):
            merged[name.lower()] = value
        for name, value in merged.items():
            if name in _FIXED:
                continue
            if any(mark in name + value for mark in "\r\n\0"):
                raise UsageError(f"header {name!r} contains a line break", mend="remove it from the key or header")
            lines.append(f"{name}: {value}")
        try:
            head = "\r\n".join(lines).encode("latin-1")
        except UnicodeEncodeError:
            raise UsageError("a request header is not Latin-1 text", mend="check the API key") from None
        return head + b"\r\n\r\n" + body
