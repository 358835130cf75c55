"""Errors as OpenAI's clients expect them, and the one way from an exception to a response."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

RETRY_AFTER_S = 1  # a full queue moves within about a request; clients add their own jitter

TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    500: "server_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A request that gets no answer. `code` is a stable word for programs and the `reason` of the rejection counter."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_value", param: str | None = None):
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param

    def document(self) -> dict[str, Any]:
        """The body: `{"error": {message, type, param, code}}`, also used inside a stream that has begun."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {"retry-after": str(RETRY_AFTER_S)} if self.status == 503 else {}
        return json_response(self.document(), status=self.status, headers=headers)


def json_response(document: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(document), status_code=status, headers=headers, media_type="application/json")
