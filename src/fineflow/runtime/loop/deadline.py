"""Calls with a deadline: ``TimeoutError`` when it passes, and all work of the call is stopped.

A coroutine is bounded as by ``asyncio.timeout``. Right after its task is cancelled, so is all other work of the call,
because stock may wait for it. A sync call runs in a worker thread, in a copy of the caller's context, and the caller
stops waiting at the deadline, because nothing can interrupt blocking code. That thread stops before the next step of
the call, or when the blocking code returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

from fineflow.runtime.loop.interpreter_exit import silent_at_exit
from fineflow.runtime.loop.iteration import END, aanswer, answer
from fineflow.runtime.loop.runtime_loop import engine_loop, post
from fineflow.runtime.loop.scopes import Scope, check, current
from fineflow.runtime.loop.submission import done_within
from fineflow.runtime.loop.workers import submit

T = TypeVar("T")

_READ = (Iterator, *map(type, gc.get_referents(itertools.tee(())[0])))  # what a tee reads through is no iterator
_LAST = 2  # references to an object that nobody else refers to: the variable, and the argument of the count


def run(function: Callable[[], T], seconds: float) -> T:
    """Runs a blocking function and returns its result. Raises TimeoutError after ``seconds``."""
    scope = Scope(seconds)
    try:
        with silent_at_exit:
            return _step(_context(scope), scope, function, monotonic() + seconds, seconds)
    finally:
        scope.close()


async def arun(make: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Does the same for a coroutine function, in the current task."""
    scope, loop = Scope(seconds), asyncio.get_running_loop()
    until = loop.time() + seconds
    limit = asyncio.timeout_at(until)
    timer = loop.call_at(until, loop.call_soon, scope.stop)
    try:
        with scope.inside():
            async with limit:
                return await make()
    except TimeoutError as error:
        if limit.expired():
            raise _late(seconds) from error
        raise
    except asyncio.CancelledError:
        scope.stop()
        raise
    finally:
        timer.cancel()
        scope.close()


def iterate(make: Callable[[], Iterator[T]], seconds: float) -> Iterator[T]:
    """Yields the items of an iterator. Raises TimeoutError for items requested ``seconds`` after the start or later.

    The work of the call stops at that time even if no item is requested.
    """
    scope, until = Scope(seconds), monotonic() + seconds
    context = _context(scope)
    cancel_stop = _stop_in(seconds, scope)
    items: Iterator[T] | None = None
    try:
        with silent_at_exit:
            items = _step(context, scope, make, until, seconds)
            found, step = items, partial(answer, items)

            def pull() -> T:
                try:
                    return cast(T, step())
                finally:
                    if scope.stopped():  # the caller has left
                        _close_quietly(found)

            while (item := _step(context, scope, pull, until, seconds)) is not END:
                try:
                    step = partial(answer, items, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = partial(answer, items, error=error)
    finally:
        cancel_stop()
        if items is not None and scope.stopped():
            submit(partial(_run_quietly, context, partial(_close_quietly, items)))
        elif items is not None:
            context.run(_close, items)
        scope.close()


async def aiterate(make: Callable[[], AsyncIterator[T]], seconds: float) -> AsyncIterator[T]:
    """Does the same for an async iterator, in the tasks that request its items."""
    loop = asyncio.get_running_loop()
    scope, until = Scope(seconds), loop.time() + seconds
    timer = loop.call_at(until, loop.call_soon, scope.stop)
    items: Any = None
    step: Any = None
    try:
        while True:
            if loop.time() >= until:
                scope.stop()
                raise _late(seconds)
            limit = asyncio.timeout_at(until)
            try:
                with scope.inside():
                    async with limit:
                        items = make() if items is None else items
                        item = await (step or partial(aanswer, items))()
            except TimeoutError as error:
                if limit.expired():
                    raise _late(seconds) from error
                raise
            if item is END:
                return
            try:
                step = partial(aanswer, items, (yield item))
            except GeneratorExit:
                raise
            except BaseException as error:
                step = partial(aanswer, items, error=error)
    finally:
        timer.cancel()
        if items is not None:
            await items.aclose()
        scope.close()


def _late(seconds: float) -> TimeoutError:
    return TimeoutError(f"the call did not end within {seconds:g} s (timeout of fineflow.optimize)")


def _context(scope: Scope) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(current.set, scope)
    return context


def _step(context: contextvars.Context, scope: Scope, function: Callable[[], T], until: float, seconds: float) -> T:
    """Runs the function in a worker thread; stops the scope if it is late, or if the wait is interrupted."""
    check()
    if scope.stopped() or monotonic() >= until:
        scope.stop()
        raise _late(seconds)
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(context.run(function))
        except BaseException as error:  # raised in the caller's thread
            done.set_exception(error)

    submit(work)
    try:
        done_within(done, until - monotonic())
    finally:
        if not done.done():
            scope.stop()
    if scope.stopped():
        check()
        raise _late(seconds)
    return done.result()


def _close(items: Iterator[Any]) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()


def _close_quietly(items: Iterator[Any]) -> None:
    """Closes an iterator of a stopped call, and the generators that it alone reads.

    Stock's generators read their input to its end when they are closed, which raises that the call has been stopped.
    Python would report that of each one that it collects.
    """
    sources = _sources(items)
    _close_one(items)
    while sources:
        each = sources.pop(0)
        if sys.getrefcount(each) == _LAST:
            _close_one(each)


def _close_one(items: Iterator[Any]) -> None:
    with suppress(BaseException):  # the caller has left; or a thread is running the iterator and closes it itself
        _close(items)


def _sources(items: Iterator[Any]) -> list[Generator[Any]]:
    """Returns the generators that an iterator reads, the nearest first."""
    found: list[Any] = [items]
    known = {id(items)}
    for reading in found:
        for each in gc.get_referents(reading):
            if isinstance(each, _READ) and id(each) not in known:
                known.add(id(each))
                found.append(each)
    return [each for each in found[1:] if isinstance(each, Generator)]


def _run_quietly(context: contextvars.Context, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # a thread is running in that context, see above
        context.run(function)


def _stop_in(seconds: float, scope: Scope) -> Callable[[], object]:
    """Stops a scope at its deadline, even while the thread of the call is blocked. Returns what cancels that."""
    try:
        loop = engine_loop()
    except RuntimeError:  # the interpreter is exiting: the next step of the call notices the deadline
        return lambda: None
    timers: list[asyncio.TimerHandle] = []
    post(loop, lambda: timers.append(loop.call_later(seconds, scope.stop)))
    return partial(post, loop, lambda: timers.pop().cancel())
