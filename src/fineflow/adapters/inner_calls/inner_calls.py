"""Component calls inside a user function: found by a walk (``adapters.lookahead``), started ahead, claimed by stock.

Stock runs the function itself, once, on the user's own objects. Its calls are claimed by wrappers around the entry
methods of the components' classes, as instrumentation libraries have them; outside of such a function a wrapper only
reads one context variable. So it makes no difference how the function gets at the component: by a global, a closure, an
attribute, or a helper in another module.

A call runs ahead only if another one can run beside it, and if calls of its kind take longer than that costs. A call
that stock makes itself hands its result to the walk, which then goes on from there.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, ClassVar

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.durations import QUICK, observe
from fineflow.adapters.core.trust import has_as
from fineflow.adapters.inner_calls.arguments import LOST, is_declared
from fineflow.adapters.inner_calls.bounds import Bounds
from fineflow.adapters.inner_calls.call_table import CallTable
from fineflow.adapters.inner_calls.calls_ahead import CallAhead, CallsAhead, MethodAhead
from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.inner_calls.entry_wrappers import comes_here, latest
from fineflow.adapters.inner_calls.finder import CallFinder
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.fresh_components import ComponentFactory
from fineflow.adapters.inner_calls.made_components import MadeComponents
from fineflow.adapters.inner_calls.own_runs import LEFT_TO_STOCK, is_call_of
from fineflow.adapters.inner_calls.run_figures import RunFigures
from fineflow.adapters.inner_calls.vectors_ahead import VectorsAhead
from fineflow.adapters.inner_calls.walk_costs import learn, skips
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.declare import active
from fineflow.options import Options
from fineflow.runtime.call import written
from fineflow.runtime.call.values import Failed
from fineflow.runtime.events import now, processor_time
from fineflow.runtime.loop.runtime_loop import engine_loop_if_any
from fineflow.runtime.loop.scopes import setting
from fineflow.runtime.queues import in_vain

_STEP = 2e-6  # seconds of processor time that a walk takes for one instruction, about
_SHARE = 0.2  # of the time between results, and of a run, that walks may take
_WALKS = 0.2  # seconds of processor time that the walks of a run may take besides


class InnerCalls(CallsAhead):
    """The component calls of one run of a user function. Thread-safe.

    claiming: the call that the function is a part of; None for none. figures: those of the run; None if nobody asks
    for them. vectors: those of the run, if it has some already.
    """

    finder: ClassVar[type[CallFinder]] = CallFinder
    starts: ClassVar[bool] = True  # False: it only predicts
    _may_embed: ClassVar[bool] = True  # single texts, which stock's own walk would find as well

    def __init__(
        self,
        components: Components,
        claiming: Claiming | None,
        func: Any,
        args: Args,
        named: Named,
        *,
        options: Options,
        figures: RunFigures | None = None,
        vectors: VectorsAhead | None = None,
    ) -> None:
        super().__init__(options)
        self._figures = figures
        self._components, self._claiming = components, claiming
        kept = None if claiming is None else claiming.shadows.kept_for_walks(MadeComponents)
        self._table = CallTable(components, ComponentFactory(components, kept), eager=options.eager)
        self._finder = self.finder(self._table, components, (func, args, named))
        self._func = func
        self._loop = asyncio._get_running_loop()  # of async calls of components
        self._context = contextvars.copy_context()
        self._context.run(active.set, None)
        self.vectors = vectors or VectorsAhead(self._context)
        self._bounds = Bounds(components, claiming, options)
        self._ran: int | None = None  # number of entry wrappers when stock began to run the function
        self._due = False  # another walk is scheduled
        self._results = 0  # that have arrived since the last walk
        self._waiting: list[FoundCall] = []  # calls under way that the last walk has met
        self._began = now()
        self._walked = self._saved = 0.0  # seconds of processor time of walks; seconds that stock waited less
        self.watcher: Callable[[Mapping[str, Any] | None], None] | None = None  # gets what is returned, after each walk

    # --- walks ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Walks through the function with what is known by now, and starts the calls that it finds.

        If that fails, the function runs as it is and a warning says so; with ``strict=True`` it raises PlanningError.
        """
        self._guarded(self._look)

    def awaited_on(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Sets the loop of async component calls, that of stock, where these are made on another thread than it."""
        self._loop = loop

    def begin(self, *, late: bool = False) -> None:
        """Makes the first walk, unless walks of this function have turned out to cost more than they save.

        Where the last runs have made no call, the walk waits for the first one: mostly there is none. late: the
        function is already running, and makes its first call.
        """
        early = self._options.eager or bool(self._table.calls)
        self._over = self.starts and not early and skips(self._func)
        if self._over:
            return
        quiet = self.watcher is None and self._figures is not None and self._figures.quiet
        if late or (quiet and not early):
            self._finder.follow()
            self._due = True
        else:
            self.look()
        self._ran = latest()

    @property
    def claims(self) -> bool:
        """True while calls of the function are started ahead and claimed, also those of optimized objects."""
        return self.starts and not self._over

    @property
    def _what(self) -> str:
        return f"the component calls inside {getattr(self._func, '__name__', 'a function')} could not run ahead"

    def _look(self) -> None:
        with self._lock:
            self._due = False
            if self._over or (self._claiming is not None and self._claiming.call.claims.closed):
                return
            self._results = 0
            self._waiting = self._context.copy().run(self._finder.look)
            if self._figures is not None:
                self._figures.walked(self._finder)
            if self.starts and self._may_embed and not self._bounds.of_user and not in_vain.bounded():
                for embeddings, texts in self._finder.texts:
                    self.vectors.begin(embeddings, texts)
            self._walked += self._finder.walk.took
            if self._waiting:
                self._fill()
            if self.watcher is not None:
                self.watcher(self._finder.returned)

    def adopt(self, calls: Sequence[FoundCall]) -> None:
        """Takes over calls that were started before the function began. What stock does not make is ended with it."""
        for call in calls:
            call.met = False
        self._table.calls.extend(calls)

    def _next_look(self, call: FoundCall) -> bool:
        """Returns True if the result of a call is worth another walk: it may get further, and results are not too many.

        A walk begins at the beginning. Through a long loop of quick calls, one for each result would take longer than
        the calls.
        """
        with self._lock:
            self._results += 1
            if not self._finder.blocked:
                return False
            if self._walked > _WALKS + _SHARE * (now() - self._began):
                return False
            under_way = self._running()
            took = max(now() - call.since, _STEP)
            return under_way == 0 or self._results * _SHARE * took >= self._finder.walk.steps * _STEP * under_way

    def _fill(self) -> None:
        """Starts calls that the last walk has found, while their number allows it.

        Calls that stock makes itself count, but never wait: it may make any number of them concurrently.
        """
        running, several = self._running(), self._several()
        for call in self._waiting:
            if running >= self._bounds.most:
                return
            if not (call.begun or call.taken) and running < self._bounds.of(call) and self._may_begin(call, several):
                call.begun = True
                self._begin(call)
                running += call.ahead is not None

    def _may_begin(self, call: FoundCall, several: bool) -> bool:
        if not (several or self._table.gains(call)):
            return False
        if is_declared(call.component):
            free = not any(map(call.again, self._table.calls))  # it may keep what the first one finds
        else:
            free = comes_here(call.component, call.name, before=self._ran)
        return free and bool(in_vain.room() or self._table.part(call.component))  # graphs' requests wait by themselves

    def _several(self) -> bool:
        """Returns True if something can run beside a call that waits."""
        return len(self._waiting) > 1 or self._finder.beside

    def _running(self, but: FoundCall | None = None) -> int:
        calls = self._table.calls
        return sum(call.under_way and (call.ahead is not None or call.taken) and call is not but for call in calls)

    def _observe(self, call: FoundCall, *, ahead: bool) -> None:
        """Records how long a call took. Among many that compute, each seems slow: then stock finds out itself."""
        took, busy = now() - call.since, processor_time() - call.processor
        if took >= QUICK and busy > took / 2 and (others := self._running(call)) and busy / (others + 1) < 2 * QUICK:
            if not ahead:
                return
            took = 0.0
        observe(call.component, call.name, took, ahead=ahead)

    def _begin(self, call: FoundCall) -> None:
        loop = self._loop if self._components.awaits(call.name) else engine_loop_if_any()
        if loop is None:
            return
        ahead = self._table.ahead(call, self._bounds.limit(loop))
        call.begins()
        if ahead is None:
            return
        # The searches of a graph note what they find one by one.
        call.version = written.version(call.component, searches=isinstance(ahead, MethodAhead))
        if call.version.keys is None:  # nobody could tell whether it is still what stock would find
            return
        call.ahead = ahead  # before it starts: it may have its result at once
        if not ahead.start(loop, self._context.copy(), partial(self._finished, call, ahead)):
            call.ahead = None

    def _finished(self, call: FoundCall, ahead: CallAhead, value: Any) -> None:
        """Takes the result of a call that ran ahead. On its loop."""
        with self._lock:
            if call.ahead is not ahead:  # stock makes the call
                return
            call.since += ahead.waited
            if not call.taken:
                call.version = call.version.ended()
            if isinstance(value, Failed):
                call.failed = True
            elif call.value is UNKNOWN:
                self._observe(call, ahead=True)
                call.value, call.ended = value, now()
            if not self._over:
                self._guarded(self._fill)
        if self._next_look(call) and not (self._due or self._over or self._finder.passed):
            self._due = True
            asyncio.get_running_loop().call_soon(self.look)

    def streams(self) -> None:
        """Notes that the function is a generator function, whose caller asks for one value after the other."""
        self._finder.asked = 0

    def asked(self, sent: Any) -> None:
        """Notes that the caller of a generator function asks for more. sent: the value that it sends, None for none."""
        with self._lock:
            if sent is not None:  # walks know nothing of it
                self._over = True
            elif not self._over:
                self._finder.asked += 1
                if self._due or self._finder.walk.paused:
                    self.look()

    # --- what stock does --------------------------------------------------------------------------------------------

    def take(self, own: Any, component: Any, name: str, args: Args, named: Named) -> FoundCall | None:
        """Returns the call that stock is about to make; None for one that nothing has found.

        own: the component's method, or a declared function, which is its own component. If it is the one whose calls
        these are, its call is under way, and none of them. Nor is that of a base class, which ``super()`` calls: what
        runs ahead would run the one around it once more.
        """
        if is_call_of(self._func, own) or not has_as(component, name, own):
            return None
        with self._lock:
            if self._due:  # stock already has the result that the next walk is for
                self.look()
            if self._over:
                return None
            try:
                if (first := self._table.first(component, name, args)) is not None:
                    self.look()
                    return first
                found = self._table.take(component, name, args, named)
                if found is None:
                    return None
                if not found.begun:
                    self._alone(found)
                elif found.ahead is not None and not (found.ahead.fits(args, named) and found.version.holds()):
                    found.given_up()
                return found
            except Exception:  # arguments that no walk understands, or that the component itself will refuse
                return None

    def _alone(self, call: FoundCall) -> None:
        """Runs a call that no walk has found in time as an optimized object would, if it gains by itself."""
        if self._table.pays(call.component, call.name) and self._table.gains(call):
            call.begun = call.taken = True
            self._begin(call)

    @contextmanager
    def _making(self, call: FoundCall) -> Iterator[None]:
        """The block in which stock makes a call."""
        try:
            with setting((active, self if call.opened else None)):
                yield
        except BaseException:
            call.failed = True
            raise

    def stock(self, own: Callable[..., Any], call: FoundCall, args: Args, named: Named) -> Any:
        """Makes a call as stock does, on the graph that runs ahead if there is one. own: the component's method."""
        with self._making(call):
            if call.ahead is None:
                self._begins(call)
                value = own(*args, **named)
                self._observe(call, ahead=False)
            else:
                asked = now()
                value = call.ahead.stock(partial(self._table.of_stock, call, args, named))
                value = self._taken(call, value, asked, args, named)
                if value is LOST:
                    value = own(*args, **named)
        self._made(call, value)
        return value

    async def astock(self, own: Callable[..., Any], call: FoundCall, args: Args, named: Named) -> Any:
        """``stock`` for async methods."""
        with self._making(call):
            if call.ahead is None:
                self._begins(call)
                value = await own(*args, **named)
                self._observe(call, ahead=False)
            else:
                asked = now()
                value = await call.ahead.astock(partial(self._table.of_stock, call, args, named))
                value = self._taken(call, value, asked, args, named)
                if value is LOST:
                    value = await own(*args, **named)
        self._made(call, value)
        return value

    def _begins(self, call: FoundCall) -> None:
        call.begins()
        in_vain.own()

    def _taken(self, call: FoundCall, value: Any, asked: float, args: Args, named: Named) -> Any:
        """Returns a result as stock has it; LOST if stock makes the call again, as it is of no use.

        Notes how long the call had run when stock asked for it: that is how much less stock waited.
        """
        value = call.of_stock(value, args, named)
        if value is not LOST:
            seconds = max(min(asked, call.ended or asked) - call.since, 0.0)
            with self._lock:
                self._saved += seconds
        elif is_declared(call.component):
            LEFT_TO_STOCK.add(call.component)
        return value

    def _made(self, call: FoundCall, value: Any) -> None:
        call.failed, call.ended = False, call.ended or now()  # what ran ahead may have failed
        if call.value is UNKNOWN:
            call.value = self._components.seen(call.name, value)
            if self._finder.worth and self._next_look(call):
                self._finder.latest = call
                self.look()
                self._finder.latest = None

    # --- the end ----------------------------------------------------------------------------------------------------

    def _left(self) -> list[CallAhead]:
        with self._lock:
            if self._figures is not None and not self._over:
                self._figures.end(self._finder, self._saved)
            if self._claiming is not None and (self._saved or self._table.calls):
                self._claiming.gains(self._saved, began=self._began, run=self.vectors.run, around=self.vectors.around)
            self._over = True
            self._learn()
            left = [call.ahead for call in self._table.calls if call.ahead is not None and not call.taken]
            self._table.calls.clear()
        self.vectors.close()
        return left

    def _learn(self) -> None:
        """Notes what the walks took and saved; once, and if there was one."""
        if not (self.starts and self._walked):
            return
        with suppress(Exception):  # of a component that changes: it is stock's to report
            gained = bool(self._table.calls) and self._saved < self._walked and self._table.gained_inside()
            learn(self._func, walked=self._walked, saved=inf if gained else self._saved)
        self._walked = 0.0
