"""Calls of components that stock makes itself, at providers with rate limits (``rate_limits``).

They are counted. One that is refused while calls run ahead is made once more when these have ended: in stock, they
would not have been there. Where such a bound is known, it waits for them before.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fineflow.runtime import bill, events
from fineflow.runtime.events import Tokens
from fineflow.runtime.loop.runtime_loop import post
from fineflow.runtime.loop.scopes import check, on_stop
from fineflow.runtime.queues import in_vain
from fineflow.runtime.queues.component_calls import tokens_of
from fineflow.runtime.queues.provider_caches import Writing, beginning_of
from fineflow.runtime.queues.rate_limits import asked, calls_of, heard, model_name
from fineflow.runtime.queues.refill import repeats
from fineflow.runtime.queues.refusals import REFUSED, refusal
from fineflow.runtime.queues.responses import install, listener

T = TypeVar("T")

_LONG = 60.0  # seconds after which a call asks again that is woken before


class OwnCall:
    """One call of a component that stock makes itself, with its second attempt if calls ahead were in its way.

    component: None for one of which nothing is known; its calls are not counted. key: its arguments.
    """

    __slots__ = ("_again", "_beginning", "_calls", "_disturbed", "_repeats", "_since", "writing")

    def __init__(self, component: Any, key: Any = None) -> None:
        self._beginning = None if component is None else beginning_of(key)
        self.writing: Writing | None = None
        self._calls = None if component is None else calls_of(component)
        self._repeats = repeats(asked(component))
        self._since = 0.0
        self._disturbed = self._again = False

    def begin(self, first: Callable[[], T]) -> T:
        """Returns the result of ``first()``, which begins the call: ``over`` ends it. Raises what that raises."""
        while True:
            ended = threading.Event()
            while (seconds := self._begins(ended.set)) is not None:
                with on_stop(ended.set):
                    ended.wait(seconds)
                check()
                ended.clear()
            before = listener.set(self)
            try:
                return first()
            except BaseException as error:
                if not self.over(error):
                    raise
            finally:
                listener.reset(before)

    async def abegin(self, first: Callable[[], Awaitable[T]]) -> T:
        """``begin`` for coroutines."""
        while True:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            while (seconds := self._begins(partial(post, loop, ended.set))) is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await ended.wait()
                ended.clear()
            before = listener.set(self)
            try:
                return await first()
            except BaseException as error:
                if not self.over(error):
                    raise
            finally:
                with suppress(ValueError):  # closed in another context
                    listener.reset(before)

    def _begins(self, ended: Callable[[], object]) -> float | None:
        """Returns None if it may begin; else the seconds after which to ask again, if ``ended`` is not called."""
        install()
        if self._calls is not None:
            writing = self._calls.cache.enter(self._beginning, ended, own=True)
            if writing is None:
                return _LONG
            seconds = self._calls.begin_own(ended, again=self._again, repeats=self._repeats)
            if seconds is not None:
                writing.over(good=False)
                return seconds
            self.writing = writing
            self._since, self._disturbed = events.now(), bool(self._calls.ahead)
            if not self._again:
                in_vain.own()
        return None

    def answers(self) -> None:
        """Notes that the response has begun."""
        if self.writing is not None:
            self.writing.over(good=True)

    def responded(self, status: int, headers: Mapping[str, Any]) -> bool:
        """Takes note of a response to a request of the call (``responses.Listener``)."""
        if (calls := self._calls) is None:
            return False
        self._disturbed |= bool(calls.ahead)
        stops = status == REFUSED and self._disturbed and not self._again
        heard(calls, self._since, status, headers, repeated=self._repeats and not stops)
        return stops

    def over(self, error: BaseException | None) -> bool:
        """Counts the end of the call. Returns True if it shall be made again."""
        if (calls := self._calls) is None:
            return False
        if self.writing is not None:
            self.writing.over(good=error is None)
        said = None if error is None else refusal(error)
        again = said is not None and not self._again and (self._disturbed or bool(calls.ahead))
        if said is not None:
            calls.refused(self._since, said)
        calls.end(good=error is None, refused=again)
        self._again |= again
        return again


def told(component: Any, result: Any, writing: Writing | None) -> Tokens | None:
    """Takes note of what a model's answer says of its tokens, and of its provider's cache. writing: of the request.

    Returns its tokens, if it tells them.
    """
    if component is None:
        return None
    tokens = tokens_of(result)
    if tokens is not None:
        bill.count(model_name(component), tokens)
    if writing is not None:
        writing.told(tokens.cached if tokens is not None and tokens.told else None)
    return tokens


def made(component: Any, own: Callable[[], T], key: Any = None) -> T:
    """Returns the result of ``own()``, stock's own call of a component. From a thread."""
    call = OwnCall(component, key)
    result = call.begin(own)
    call.over(None)
    told(component, result, call.writing)
    return result


async def amade(component: Any, own: Callable[[], Awaitable[T]], key: Any = None) -> T:
    """``made`` for coroutines."""
    call = OwnCall(component, key)
    result = await call.abegin(own)
    call.over(None)
    told(component, result, call.writing)
    return result
