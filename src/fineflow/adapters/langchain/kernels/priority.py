"""Requests that send their priority to the server, if ``fineflow.engine(..., priority=True)`` allows it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from fineflow.adapters.core.server_requests import refused
from fineflow.adapters.langchain.models.servers import Served, served
from fineflow.ir import Primitive

Options = Mapping[str, Any]


async def answer(p: Primitive, options: Options, ask: Callable[[Options], Awaitable[Any]]) -> Any:
    """Returns the result of ``ask`` with a priority; if the server refuses that, it gets none from now on."""
    found, urgent = _urgent(p, options)
    if found is None:
        return await ask(options)
    try:
        return await ask(urgent)
    except Exception as error:
        if not refused(found.server, error):
            raise
    return await ask(options)


async def pieces(
    p: Primitive, options: Options, ask: Callable[[Options], AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    """The same for a stream, which a server refuses before its first piece."""
    found, urgent = _urgent(p, options)
    if found is not None:
        given = False
        try:
            async with aclosing(ask(urgent)) as chunks:
                async for chunk in chunks:
                    given = True
                    yield chunk
            return
        except Exception as error:
            if given or not refused(found.server, error):
                raise
    async with aclosing(ask(options)) as chunks:
        async for chunk in chunks:
            yield chunk


def _urgent(p: Primitive, options: Options) -> tuple[Served | None, Options]:
    found = served(p.component, p.meta["options"]) if p.meta.get("urgent") else None
    body = None if found is None else found.with_priority()
    return (None, options) if body is None else (found, {**options, "extra_body": body})
