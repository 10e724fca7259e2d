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
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from fineflow.adapters.core.calls_ahead import CallAhead, GraphAhead
from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.durations import observe, quick
from fineflow.adapters.core.entry_wrappers import active, claims_of
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.lookahead import UNKNOWN, Stop, Walk
from fineflow.adapters.lookahead.values import Awaited
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.options import Options
from fineflow.runtime.call.claims import equal
from fineflow.runtime.call.values import Failed
from fineflow.runtime.events import now
from fineflow.runtime.loop.runtime_loop import engine_loop

_AT_ONCE = 16  # component calls of one function that run ahead at a time, if the user sets no bound


class Components(Protocol):
    """A framework's side: its components, and their methods that may run ahead."""

    def knows(self, obj: Any) -> bool:
        """Returns True for a component, or for something that ``joined`` or ``made`` has returned."""

    def judges(self, obj: Any, name: str) -> bool:
        """Returns True if calls of this method of a component are calls of the component, not of the user's code."""

    def steps(self, obj: Any) -> Sequence[Any] | None:
        """Returns the steps of a sequence that the function makes itself; None for anything else."""

    def key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns what two calls must have in common to be the same: a tuple of arguments, or the only one that counts.

        Raises Stop for a method that is not known to change nothing.
        """

    def reads_only(self, part: Planned, key: Any) -> bool:
        """Returns True if a call changes nothing that anything else depends on. key: UNKNOWN for any arguments."""

    def same(self, known: Any, obj: Any) -> bool:
        """Returns True if calls of two components are calls of one: the same object, or made alike by the function."""

    def computes(self, obj: Any) -> bool:
        """Returns True for a component that only computes: a prompt, a parser."""

    def computed(self, part: Planned, key: Any) -> Any:
        """Returns the value of such a component; UNKNOWN if it may do more. Raises what it raises."""

    def invocation(self, part: Planned, name: str, args: Any, named: Any, limit: asyncio.Semaphore) -> Invocation:
        """Returns the call of a component."""

    def method(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], limit: asyncio.Semaphore
    ) -> CallAhead | None:
        """Returns the call of a method of a component that has no graph; None if stock has to make it."""

    def limit(self) -> int | None:
        """Returns the ``max_concurrency`` in force."""

    def joined(self, left: Any, right: Any) -> Any:
        """Returns ``left | right``. Raises Stop."""

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns a new component. Raises Stop if making it may do more."""


class _Call:
    """One component call that the function is going to make. met: in the current walk. taken: stock is making it."""

    __slots__ = (
        *("ahead", "args", "begun", "component", "failed", "key", "met", "name", "named", "since", "taken", "value"),
    )

    def __init__(self, component: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.component, self.name, self.key, self.args, self.named = component, name, key, args, named
        self.value: Any = UNKNOWN
        self.ahead: CallAhead | None = None
        self.met = True
        self.begun = self.taken = self.failed = False
        self.since = 0.0  # when it began

    @property
    def under_way(self) -> bool:
        return self.value is UNKNOWN and not self.failed


class InnerCalls:
    """The component calls of one run of a user function. Thread-safe.

    arguments: wraps a key so that calls can be compared (``Framework.arguments``). part: returns the proxy of a
    component that may run ahead.
    """

    def __init__(
        self,
        components: Components,
        claiming: Claiming,
        part: Callable[[Any], Planned | None],
        arguments: Callable[[Any], Any],
        func: Any,
        args: Sequence[Any],
        named: Mapping[str, Any],
        *,
        options: Options,
    ) -> None:
        self._options = options
        self._components, self._claiming, self._part, self._arguments = components, claiming, part, arguments
        self._function = (func, args, named)
        self._calls: list[_Call] = []
        self._lock = threading.RLock()
        self._loop = asyncio._get_running_loop()  # of async calls of components
        self._context = contextvars.copy_context()
        self._context.run(active.set, None)
        self._limits: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
        self._over = False
        self._due = False  # another walk is scheduled
        self._blocked = False  # a result would let the walk get further
        self._worth = False  # the walk has met a call that may be worth running ahead
        self._walk: Walk = Walk(self)

    # --- walks ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Walks through the function with what is known by now, and starts the calls that it finds.

        If that fails, the function runs as it is and a warning says so; with ``strict=True`` it raises PlanningError.
        """
        try:
            self._look()
        except asyncio.CancelledError:  # the call has been stopped: stock gets to know when it makes its next call
            self._over = True
        except Exception as error:
            self._over = True
            name = getattr(self._function[0], "__name__", "a function")
            text = f"the component calls inside {name} could not run ahead ({type(error).__name__}: {error})"
            if self._options.strict:
                raise PlanningError(f"{text}; without strict=True this is a warning") from error
            warnings.warn(f"{text}; stock makes them. Please report this.", FineflowWarning, stacklevel=2)

    def _look(self) -> None:
        with self._lock:
            self._due = False
            if self._over or self._claiming.call.claims.closed:
                return
            for call in self._calls:
                call.met = False
            self._blocked = self._worth = False
            self._walk = Walk(self)
            func, args, named = self._function
            self._walk.run(func, args, named)
            self._blocked = self._blocked or bool(self._walk.reason)
            waiting = [call for call in self._calls if call.under_way and self._pays(call.component, call.name)]
            if len(waiting) > 1:
                for call in waiting:
                    if not (call.begun or call.taken):
                        call.begun = True
                        self._begin(call)

    def _pays(self, component: Any, name: str) -> bool:
        return self._options.eager or not quick(component, name)

    def _observe(self, call: _Call, *, ahead: bool) -> None:
        observe(call.component, call.name, now() - call.since, ahead=ahead)

    def _begin(self, call: _Call) -> None:
        loop = self._loop if call.name.startswith("a") else _engine_loop()
        if loop is None:
            return
        limit = self._limits.get(loop)
        if limit is None:
            limit = self._limits[loop] = asyncio.Semaphore(
                self._components.limit() or self._options.max_concurrency or _AT_ONCE
            )
        ahead = self._ahead(call, limit)
        call.since = now()
        if ahead is not None and ahead.start(loop, self._context.copy(), partial(self._finished, call)):
            call.ahead = ahead

    def _ahead(self, call: _Call, limit: asyncio.Semaphore) -> CallAhead | None:
        part = self._part(call.component)
        if part is None:
            return self._components.method(call.component, call.name, call.args, call.named, limit)
        invocation = self._components.invocation(part, call.name, call.args, call.named, limit)
        plan = part._self_current(invocation.way)
        if plan is None or not plan.touched:
            return None
        return GraphAhead(part, part._self_framework.bounded(plan), invocation)

    def _finished(self, call: _Call, value: Any) -> None:
        """Takes the result of a call that ran ahead. On its loop."""
        if isinstance(value, Failed):
            call.failed = True
        elif call.value is UNKNOWN:
            self._observe(call, ahead=True)
            call.value = value
        if self._blocked and not self._due and not self._over:
            self._due = True
            asyncio.get_running_loop().call_soon(self.look)

    # --- what the walk meets ----------------------------------------------------------------------------------------

    def knows(self, obj: Any) -> bool:
        """See ``lookahead.Host``."""
        return self._components.knows(obj)

    def judges(self, obj: Any, name: str) -> bool:
        """See ``lookahead.Host``."""
        return self._components.judges(obj, name)

    def joined(self, left: Any, right: Any) -> Any:
        """See ``lookahead.Host``."""
        return self._components.joined(left, right)

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """See ``lookahead.Host``."""
        if not all(map(self._walk.plain, (*args, *named.values()))):
            raise Stop(f"makes a {getattr(kind, '__name__', 'component')} of something that is not plain data")
        return self._components.made(kind, name, args, named)

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        """See ``lookahead.Host``."""
        key = self._components.key(obj, name, args, named)
        if type(key) is tuple:
            self._walk.own(key)
        steps = self._components.steps(obj)
        if steps is None:
            value = self._met(obj, name, key, args, named, sure)
        else:
            value = key
            for number, step in enumerate(steps):
                given = [value, *args[1:]] if number else args
                value = self._met(step, name, value, given, named, sure)
        return Awaited(value) if name.startswith("a") else value

    def _met(self, obj: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any], sure: bool) -> Any:
        part = self._part(obj)
        known = self._walk.known(key)
        if part is not None and self._components.computes(obj):
            if known and (value := self._computed(part, key)) is not UNKNOWN:
                return value
        else:
            self._worth = self._worth or self._pays(obj, name)
        reads_only = part is None or self._components.reads_only(part, key if known else UNKNOWN)
        if not (sure and known):
            self._blocked = True
            if not reads_only:
                raise Stop(f"waits for the arguments of a {type(obj).__name__} that may have side effects")
            return UNKNOWN
        call = self._matching(obj, name, self._walk.copied(key), args, named)
        if call.failed:
            raise Stop(f"its call of a {type(obj).__name__} failed")
        if call.value is UNKNOWN and not reads_only:
            raise Stop(f"waits for a {type(obj).__name__}, which may have side effects")
        return call.value

    def _computed(self, part: Planned, key: Any) -> Any:
        try:
            return self._components.computed(part, self._walk.copied(key))
        except Exception as error:
            raise Stop(f"a {type(part.__wrapped__).__name__} raises {type(error).__name__}") from None

    def _matching(self, obj: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> _Call:
        wanted = self._arguments(key)
        for call in self._calls:
            same = call.name == name and self._components.same(call.component, obj)
            if not call.met and same and equal(call.key, wanted):
                call.met = True
                return call
        claims_of(type(obj), name)
        made = _Call(obj, name, wanted, list(map(self._given, args)), {n: self._given(v) for n, v in named.items()})
        self._calls.append(made)
        return made

    def _given(self, arg: Any) -> Any:
        # Only what the key leaves out, such as a config with callbacks of stock, can be unknown.
        return self._walk.copied(arg) if self._walk.known(arg) else None

    # --- what stock does --------------------------------------------------------------------------------------------

    def take(self, component: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> _Call | None:
        """Returns the call that stock is about to make, if a walk has found it."""
        with self._lock:
            if self._over or not any(not call.taken and call.name == name for call in self._calls):
                return None
            if not any(self._components.same(call.component, component) for call in self._calls):
                return None
            try:
                wanted = self._arguments(self._components.key(component, name, args, named))
            except Exception:  # arguments that no walk understands, or that the component itself will refuse
                return None
            for call in self._calls:
                same = call.name == name and not call.taken and self._components.same(call.component, component)
                if same and equal(call.key, wanted):
                    call.taken = True
                    if call.ahead is not None and not call.ahead.fits(args, named):
                        call.ahead.drop()
                        call.ahead = None
                    return call
        return None

    def stock(self, own: Callable[..., Any], call: _Call, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Makes a call as stock does, on the graph that runs ahead if there is one. own: the component's method."""
        before = active.set(None)
        try:
            if call.ahead is None:
                call.since = now()
                value = own(*args, **named)
                self._observe(call, ahead=False)
            else:
                value = call.ahead.stock(partial(self._of_stock, call, args, named))
        except BaseException:
            call.failed = True
            raise
        finally:
            active.reset(before)
        self._made(call, value)
        return value

    async def astock(self, own: Callable[..., Any], call: _Call, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """``stock`` for async methods."""
        before = active.set(None)
        try:
            if call.ahead is None:
                call.since = now()
                value = await own(*args, **named)
                self._observe(call, ahead=False)
            else:
                value = await call.ahead.astock(partial(self._of_stock, call, args, named))
        except BaseException:
            call.failed = True
            raise
        finally:
            with suppress(ValueError):  # closed in another context
                active.reset(before)
        self._made(call, value)
        return value

    def _of_stock(self, call: _Call, args: Sequence[Any], named: Mapping[str, Any]) -> Invocation:
        part = self._part(call.component)
        assert part is not None
        return self._components.invocation(part, call.name, args, named, asyncio.Semaphore())

    def _made(self, call: _Call, value: Any) -> None:
        call.failed = False  # of what ran ahead, perhaps
        if call.value is UNKNOWN:
            call.value = value
            if self._blocked and self._worth:
                self.look()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the calls that stock has not made. For functions that stock runs in a thread."""
        for ahead in self._left():
            ahead.drop()

    async def aclose(self) -> None:
        """``close`` for coroutines."""
        for ahead in self._left():
            await ahead.adrop()

    def _left(self) -> list[CallAhead]:
        with self._lock:
            self._over = True
            left = [call.ahead for call in self._calls if call.ahead is not None and not call.taken]
            self._calls.clear()
        return left


def _engine_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return engine_loop()
    except RuntimeError:  # the interpreter is exiting
        return None
