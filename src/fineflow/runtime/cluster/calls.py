"""Calls of actors: results, pieces of streams, cancellation and errors, as engines in this process have them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, cast

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError, TaskCancelledError

from fineflow.errors import BackendError

END_SECONDS = 5.0  # waits for the end of what was cancelled, or closed, on another node


async def result(ref: Any, name: str) -> Any:
    """Returns the result of a call. Cancelling the caller cancels the call and waits for its end.

    Raises the exception that the call raised (a copy without its traceback); BackendError if the actor is lost.
    """
    work = asyncio.wrap_future(ref.future())
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        ray.cancel(ref, recursive=False)  # what it waits for may be a batch with requests of others
        await asyncio.wait([work], timeout=END_SECONDS)
        if work.done():
            work.exception()  # retrieved
        raise
    error = work.exception()
    if isinstance(error, Exception):
        raise failure(error, name)
    return work.result()


async def pieces(start: Callable[[], Any], name: str) -> AsyncGenerator[Any, None]:
    """Yields what an async generator of an actor yields. Closing it closes that one and waits for its end.

    start: begins the call. Raises as ``result``.
    """
    stream, error = start(), cast("Exception | None", None)
    try:
        while error is None:
            try:
                piece = await (await anext(stream))
            except Exception as raised:
                error = raised
            else:
                yield piece
        if not isinstance(error, StopAsyncIteration):
            raise failure(error, name)
    finally:
        if error is None:
            ray.cancel(stream, recursive=False)
            with suppress(Exception):
                async with asyncio.timeout(END_SECONDS):
                    while True:
                        await (await anext(stream))


def lost(error: BaseException) -> bool:
    """Returns True if an error says that an actor was lost, not that its call failed."""
    return isinstance(error.__cause__, RayActorError)


def failure(error: Exception, name: str) -> Exception:
    """Returns the error to raise for what Ray raised: that of the call itself, or a BackendError."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, TaskCancelledError | asyncio.CancelledError):
        found = BackendError(f"a request to engine {name!r} was cancelled there; was the engine stopped while in use?")
    elif isinstance(cause, ActorUnavailableError):
        found = BackendError(f"engine {name!r} is being restarted by Ray, or its node cannot be reached")
    elif isinstance(cause, RayActorError):
        found = BackendError(f"engine {name!r} was lost: its process has ended, or its node is gone")
    elif isinstance(cause, RayError) or not isinstance(cause, Exception):
        found = BackendError(f"engine {name!r}: Ray raised {type(cause).__name__}: {str(cause).splitlines()[0]}")
    else:
        return cause
    found.__cause__ = cause
    return found
