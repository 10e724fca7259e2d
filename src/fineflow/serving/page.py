"""A page on which to ask the object, and to see its answer, its plan and the timeline of the request."""

from __future__ import annotations

import asyncio
import secrets
from html import escape
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

import fineflow
from fineflow.serving.served import ServedApp

_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


def router(app: ServedApp) -> APIRouter:
    """Returns the routes of the page. It loads nothing from elsewhere, and frames may not run scripts."""
    made, text = APIRouter(), files("fineflow.serving").joinpath("page.html").read_text(encoding="utf-8")
    text = text.replace("{name}", escape(app.served.name))

    @made.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        """Returns the page."""
        nonce = secrets.token_urlsafe(16)
        headers = {**_HEADERS, "Content-Security-Policy": _POLICY.replace("{nonce}", nonce)}
        return HTMLResponse(text.replace("{nonce}", nonce), headers=headers)

    @made.get("/plan", response_class=HTMLResponse)
    async def plan() -> HTMLResponse:
        """Returns the plan of the object as a page."""
        found = await asyncio.to_thread(lambda: fineflow.explain(app.obj).to_html())
        return HTMLResponse(
            found, headers={**_HEADERS, "Content-Security-Policy": "sandbox; style-src 'unsafe-inline'"}
        )

    return made
