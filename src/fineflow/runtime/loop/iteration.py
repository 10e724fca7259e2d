"""Iterators whose source runs on the other side of a channel: on the runtime's loop, or in a worker thread."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from fineflow.runtime.loop import scopes
from fineflow.runtime.loop.channel import Channel, aclose, pump
from fineflow.runtime.loop.interpreter_exit import silent_at_exit
from fineflow.runtime.loop.runtime_loop import on_engine_loop, outside, refuse_blocking
from fineflow.runtime.loop.submission import RuntimeSubmission
from fineflow.runtime.loop.workers import submit

T = TypeVar("T")

END: Any = object()
"""Stands for the end of an iterator."""


def answer(items: Any, sent: Any = None, error: BaseException | None = None) -> Any:
    """Returns what an iterator yields next; END after the last. sent, error: what its reader sends or throws."""
    try:
        if error is None:
            return next(items) if sent is None else items.send(sent)
        if hasattr(items, "throw"):
            return items.throw(error)
    except StopIteration:
        return END
    raise error


async def aanswer(items: Any, sent: Any = None, error: BaseException | None = None) -> Any:
    """``answer`` of an async iterator."""
    try:
        if error is None:
            return await (anext(items) if sent is None else items.asend(sent))
        if hasattr(items, "athrow"):
            return await items.athrow(error)
    except StopAsyncIteration:
        return END
    raise error


class _OnCollection:
    """Calls a function when the generator that holds this is collected: nothing closes it once its loop has ended."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave

    def __del__(self) -> None:
        self._leave()


def iterate_sync(make: Callable[[], AsyncIterator[T]], *, buffer: int = 0) -> Iterator[T]:
    """Iterates ``make()``, which runs on the runtime's loop, from a thread.

    The source starts at the first ``next()`` and then runs ahead, by at most ``buffer`` items if that is not 0.
    Closing or abandoning the iterator closes the source and waits for that. Raises the source's exception, the same
    object; RuntimeError on the runtime's own thread.
    """
    refuse_blocking("iterate_sync", "iterate_async")
    scopes.check()
    return _iterate_sync(make, buffer, contextvars.copy_context())


def _iterate_sync(make: Callable[[], AsyncIterator[T]], buffer: int, context: contextvars.Context) -> Iterator[T]:
    channel: Channel[T] = Channel(buffer)
    with silent_at_exit:
        work = RuntimeSubmission(partial(pump, make, channel), context)
        channel.end_with(work.outcome)
        try:
            with scopes.on_stop(work.cancel):
                work.start()
                while channel.wait_for_item():
                    yield channel.take()
        finally:  # only cancel: closing the channel too would close the source, and cancelling would interrupt that
            work.stop()


async def iterate_async(make: Callable[[], AsyncIterator[T]], *, buffer: int = 0) -> AsyncIterator[T]:
    """Iterates ``make()``, which runs on the runtime's loop, from a coroutine on any event loop.

    Otherwise like ``iterate_sync``. On the runtime's own loop the source is iterated directly.
    """
    if on_engine_loop():
        source = make()
        try:
            async for item in source:
                yield item
        finally:
            await aclose(source)
        return
    channel: Channel[T] = Channel(buffer)
    async with silent_at_exit:
        work = RuntimeSubmission(partial(pump, make, channel))
        channel.end_with(work.outcome)
        _abandoned = _OnCollection(work.cancel)
        try:
            work.start()
            while await channel.wait_for_item_async():
                yield channel.take()
        finally:
            if not work.outcome.done():
                await work.stop_async()


async def iterate_in_thread(make: Callable[[], Iterator[T]], *, buffer: int) -> AsyncGenerator[T, None]:
    """Iterates the blocking iterator ``make()`` in one worker thread, from a coroutine.

    The thread runs at most ``buffer`` items ahead. It cannot be interrupted: closing or abandoning the iterator, or
    cancelling the caller, returns at once, and the thread stops and closes the source at its next item. Raises the
    source's exception, the same object.
    """
    channel: Channel[T] = Channel(buffer)

    def pull() -> None:
        source = make()
        try:
            for item in source:
                channel.put(item)
                if channel.full and not channel.wait_for_room():
                    return
        finally:
            getattr(source, "close", lambda: None)()

    context = contextvars.copy_context()

    def work() -> None:
        try:
            if not channel.closed:
                context.run(pull)
        except BaseException as error:  # a SystemExit, too: it belongs to the reader and must not end this thread
            channel.end(error)
        else:
            channel.end()

    submit(work)
    _abandoned = _OnCollection(channel.close)
    try:
        while True:
            with outside():
                if not await channel.wait_for_item_async():
                    return
            yield channel.take()
    finally:
        channel.close()
