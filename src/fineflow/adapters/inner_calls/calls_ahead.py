"""Component calls that run before stock makes them: a component's graph, or one method of a component."""

from __future__ import annotations

import asyncio
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context
from functools import partial
from typing import Any, Protocol

from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.session import CallSession
from fineflow.adapters.inner_calls.arguments import is_declared
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.declare import name_of_call
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.options import Options
from fineflow.runtime.call import lifecycle, written
from fineflow.runtime.call.entry import stop_in
from fineflow.runtime.call.values import Failed
from fineflow.runtime.events import now
from fineflow.runtime.loop.scopes import on_stop
from fineflow.runtime.loop.submission import Submission, Unreachable
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.in_vain import AheadRequest, account
from fineflow.runtime.queues.own_requests import amade, made, told

Finished = Callable[[Any], None]
"""Gets the result of a call, or a ``Failed``, on the loop of the call."""


class CallAhead(Protocol):
    """One call. Stock makes it (``stock``, ``astock``), or never does (``drop``).

    waited: seconds from its start until it began, as it needed another call's result or a free slot.
    """

    waited: float = 0.0

    def start(self, loop: asyncio.AbstractEventLoop, context: Context, finished: Finished) -> bool:
        """Starts the call. Returns False if nothing of it can run ahead."""

    def fits(self, args: Args, named: Named) -> bool:
        """Returns False if stock's arguments have changed in a way that the keys of calls leave out."""
        return True

    def stock(self, invocation: Callable[[], Invocation]) -> Any:
        """Returns what stock's call returns, or raises what it raises."""

    async def astock(self, invocation: Callable[[], Invocation]) -> Any:
        """``stock`` for coroutines."""

    def stop(self) -> None:
        """Cancels what is still running, without waiting: for coroutines, and where a lock is held."""

    def drop(self) -> None:
        """Cancels what is still running, and waits for its end. From a thread."""

    async def adrop(self) -> None:
        """``drop`` for coroutines."""


class GraphAhead(CallAhead):
    """A call whose graph runs ahead; stock runs the component's shadow, which claims."""

    def __init__(self, part: Planned, plan: Plan, invocation: Invocation) -> None:
        self._part, self._plan = part, plan
        self._session = CallSession(part, plan, invocation)

    def start(self, loop: asyncio.AbstractEventLoop, context: Context, finished: Finished) -> bool:
        return context.run(self._session.start_ahead, loop, finished)

    def stock(self, invocation: Callable[[], Invocation]) -> Any:
        return self._part._self_run(self._plan, invocation(), self._session)

    async def astock(self, invocation: Callable[[], Invocation]) -> Any:
        return await self._part._self_arun(self._plan, invocation(), self._session)

    def stop(self) -> None:
        if (call := self._session.drop()) is not None:
            lifecycle.stop(call)

    def drop(self) -> None:
        if (call := self._session.drop()) is not None:
            lifecycle.close(call)

    async def adrop(self) -> None:
        if (call := self._session.drop()) is None:
            return
        if call.loop is asyncio.get_running_loop():
            await call.aclose()
        else:
            lifecycle.close(call)


def graph_ahead(part: Planned, invocation: Invocation) -> GraphAhead | None:
    """Returns a call whose graph runs ahead; None if nothing of it can."""
    plan = part._self_current(invocation.way)
    if plan is None or not plan.touched:
        return None
    return GraphAhead(part, part._self_framework.bounded(plan), invocation)


class MethodAhead(CallAhead):
    """A call of a method or function that opens no runs, such as a search of a store. Stock gets its result."""

    def __init__(self, method: Callable[..., Any], args: Args, named: Named, limit: asyncio.Semaphore | None) -> None:
        self._call = partial(method, *args, **named)
        self._awaits = (name_of_call(method) if is_declared(method) else method.__name__).startswith("a")
        self._limit = limit
        self._of = getattr(method, "__self__", None)
        self._held = HeldBack(self._of)
        self._work: Submission[Any] | None = None
        self._request: AheadRequest | None = None
        self._started = self._asked = self._ended = 0.0

    def start(self, loop: asyncio.AbstractEventLoop, context: Context, finished: Finished) -> bool:
        self._request = AheadRequest(self._of, context.run(account.get))
        if not self._request.begin():
            return False
        context.run(written.searching.set, True)
        self._started = now()

        async def work() -> Any:
            try:
                await self.ready()
                value = await self._made()
            except Exception as error:
                finished(Failed(error))
                raise
            finished(value)
            return value

        context.run(under_way.set, None)  # it holds a slot, so functions inside it may not wait for one
        self._work = Submission(work, loop, context)
        try:
            self._work.start()
        except Unreachable:
            self._work = None
            self._request.vain()
        return self._work is not None

    @property
    def head_start(self) -> float:
        """Seconds that it had run when stock asked for it."""
        return max(min(self._asked, self._ended or self._asked) - self._started - self.waited, 0.0)

    @property
    def took(self) -> float:
        """Seconds from its beginning to its end."""
        return self._ended - self._started - self.waited

    async def ready(self) -> None:
        """Returns when the call may begin."""

    async def _made(self) -> Any:
        assert self._request is not None
        await self._held.begin()
        failure: BaseException | None = None
        try:
            async with self._limit or nullcontext():
                self._request.sent, self.waited = True, now() - self._started
                result = await (self._call() if self._awaits else in_thread(self._call))
            self._request.tokens = told(self._of, result, self._held.writing)
            return result
        except BaseException as error:
            failure = error
            raise
        finally:
            self._ended = now()
            self._held.end(failure)

    @contextmanager
    def _taking(self) -> Iterator[tuple[Submission[Any], AheadRequest]]:
        """The block in which stock takes the result, or makes the call after all, as its request was refused."""
        assert self._work is not None and self._request is not None
        self._asked = now()
        self._request.take()
        self._held.want()
        yield self._work, self._request

    def stock(self, invocation: Callable[[], Invocation]) -> Any:
        with self._taking() as (work, request):
            stop: BaseException | None = None
            try:
                with on_stop(work.cancel):
                    return work.wait()
            except Exception as error:
                stop = stop_in(error)
                if stop is None and not self._held.refused:
                    raise
            if stop is not None:
                raise stop
            request.vain(again=True)
            return made(self._of, self._call)

    async def astock(self, invocation: Callable[[], Invocation]) -> Any:
        with self._taking() as (work, request):
            try:
                return await work.wait_async()
            except Exception:
                if not self._held.refused:
                    raise
            request.vain(again=True)
            return await amade(self._of, self._call)

    def stop(self) -> None:
        self._in_vain()
        if self._work is not None:
            self._work.cancel()

    def drop(self) -> None:
        self.stop()

    def _in_vain(self) -> None:
        if self._request is not None:
            self._request.vain()

    async def adrop(self) -> None:
        self._in_vain()
        if self._work is not None and not self._work.outcome.done():
            with suppress(Exception):  # nobody is interested any more
                await self._work.stop_async()


class CallsAhead(ABC):
    """The calls that begin ahead of one place of stock's, which makes them or not. Thread-safe."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.RLock()
        self._over = False

    @property
    @abstractmethod
    def _what(self) -> str:
        """Says which calls could not be begun, in a warning."""

    @abstractmethod
    def _left(self) -> Sequence[CallAhead]:
        """Returns the calls that stock has not made, at the end."""

    def _guarded(self, work: Callable[[], None]) -> None:
        """Does what begins calls. If that fails, a warning says so; with ``strict=True`` it raises PlanningError."""
        try:
            work()
        except asyncio.CancelledError:  # the call has been stopped: stock gets to know when it makes its next call
            self._over = True
        except Exception as error:
            self._over = True
            left_to_stock(self._what, error, strict=self._options.strict)

    def close(self) -> None:
        """Ends the calls that stock has not made. From a thread."""
        for ahead in self._left():
            ahead.drop()

    async def aclose(self) -> None:
        """``close`` for coroutines."""
        for ahead in self._left():
            await ahead.adrop()


def left_to_stock(what: str, error: Exception, *, strict: bool) -> None:
    """Warns that stock makes calls itself. what: could not be done. Raises PlanningError if ``strict``."""
    text = f"{what} ({type(error).__name__}: {error})"
    if strict:
        raise PlanningError(f"{text}; without strict=True this is a warning") from error
    warnings.warn(f"{text}; stock makes them. Please report this.", FineflowWarning, stacklevel=3)
