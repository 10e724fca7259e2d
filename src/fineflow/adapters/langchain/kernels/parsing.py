"""How a text is parsed ahead of stock, as a whole or while it comes.

What is released early goes to those who read items or fields; those who read the whole get the parser's own value of
the whole text. Where that contradicts what was released (see ``fineflow.adapters.text.items``), whoever
consumed items is
left to stock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, Generation

from fineflow.adapters.langchain.kernels.common import Args, LeftToStock
from fineflow.adapters.langchain.kernels.models import Source
from fineflow.adapters.langchain.lowering.pydantic_fields import ready
from fineflow.ir import Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.streams import Stream

Parse = Callable[[Any], Any]
"""From the whole text, or message, to the value."""


def parse(p: Primitive, args: Args, run: Execution) -> Any:
    """A PARSE primitive: its value, or a task that ends with it."""
    if p.meta.get("added") and run.call.streaming:
        raise LeftToStock("stock adds up what the parser streams, which is another value")

    def parsed(whole: Any) -> Any:
        message = isinstance(whole, BaseMessage)
        return p.component.parse_result([ChatGeneration(message=whole) if message else Generation(text=whole)])

    return pieces(p, args["text"], parsed, run)


def pieces(p: Primitive, source: Any, parsed: Parse, run: Execution) -> Any:
    """The value that ``parsed`` makes of what a primitive reads; while that still comes, what of it is final."""
    if not isinstance(source, Source):
        value = parsed(source)
        if isinstance(value, p.meta.get("model", ())):
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
        if type(value) is not list or repr(value[: len(early)]) != repr(early):  # repr tells 1 from True
            items.close(LeftToStock("the whole text says something else than its beginning did"))
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
    """What of a pydantic model can be read by the names of its fields, as of a dict."""
    for key in p.meta["model"].model_fields:
        run.release(p, key, getattr(whole, key))
