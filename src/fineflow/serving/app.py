"""The ASGI application: routes, guards and the state that they share."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response

import fineflow
from fineflow.errors import UsageError
from fineflow.serving import chat, documents, page, refusals, routes, semantic
from fineflow.serving.gate import CallGate, draining
from fineflow.serving.guard import RequestGuard
from fineflow.serving.served import ServedApp, app_of, found
from fineflow.serving.settings import ServerSettings

_STARTUP_FAILURE = 3  # the exit status by which uvicorn's parent knows that another worker would fail, too


def create_app(
    obj: Any,
    settings: ServerSettings | None = None,
    *,
    make: Callable[[], Any] | None = None,
    ingest: Callable[..., Any] | None = None,
    name: str = "",
) -> FastAPI:
    """Returns an ASGI application that serves an object, for any ASGI server; ``fineflow serve`` runs it on uvicorn.

    obj: a LangChain runnable, a LangGraph graph, or a query or chat engine of LlamaIndex; it is optimized unless it is
    already. make: makes another object, one for each conversation of a chat engine. ingest: takes uploaded documents,
    see docs/serving.md. name: of the model in OpenAI's routes; default: of its class.

    Raises: UsageError for another kind of object.
    """
    return _made(app_of(obj, make, ingest=ingest, name=name), settings or ServerSettings())


def of_environment() -> FastAPI:
    """Returns the application that ``fineflow serve`` has described for this process."""
    settings, name = ServerSettings.of_environment()
    return _made(found(name), settings)


def worker() -> FastAPI:
    """Does the same in a worker process, whose parent ends if the object cannot be served."""
    try:
        return of_environment()
    except UsageError as error:
        print(f"fineflow serve: {error}", file=sys.stderr)
        raise SystemExit(_STARTUP_FAILURE) from error


def _made(app: ServedApp, settings: ServerSettings) -> FastAPI:
    gate, answers = CallGate(settings.concurrency), Counter[tuple[str, int]]()
    serving = routes.Serving(app.served, settings, gate)
    sessions = semantic.SemanticSessions(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with draining(gate, settings.drain):
            yield
        sessions.close()

    made = FastAPI(
        title=app.served.name,
        version=fineflow.__version__,
        lifespan=lifespan,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    made.state.gate = gate
    refusals.install(made)
    made.add_middleware(RequestGuard, settings=settings, answers=answers)
    for router in (routes, chat):
        made.include_router(router.router(serving))
    made.include_router(documents.router(serving, app.ingest))
    if settings.page:
        made.include_router(page.router(app))
    if settings.semantic:
        made.include_router(semantic.router(serving, sessions))

    @made.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answers while the process lives."""
        return {"status": "ok"}

    @made.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Answers 503 once the server is ending."""
        if gate.draining:
            raise refusals.Refused(503, "the server is ending; ask another one")
        return {"status": "ok"}

    @made.get("/metrics")
    async def metrics() -> Response:
        """Returns the figures of this process for Prometheus."""
        text = fineflow.statistics().prometheus() + _figures(gate, answers)
        return Response(text, media_type="text/plain; version=0.0.4")

    return made


def _figures(gate: CallGate, answers: Counter[tuple[str, int]]) -> str:
    lines = [
        "# HELP fineflow_http_calls_running Calls under way.",
        "# TYPE fineflow_http_calls_running gauge",
        f"fineflow_http_calls_running {gate.running}",
        "# HELP fineflow_http_responses_total Responses by route and status.",
        "# TYPE fineflow_http_responses_total counter",
    ]
    lines += [
        f'fineflow_http_responses_total{{route="{route}",status="{status}"}} {count}'
        for (route, status), count in sorted(answers.items())
    ]
    return "\n".join(lines) + "\n"
