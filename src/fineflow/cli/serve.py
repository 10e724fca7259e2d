"""``fineflow serve``: a user's object over HTTP."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from fineflow.cli.common import quieten
from fineflow.errors import UsageError, installing

HELP = "serve your own object over HTTP"
DESCRIPTION = (
    "Serves a LangChain runnable, a LangGraph graph, or a query or chat engine of LlamaIndex, optimized: LangServe's "
    "/invoke, /batch and /stream, OpenAI's /v1/chat/completions, semantic variables, a page at /, and metrics. SIGTERM "
    "lets accepted calls end. docs/serving.md has routes and limits. Exit status: 2 for bad input, else uvicorn's."
)
_KEY = "FINEFLOW_API_KEY"


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("object", metavar="MODULE:NAME", help="the object, or a function without arguments that makes it")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="0: any that is free (default: %(default)s)")
    add("--workers", type=int, default=1, metavar="N", help="processes; limits count in each (default: %(default)s)")
    add("--api-key", action="append", default=[], metavar="KEY", help=f"repeatable; better: {_KEY}, by commas")
    add("--allow", default="", metavar="NAMES", help="what clients may set: priority,objective,deadline,tenant")
    add("--allow-kwargs", default="", metavar="NAMES", help="keyword arguments of the object that clients may set")
    add("--concurrency", type=int, metavar="N", help="calls at a time, more get 429 (default: 64)")
    add("--connections", type=int, default=1024, metavar="N", help="open connections (default: %(default)s)")
    add("--timeout", type=float, metavar="S", help="seconds that a call may take, then 504 (default: 300)")
    add("--drain", type=float, metavar="S", help="seconds for accepted calls after SIGTERM (default: 60)")
    add("--max-body", type=int, metavar="BYTES", help="of a request, more gets 413 (default: 4 MiB)")
    add("--max-upload", type=int, metavar="BYTES", help="of a request with documents (default: 32 MiB)")
    add("--chat-input", metavar="FORM", help='how it takes a chat: "text", "messages", or the key of a text')
    add("--no-page", action="store_true", help="no page, plans and timelines")
    add("--no-semantic", action="store_true", help="no semantic variables")
    add("--log-level", choices=("critical", "error", "warning", "info", "debug"), default="info", help="%(default)s")


def run(args: argparse.Namespace) -> int:
    quieten()
    try:
        import uvicorn

        from fineflow.serving import ServerSettings
        from fineflow.serving.app import of_environment
        from fineflow.serving.connections import TimedConnection
    except ImportError as error:
        raise UsageError(f"{error.name or error} is not installed; it comes with: {installing('serve')}") from error

    try:
        settings = ServerSettings(**_given(args))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port is {args.port}; it must be from 0 to 65535")
    if args.host not in ("127.0.0.1", "::1", "localhost") and not settings.api_keys:
        print(f"fineflow serve: anybody who reaches {args.host} may call this server; set {_KEY}", file=sys.stderr)
    settings.to_environment(args.object)
    app: Any = "fineflow.serving.app:worker" if settings.workers > 1 else of_environment()
    uvicorn.run(
        app,
        factory=settings.workers > 1,
        host=args.host,
        port=args.port,
        workers=settings.workers,
        log_level=args.log_level,
        http=TimedConnection,  # on h11, which bounds the size of headers
        h11_max_incomplete_event_size=64 << 10,
        ws="none",
        lifespan="on",
        server_header=False,
        limit_concurrency=args.connections,
        timeout_keep_alive=10,
        timeout_worker_healthcheck=120,  # a worker that loads models answers late
        timeout_graceful_shutdown=10,  # after the drain: for what clients have not read yet
    )
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that the user has given."""
    keys = [*args.api_key, *filter(None, (key.strip() for key in os.environ.get(_KEY, "").split(",")))]
    names = {name: tuple(filter(None, getattr(args, name).split(","))) for name in ("allow", "allow_kwargs")}
    numbers = ("concurrency", "timeout", "drain", "max_body", "max_upload", "chat_input", "workers")
    given = {name: getattr(args, name) for name in numbers if getattr(args, name) is not None}
    return {**given, **names, "api_keys": tuple(keys), "page": not args.no_page, "semantic": not args.no_semantic}
