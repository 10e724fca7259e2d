"""Answers other than 200: one JSON form, OpenAI's, and never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fineflow.errors import Overloaded, shown

log = logging.getLogger("fineflow.serving")

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_HINTS = {
    400: "; expected JSON in UTF-8, not nested too deeply",
    404: "; GET /openapi.json lists the routes",
    405: "; GET /openapi.json says which methods a route has",
}
"""For what FastAPI refuses itself."""


class Refused(HTTPException):
    """A request that is not served. message: what was expected, what came, what to do."""

    def __init__(self, status: int, message: str, *, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, dict(headers) if headers else None)
        self.code = code


def body(status: int, message: str, code: str = "") -> dict[str, Any]:
    """Returns the JSON of an answer with this status, in the form of OpenAI's API."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or None}}


def of(error: BaseException, run: str = "") -> Refused:
    """Returns the answer to a call that raised. Its text stays in the log, as it may hold what no client may see."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Overloaded):
        return Refused(503, "the server has more calls than it takes; try again", headers={"Retry-After": "1"})
    log.error("call %s failed", run or "without a run", exc_info=error)
    where = f"; the server's log has the reason under {run}" if run else "; the server's log has the reason"
    return Refused(500, f"the call failed{where}", code="call_failed")


def response(error: HTTPException) -> JSONResponse:
    """Returns a refusal as a response."""
    message = str(error.detail)
    if not isinstance(error, Refused):
        message += _HINTS.get(error.status_code, "")
    found = body(error.status_code, message, getattr(error, "code", ""))
    return JSONResponse(found, error.status_code, headers=error.headers)


def install(app: FastAPI) -> None:
    """Has an app answer all failures in this form."""

    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return response(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return response(malformed(error.errors()))

    async def failed(_: Request, error: Exception) -> JSONResponse:
        return response(of(error))

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, failed)


def malformed(errors: Any) -> Refused:
    """Returns the answer to a body that does not fit, from what pydantic says of it."""
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return Refused(400, f"the body is no JSON: {reason} at character {first['loc'][-1]}; send a JSON object")
    if tuple(first["loc"]) == ("body",) and first["type"] in ("model_attributes_type", "missing"):
        return Refused(422, "expected a JSON object, sent as Content-Type: application/json", code="invalid_body")
    place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    came = "" if first["type"] == "missing" else f"; got {shown(first.get('input'))}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Refused(422, f"{place}: {first['msg']}{came}{more}; GET /openapi.json has the schema", code="invalid_body")
