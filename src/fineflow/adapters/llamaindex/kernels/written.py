"""Partial decode: releases the items of a text that a model is writing as soon as they are final."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from fineflow.ir import Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.streams import Stream


class Reader(Protocol):
    """Extracts the items of a text that is being written."""

    def so_far(self, text: str) -> Iterable[str]:
        """Returns the items that are final in an incomplete text."""
        ...

    def all(self, text: str) -> list[str]:
        """Returns the items of the complete text."""
        ...


def items_written(p: Primitive, source: str | Stream[str], reader: Reader, run: Execution) -> Any:
    """Returns the items of a text; if it is still being written, releases each item once it is final."""
    if isinstance(source, str):
        return reader.all(source)
    items: Stream[str] = Stream()
    run.release(p, None, items)
    return run.spawn(_read(reader, source, items), p)


async def _read(reader: Reader, source: Stream[str], items: Stream[str]) -> list[str]:
    text, found = "", list[str]()
    try:
        async for text in source.read():
            final = list(reader.so_far(text))
            for query in final[len(found) :]:
                items.put(query)
            found = final
        whole = reader.all(text)
        if whole[: len(found)] != found:
            raise LeftToStock("the whole text says something else than its beginning did")
        for query in whole[len(found) :]:
            items.put(query)
    except BaseException as error:
        items.close(error)
        raise
    items.close()
    return whole
