"""What every request passes first: the key, the sender's site, the size of its body and the time that it may take."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fineflow.serving.refusals import Refused, response
from fineflow.serving.settings import ServerSettings

OPEN = frozenset({"/", "/healthz", "/readyz"})
"""Routes without a key: they tell nothing of the object."""

_SITES = (None, "same-origin", "none")


class RequestGuard:
    """ASGI middleware. answers: how many responses there were, by route and status."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, answers: Counter[tuple[str, int]]) -> None:
        self._app, self._settings, self._answers = app, settings, answers
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, or refuses it: 401, 403, 408, 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "")
                self._answers[route, message["status"]] += 1
            await send(message)

        refused = self._refused(scope)
        app = self._app if refused is None else response(refused)
        await app(scope, self._bounded(receive, self._most(scope)), counted)

    def _refused(self, scope: Scope) -> Refused | None:
        headers = Headers(scope=scope)
        if self._keys and scope["path"] not in OPEN and not self._known(headers):
            text = "expected an API key of this server, as Authorization: Bearer KEY or as X-API-Key: KEY"
            return Refused(401, text, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        if scope["method"] not in ("GET", "HEAD") and headers.get("sec-fetch-site") not in _SITES:
            return Refused(403, "the request comes from a page of another site; call the server from its own page")
        most, length = self._most(scope), headers.get("content-length", "")
        return _too_large(most) if length.isdecimal() and int(length) > most else None

    def _most(self, scope: Scope) -> int:
        return self._settings.max_upload if scope["path"] == "/documents" else self._settings.max_body

    def _known(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return _equal(given.encode("latin-1", "replace"), self._keys)

    def _bounded(self, receive: Receive, most: int) -> Receive:
        """Returns a ``receive`` that raises 408 if the body is not complete in time, and 413 if it is too large."""
        until, complete, size = asyncio.get_running_loop().time() + self._settings.body_timeout, False, 0

        async def bounded() -> Message:
            nonlocal complete, size
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                seconds = self._settings.body_timeout
                raise Refused(
                    408,
                    f"the body was not there within {seconds:g} s; send it at once",
                    headers={"Connection": "close"},
                ) from None
            complete = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > most:
                raise _too_large(most)
            return message

        return bounded


def _too_large(most: int) -> Refused:
    text = f"expected a body of at most {most:,} bytes; send less, or several requests"
    return Refused(413, text, headers={"Connection": "close"})


def _equal(given: bytes, keys: Iterable[bytes]) -> bool:
    """Compares with all keys, so that the time does not tell which one was nearly right."""
    return sum(hmac.compare_digest(given, key) for key in keys) > 0
