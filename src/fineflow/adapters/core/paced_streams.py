"""Streams that stock reads from its own components, within the bounds of the call and of the component."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, TypeVar, cast

from fineflow.adapters.core.claiming import Claiming
from fineflow.runtime.loop.scopes import check
from fineflow.runtime.queues.component_calls import StreamedCall
from fineflow.runtime.queues.own_requests import OwnCall

T = TypeVar("T")
_END: Any = object()


def paced(
    side: Claiming, leaf: str, key: Any, make: Callable[[], Iterator[T]], pieces: StreamedCall | None = None
) -> Iterator[T]:
    """Yields stock's own stream, taking a permit per chunk: between chunks the reader may be slow.

    side: of the call. key: its arguments. make: begins it. pieces: of a component with its own limit.
    """
    chunks: Iterator[T] = iter(())
    own, failure = OwnCall(side.component(leaf), key), None

    def take() -> T:
        check()
        with side.bridge.slot():
            return cast(T, next(chunks, _END) if pieces is None else pieces.next(chunks, _END))

    def first() -> T:
        nonlocal chunks
        chunks = iter(make())
        return take()

    chunk = own.begin(first)
    own.answers()
    try:
        while chunk is not _END:
            yield chunk
            chunk = take()
    except BaseException as error:
        failure = error
        raise
    finally:
        own.over(failure)


async def apaced(
    side: Claiming, leaf: str, key: Any, make: Callable[[], AsyncIterator[T]], pieces: StreamedCall | None = None
) -> AsyncGenerator[T, None]:
    """``paced`` for async leaves. The caller must close it, which closes the source."""
    chunks: Any = None
    own, failure, begun = OwnCall(side.component(leaf), key), None, False

    async def take() -> T:
        check()
        step = anext if pieces is None else pieces.anext
        return cast(T, await side.call.for_stock(lambda: step(chunks, _END)))

    async def first() -> T:
        nonlocal chunks
        chunks = aiter(make())
        return await take()

    try:
        chunk, begun = await own.abegin(first), True
        own.answers()
        while chunk is not _END:
            yield chunk
            chunk = await take()
    except BaseException as error:
        failure = error
        raise
    finally:
        if begun:
            own.over(failure)
        if hasattr(chunks, "aclose"):
            await chunks.aclose()
