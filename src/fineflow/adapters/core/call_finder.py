"""Finds the component calls that a user function is going to make, by walks (``adapters.lookahead``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fineflow.adapters.core.calls_ahead import CallAhead
from fineflow.adapters.core.durations import quick
from fineflow.adapters.core.entry_wrappers import claims_of
from fineflow.adapters.core.fresh_components import Fresh, FreshComponents
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.lookahead import UNKNOWN, Stop, Walk
from fineflow.adapters.lookahead.values import Awaited
from fineflow.runtime.call.claims import equal


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

    def fresh(self, kind: Any) -> bool:
        """Returns True for classes of components that only stock makes, as that may open connections."""

    def composite(self, obj: Any) -> bool:
        """Returns True for a component that consists of several, so that one call of it may gain by itself."""

    def derives(self, obj: Any, name: str) -> bool:
        """Returns True for methods that only compute: they return a new component, or data, and change nothing."""

    def derived(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns the result of such a method. Raises Stop if it may do more with these arguments."""

    def same(self, one: Any, other: Any, made: Sequence[Any]) -> bool:
        """Returns True if two components are one to their callers, as they were made or derived in the same way.

        made: components that stand for others made of the same arguments, as long as these are configured alike.
        """


class FoundCall:
    """One component call that the function is going to make.

    met: in the current walk. begun: it was started ahead. taken: stock is making it. since: when it began, in seconds.
    """

    __slots__ = (
        *("ahead", "args", "begun", "component", "failed", "key", "met", "name", "named", "since", "taken", "value"),
    )

    def __init__(self, component: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.component, self.name, self.key, self.args, self.named = component, name, key, args, named
        self.value: Any = UNKNOWN
        self.ahead: CallAhead | None = None
        self.met = True
        self.begun = self.taken = self.failed = False
        self.since = 0.0

    @property
    def under_way(self) -> bool:
        return self.value is UNKNOWN and not self.failed


class CallFinder:
    """Walks through one run of a user function, and keeps the component calls that the walks have found.

    The ``Host`` of its walks. blocked: a result that is missing would let the walk get further. worth: the last walk
    has met a call that may be worth running ahead.
    """

    def __init__(
        self,
        components: Components,
        part: Callable[[Any], Planned | None],
        arguments: Callable[[Any], Any],
        function: tuple[Any, Sequence[Any], Mapping[str, Any]],
        *,
        eager: bool,
    ) -> None:
        self.calls: list[FoundCall] = []
        self.blocked = self.worth = False
        self._components, self._part, self._arguments = components, part, arguments
        self._function, self._eager = function, eager
        self._fresh = FreshComponents()
        self._derivations: list[tuple[Any, Any]] = []  # what was asked for, and the result
        self._walk: Walk = Walk(self)

    def look(self) -> list[FoundCall]:
        """Walks through the function with what is known by now; returns the calls under way that may gain."""
        for call in self.calls:
            call.met = False
        self.blocked = self.worth = False
        self._fresh.restart()
        self._walk = Walk(self)
        func, args, named = self._function
        self._walk.run(func, args, named)
        self.blocked = self.blocked or bool(self._walk.reason)
        found = [call for call in self.calls if call.met and call.under_way and not isinstance(call.component, Fresh)]
        return [call for call in found if self.pays(call.component, call.name)]

    def pays(self, component: Any, name: str) -> bool:
        """Returns True if calls of a method take long enough to run ahead."""
        return self._eager or not quick(component, name)

    def matching(self, component: Any, name: str, wanted: Any) -> FoundCall | None:
        """Returns the call of a component that stock is about to make, if a walk has found it.

        wanted: its arguments, wrapped.
        """
        made = self._fresh.shared()
        for call in self.calls:
            own = call.component is component or self._components.same(call.component, component, made)
            if own and call.name == name and not call.taken and equal(call.key, wanted):
                call.taken = True
                return call
        return None

    def first(self, component: Any, name: str, args: Sequence[Any]) -> FoundCall | None:
        """Returns the call by which stock shows a component that the function has made; the next walk uses it."""
        fresh = [c for c in self.calls if isinstance(c.component, Fresh) and c.component.kind is type(component)]
        if not fresh:
            return None
        wanted = self._arguments(self._components.key(component, name, args[:2], {}))
        found = next((c for c in fresh if c.name == name and not c.taken and equal(c.key, wanted)), None)
        if found is None:
            return None
        found.component.made.bound = component
        for call in self.calls:
            call.component = next(self._flat([call.component]))
            claims_of(type(call.component), call.name)
        found.taken = True
        return found

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
        if not name and self._components.fresh(kind):
            plain = all(map(self._walk.plain, (*args, *named.values())))
            return self._fresh.next(kind, args, named, plain=plain)
        if not all(map(self._walk.plain, (*args, *named.values()))):
            raise Stop(f"makes a {getattr(kind, '__name__', 'component')} of something that is not plain data")
        return self._components.made(kind, name, args, named)

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        """See ``lookahead.Host``."""
        obj = self._resolved(obj)
        if self._components.derives(obj, name):
            return self._derived(obj, name, args, named)
        key = self._components.key(obj, name, args, named)
        if type(key) is tuple:
            self._walk.own(key)
        steps = self._components.steps(obj)
        if steps is None:
            value = self._met(obj, name, key, args, named, sure)
        else:
            value = key
            for number, step in enumerate(self._flat(steps)):
                given = [value, *args[1:]] if number else args
                value = self._met(step, name, value, given, named, sure)
        return Awaited(value) if name.startswith("a") else value

    def _derived(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not all(map(self._walk.known, (*args, *named.values()))):
            if self._components.knows(obj) and self._components.computes(obj):
                return UNKNOWN
            raise Stop(f"calls .{name}() with something that is not known yet")
        given = [*map(self._walk.copied, args)], {key: self._walk.copied(value) for key, value in named.items()}
        return self._derivation(obj, name, *given)

    def _derivation(self, obj: Any, name: str, args: Any, named: Any) -> Any:
        for done, value in self._derivations:
            if done[0] is obj and done[1:] == (name, args, named):
                return value
        fresh = isinstance(obj, Fresh)
        value = (
            Fresh(obj.kind, args, named, parent=obj, name=name)
            if fresh
            else self._components.derived(obj, name, args, named)
        )
        if self._components.knows(value):  # each walk meets the same object, and thus its calls
            self._derivations.append(((obj, name, args, named), value))
        return self._walk.own(value) if type(value) is list else value

    def _resolved(self, obj: Any) -> Any:
        """Returns the component behind a fresh one if stock has called it; any other as it is."""
        if not isinstance(obj, Fresh) or (bound := self._fresh.bound(obj.made)) is None:
            return obj
        if obj.parent is None:
            return bound
        return self._derivation(self._resolved(obj.parent), obj.name, obj.args, obj.named)

    def _flat(self, steps: Sequence[Any]) -> Iterator[Any]:
        for step in map(self._resolved, steps):
            inner = self._components.steps(step)
            yield from (step,) if inner is None else inner

    def _met(self, obj: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any], sure: bool) -> Any:
        part = None if isinstance(obj, Fresh) else self._part(obj)
        known = self._walk.known(key)
        if part is not None and self._components.computes(obj):
            if known and (value := self._computed(part, key)) is not UNKNOWN:
                return value
        else:
            self.worth = self.worth or self.pays(obj, name)
        reads_only = part is None or self._components.reads_only(part, key if known else UNKNOWN)
        if not (sure and known and self._walk.real(key)):
            self.blocked = True
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

    def _matching(self, obj: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> FoundCall:
        wanted = self._arguments(key)
        for call in self.calls:
            own = call.component is obj or self._components.same(call.component, obj, ())
            if own and not call.met and call.name == name and equal(call.key, wanted):
                call.met = True
                return call
        claims_of(obj.kind if isinstance(obj, Fresh) else type(obj), name)
        made = FoundCall(obj, name, wanted, list(map(self._given, args)), {n: self._given(v) for n, v in named.items()})
        self.calls.append(made)
        return made

    def _given(self, arg: Any) -> Any:
        # Only what the key leaves out, such as a config with callbacks of stock, can be unknown.
        return self._walk.copied(arg) if self._walk.known(arg) else None
