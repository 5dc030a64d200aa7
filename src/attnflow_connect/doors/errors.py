"""Errors in the form of the API whose address was called."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

_ANTHROPIC = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error",
}  # fmt: skip
_RETRY_AFTER = "5"  # seconds


def is_door(path: str) -> bool:
    """Return whether an address is one of the doors."""
    return path.startswith(("/v1/", "/v2/"))


def error_body(path: str, status: int, sentence: str) -> dict[str, Any]:
    """Return the body of an error; elsewhere than at a door it is one sentence."""
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": sentence}, "request_id": None}
    if path.startswith("/v2/"):
        return {"message": sentence}
    if not is_door(path):
        return {"error": sentence}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}.get(status)
    return {"error": {"message": sentence, "type": kind, "param": None, "code": code}}


def error_response(
    path: str, status: int, sentence: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return an error, with the time after which to try again where the server is busy."""
    waiting = {"retry-after": _RETRY_AFTER} if status in (429, 503) else {}
    return JSONResponse(error_body(path, status, sentence), status, {**waiting, **(headers or {})})
