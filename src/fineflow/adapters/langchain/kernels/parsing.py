"""Parses a text ahead of stock, as a whole or while it is written.

Readers of items or fields get them as they are released; readers of the whole get the parser's own value of the whole
text. If that contradicts what was released (see ``fineflow.adapters.text.items``), consumers of items are left to
stock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, Generation

from fineflow.adapters.analysis.pydantic_fields import ready
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock
from fineflow.adapters.langchain.kernels.models import Source
from fineflow.ir import Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.streams import Stream

Parse = Callable[[Any], Any]
"""Maps the whole text, or message, to the value."""


def parse(p: Primitive, args: Args, run: Execution) -> Any:
    """Runs a PARSE primitive: returns its value, or a task that returns it."""
    if p.meta.get("added") and run.call.streaming:
        raise LeftToStock("stock adds up what the parser streams, which gives another value")

    def parsed(whole: Any) -> Any:
        message = isinstance(whole, BaseMessage)
        return p.component.parse_result([ChatGeneration(message=whole) if message else Generation(text=whole)])

    return own_failures(run, lambda: pieces(p, args["text"], parsed, run))


def own_failures(run: Execution, made: Callable[[], Any]) -> Any:
    """Returns what a parser or function makes; an exception of its own as a task that has failed.

    Stock meets it when it gets there, and may have a fallback.
    """
    try:
        return made()
    except Exception as error:
        failed = run.call.loop.create_future()
        failed.set_exception(error)
        return failed


def pieces(p: Primitive, source: Any, parsed: Parse, run: Execution) -> Any:
    """Returns the value that ``parsed`` makes of the input; releases final parts while the input is being written."""
    if not isinstance(source, Source):
        value = parsed(source)
        if type(value) is p.meta.get("model"):
            release_fields(p, value, run)
        return value
    if p.meta.get("through"):

        async def whole() -> Any:
            return parsed(await source.whole())

        run.release(p, None, Source(source.read, whole))
        return run.spawn(whole(), p)
    if p.params["items"] == "fields":
        return run.spawn(_fields(p, source, parsed, run), p)
    items: Stream[Any] = Stream()
    run.release(p, None, items)
    return run.spawn(_items(p, source, parsed, items), p)


async def _items(p: Primitive, source: Source, parsed: Parse, items: Stream[Any]) -> Any:
    """Releases the items of a list; returns the list."""
    splitter = p.meta["splitters"][p.params["items"]]()
    try:
        async for piece in source.read():
            for item in splitter.push(piece):
                items.put(item)
        value = parsed(await source.whole())
        early = list(items.items)
        if type(value) is not list or repr(value[: len(early)]) != repr(early):  # repr distinguishes 1 from True
            items.close(LeftToStock("the whole text contradicts its beginning"))
            return value
        for item in value[len(early) :]:
            items.put(item)
    except BaseException as error:
        items.close(error)
        raise
    items.close()
    return value


async def _fields(p: Primitive, source: Source, parsed: Parse, run: Execution) -> Any:
    """Releases the fields of an object; returns the object."""
    splitter = p.meta["splitters"]["fields"]()
    model = p.meta.get("model")
    async for piece in source.read():
        for key, value in splitter.push(piece):
            if model is None or ready(model, key, value):
                run.release(p, key, value)
    whole = parsed(await source.whole())
    if model is not None:
        release_fields(p, whole, run)
    return whole


def release_fields(p: Primitive, whole: Any, run: Execution) -> None:
    """Releases the fields of a pydantic model that can be read by name, as from a dict."""
    for key in p.meta["model"].model_fields:
        run.release(p, key, getattr(whole, key))
