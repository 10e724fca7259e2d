"""Prediction of what running ahead would gain inside a user function, while the function runs as it is."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.declare import active
from fineflow.options import Options
from fineflow.runtime.events import now
from fineflow.runtime.loop.scopes import setting

_WALKS = 64  # of one run of a function; later results lead to none
_SHORTEST = 4  # characters of a result that tell that it is part of an argument
_COMPARED = 20_000  # characters of arguments in which results are looked for


class Savings:
    """Seconds that functions inside one component call would save, and the calls that would run ahead there."""

    def __init__(self) -> None:
        self.seconds, self.early = 0.0, 0


inside: ContextVar[Savings | None] = ContextVar("fineflow_savings", default=None)
"""The component call around what runs here, in a function whose gain is being predicted."""


class Door:
    """Stands for a prediction in the context of a call, until it ends: stock may report the end elsewhere.

    LangChain awaits its end handlers in a copy of the context (langchain-core 1.7.2): what is set at the start stays.
    """

    def __init__(self, calls: DryCalls) -> None:
        self._calls: DryCalls | None = calls
        self.stock, self.astock = calls.stock, calls.astock

    def take(self, own: Any, component: Any, name: str, args: Args, named: Named) -> FoundCall | None:
        return None if self._calls is None else self._calls.take(own, component, name, args, named)

    @property
    def open(self) -> bool:
        return self._calls is not None

    def close(self) -> None:
        """Ends the prediction, and lets go of it."""
        if self._calls is not None:
            calls, self._calls = self._calls, None
            del self.stock, self.astock
            calls.close()


def predicting() -> bool:
    """Returns True inside a user function whose gain is being predicted."""
    here: Any = active.get()
    return here is not None and (not isinstance(here, Door) or here.open)


class DryCalls(InnerCalls):
    """Finds the calls that could run ahead, as ``InnerCalls`` does, but starts none of them.

    Stock makes every call and its duration is measured. A call that a walk has found before could have begun when the
    results that it needs were there, and stock would have waited only for the rest of it. What a call may need are the
    result that led to the walk, results whose text is part of its arguments, and those without which a walk ended
    before the place of the call: a condition, say.

    gain: returns the seconds that a call of a component would take less by itself. ended: is told at the end.
    saved: seconds by which the function would have ended earlier, so far. early: calls that would have run ahead.
    """

    starts = False

    def __init__(
        self,
        components: Components,
        func: Any,
        args: Args,
        named: Named,
        *,
        options: Options,
        gain: Callable[[FoundCall], float],
        ended: Callable[[DryCalls], None],
    ) -> None:
        super().__init__(components, None, func, args, named, options=options)
        self._gain, self._at_end = gain, ended
        self._began = now()
        self.saved = 0.0
        self.early = 0
        self._starts: dict[FoundCall, float] = {}
        self._known = 0.0  # predicted time of the result that led to the last walk
        self._ends: list[tuple[str, float]] = []  # texts of results, and their predicted times
        self._busy: list[float] = []  # predicted ends of calls that run ahead
        self._walks = 0
        self._ended_at: int | None = None  # place where the last walk ended; None: it got through
        self._ways: list[tuple[int, float]] = []  # such places, and when the results that led beyond them were there
        self._unsure = frozenset[int]()  # places of calls that the last walk found unsure
        self._sure: dict[int, float] = {}  # such places, and when the results that decided about them were there

    @property
    def owner(self) -> Any:
        """The object whose method the function is; None for a plain function."""
        return getattr(self._func, "__self__", None)

    def _look(self) -> None:
        self._walks += 1
        super()._look()
        self._note_way()

    def _note_way(self) -> None:
        """Notes how far the last walk came, and what the result before it has decided."""
        place = None if self._finder.held is None else self._finder.place
        if self._ended_at is not None and (place is None or place > self._ended_at):
            self._ways.append((self._ended_at, self._known))
        self._ended_at = place
        self._sure |= dict.fromkeys(self._unsure - self._finder.unsure, self._known)
        self._unsure = frozenset(self._finder.unsure)

    def _next_look(self, call: FoundCall) -> bool:
        return self._finder.blocked and self._walks < _WALKS

    def _fill(self) -> None:
        self._note_way()
        for call in self._waiting:  # also a single one: what it needs may have been there long before stock gets to it
            if not (call.begun or call.taken):
                call.begun = True
                self._begin(call)

    def _begin(self, call: FoundCall) -> None:
        if not call.taken:  # else it begins when stock gets there
            given = repr((call.args, call.named))[:_COMPARED]
            needed = [end for text, end in self._ends if text in given]
            ways = [known for place, known in self._ways if call.place > place]
            self._starts[call] = max([self._known, self._sure.get(call.place, 0.0), *needed, *ways])

    @contextmanager
    def _measured(self, call: FoundCall) -> Iterator[Savings]:
        within = Savings()
        with setting((inside, within)), self._making(call):
            call.begins()
            yield within

    def stock(self, own: Callable[..., Any], call: FoundCall, args: Args, named: Named) -> Any:
        """Makes a call as stock does, and measures it."""
        with self._measured(call) as within:
            value = own(*args, **named)
        self._guarded(partial(self._ended, call, value, within))
        return value

    async def astock(self, own: Callable[..., Any], call: FoundCall, args: Args, named: Named) -> Any:
        """``stock`` for async methods."""
        with self._measured(call) as within:
            value = await own(*args, **named)
        self._guarded(partial(self._ended, call, value, within))
        return value

    def _ended(self, call: FoundCall, value: Any, within: Savings) -> None:
        with self._lock:
            self.early += within.early
            end = now() - self._began
            reached = call.since - self._began - self.saved  # stock gets there at this predicted time
            if call.opened:  # the calls that it makes have been counted, but for those inside of other functions
                self.saved += within.seconds
                finish = end - self.saved
            else:
                took = now() - call.since
                took -= min(within.seconds + self._gain(call), took)
                finish = self._predicted(call, reached, took)
                self.saved = max(self.saved, end - max(finish, reached))
            self._known = finish
            text = _text(self._components.seen(call.name, value))
            if len(text) >= _SHORTEST and len(self._ends) < _WALKS:
                self._ends.append((text, finish))
            self._observe(call, ahead=False)
        self._made(call, value)

    def _predicted(self, call: FoundCall, reached: float, took: float) -> float:
        """Returns when a call would have ended: begun when it was found, or by stock when that comes first."""
        start = self._starts.pop(call, None)
        if start is None:
            return reached + took
        if len(self._busy) >= self._bounds.of(call):
            start = max(start, heapq.heappop(self._busy))
        self.early += start < reached
        finish = min(start, reached) + took
        heapq.heappush(self._busy, finish)
        return finish

    def close(self) -> None:
        """Ends the prediction; the call around the function is shorter by what it has saved."""
        super().close()
        self._report()

    async def aclose(self) -> None:
        """``close`` for coroutines."""
        await super().aclose()
        self._report()

    def _report(self) -> None:
        around = inside.get()
        if around is not None:
            around.seconds += self.saved
            around.early += self.early
        self._at_end(self)


def _text(value: Any) -> str:
    """Returns the text of a result, as arguments of later calls may contain it; "" for anything else."""
    content = getattr(value, "content", value)
    return repr(content)[1:-1] if isinstance(content, str) else ""
