"""One call ahead of stock: it waits while its provider takes no more, or while another writes what it could read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fineflow.runtime import events
from fineflow.runtime.loop.runtime_loop import post, set_done
from fineflow.runtime.queues.provider_caches import Cacheable, Writing
from fineflow.runtime.queues.rate_limits import ModelCalls, asked, calls_of, heard
from fineflow.runtime.queues.refill import repeats
from fineflow.runtime.queues.refusals import REFUSED, refusal
from fineflow.runtime.queues.responses import install, listener


class HeldBack:
    """One call ahead of stock, from its wish to begin to its end, on one event loop. Stock may want it meanwhile.

    repeatable: stock may make it again if it is refused: a request, not a function of the user's. refused: it was, so
    it does not exist for stock. beginning: of a request to a model, which its provider may cache.
    """

    __slots__ = (
        "_asked",
        "_calls",
        "_component",
        "_number",
        "_wishing",
        "_woken",
        "beginning",
        "refused",
        "repeatable",
        "since",
        "wanted",
        "writing",
    )

    def __init__(self, component: Any, *, wanted: bool = False, repeatable: bool = True) -> None:
        self._component = component
        self._calls: ModelCalls | None = None
        self._woken: asyncio.Future[None] | None = None
        self._wishing: tuple[Callable[[], object], ...] = ()
        self.writing: Writing | None = None
        self.beginning: Cacheable | None = None
        self._asked = False  # stock wanted it before it began
        self._number = 0  # of calls that had been started by then
        self.since = 0.0
        self.wanted = wanted
        self.refused = False
        self.repeatable = repeatable

    @property
    def repeats(self) -> bool:
        """True if its client repeats what is refused."""
        return repeats(asked(self._component))

    async def begin(self) -> None:
        """Returns when the call may begin."""
        install()
        calls = calls_of(self._component)
        while True:
            wanted = self._asks()
            self.writing = calls.cache.enter(self.beginning, None if wanted else self.wake)
            if self.writing is not None:
                break
            await self._until_woken(wanted, None)
        try:
            while True:
                wanted = self._asks()
                if (seconds := calls.begin(self)) is None:
                    break
                try:
                    await self._until_woken(wanted, seconds)
                except BaseException:
                    calls.leave(self)
                    calls.wake()  # it may have been this one's turn
                    raise
                calls.leave(self)
        except BaseException:
            self.writing.over(good=False)
            raise
        self._woken = None
        self.writing.ahead = not wanted
        self._calls, self.since, self._asked, self._number = calls, events.now(), wanted, calls.started
        if self.wanted:  # since it began
            calls.settle(self)
        listener.set(self)

    def _asks(self) -> bool:
        """Prepares for being woken, which any thread may do from now on. Returns True if stock wants the call."""
        self._woken = asyncio.get_running_loop().create_future()
        return self.wanted

    async def _until_woken(self, wanted: bool, seconds: float | None) -> None:
        """wanted: by stock, when the call asked whether it may begin."""
        assert self._woken is not None
        if self.wanted and not wanted:  # another thread may want it since
            set_done(self._woken)
        try:
            await asyncio.wait((self._woken,), timeout=seconds)
        finally:
            self._woken = None

    def answers(self) -> None:
        """Notes that the response has begun."""
        if self.writing is not None:
            self.writing.over(good=True)

    def want(self) -> None:
        """Lets the call begin whatever the bound is: stock waits for it. From any thread."""
        self.wanted = True
        self.settle()
        self.wake()
        wishing, self._wishing = self._wishing, ()
        for call in wishing:
            call()

    def when_wanted(self, call: Callable[[], object]) -> None:
        """Calls ``call`` once stock wants the call, in any thread: now, if it does already. May be twice."""
        self._wishing = (*self._wishing, call)
        if self.wanted:
            call()

    def settle(self) -> None:
        """Notes that nobody has to wait for the call any more. From any thread."""
        if (calls := self._calls) is not None:
            calls.settle(self)

    def wake(self) -> None:
        """Lets the call ask again. From any thread."""
        if (woken := self._woken) is not None:
            post(woken.get_loop(), set_done, woken)

    def responded(self, status: int, headers: Mapping[str, Any]) -> bool:
        """Takes note of a response to a request of the call (``responses.Listener``)."""
        if (calls := self._calls) is None:
            return False
        stops = status == REFUSED and self._ahead(calls)
        heard(calls, self.since, status, headers, repeated=self.repeats and not stops)
        return stops

    def _ahead(self, calls: ModelCalls) -> bool:
        """Returns True if others were running that would not have been in stock: they may be the reason."""
        alone = calls.running == 1 and calls.started == self._number
        return self.repeatable and not (alone or (self._asked and not calls.ahead))

    def end(self, error: BaseException | None) -> None:
        """Counts the end of the call, and what its error says about rate limits."""
        calls, self._calls = self._calls, None
        if calls is None:
            return
        if self.writing is not None:
            self.writing.over(good=error is None)
        if error is not None and (said := refusal(error)) is not None:
            self.refused = self._ahead(calls)
            calls.refused(self.since, said)
        calls.end(good=error is None, refused=self.refused)
        calls.settle(self)
