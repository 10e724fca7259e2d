"""Finds the component calls that a user function is going to make, by walks (``adapters.lookahead``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.arguments import comparable, is_declared, lasting
from fineflow.adapters.inner_calls.call_table import CallTable
from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.inner_calls.entry_wrappers import claims_of
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.fresh_components import Fresh
from fineflow.adapters.inner_calls.own_runs import Places
from fineflow.adapters.lookahead import UNKNOWN, Stop, Walk
from fineflow.adapters.lookahead.aliases import text_of
from fineflow.adapters.lookahead.objects import as_text
from fineflow.adapters.lookahead.past import Past
from fineflow.adapters.lookahead.reachable import held_by, holds
from fineflow.adapters.lookahead.surroundings import Injected
from fineflow.adapters.lookahead.values import FOUND, HELD, MET, Args, Awaited, Coroutine, Lazy, Named
from fineflow.declare import Declaration, name_of_call
from fineflow.runtime.call.visits import InTheWay


def awaited(obj: Any, name: str, *, otherwise: bool) -> bool:
    """Returns True for methods that are coroutine functions. otherwise: of stand-ins, which have no methods."""
    method = inspect.getattr_static(type(obj), name, None)
    return inspect.iscoroutinefunction(inspect.unwrap(method)) if isinstance(method, FunctionType) else otherwise


def _is_generated(func: FunctionType) -> bool:
    """Returns True for the ``__repr__`` that dataclasses and the like write."""
    made: Any = inspect.unwrap(func)
    return bool(made.__code__.co_filename.startswith("<"))


def shown(walk: Walk, named: Named) -> Named:
    """Returns arguments with what the walk gets in place of those that stock fills in."""
    return {name: value.shown(walk, value.value) if type(value) is Injected else value for name, value in named.items()}


class CallFinder:
    """Walks through one run of a user function, and keeps the component calls that the walks have found in a table.

    The ``Host`` of its walks. walk: the last one. blocked: a result that is missing would let the walk get further.
    worth: the last walk has met a call that may be worth running ahead. beside: it has met calls that only stock can
    start. writes: the function changes something that the walk did not create. texts: what is going to be embedded,
    with the embeddings. latest: the call whose result stock is about to get. asked: see ``Walk``. met: number of
    component calls that walks have met. unsure: places of those that stock may not make, as far as the last walk knows.
    """

    asked = -1
    met = 0
    in_context: ClassVar[bool] = True  # walks are made in the context of the function
    walk: Walk

    def __init__(self, table: CallTable, components: Components, function: tuple[Any, Args, Named]) -> None:
        self.table, self._components, self._function = table, components, function
        self.knows, self._resolved = table.factory.knows, table.factory.resolved
        self.judges, self.joined, self.inner = components.judges, components.joined, components.inner
        self.blocked = self.worth = self.writes = self.beside = False
        self.texts: list[tuple[Any, Sequence[str]]] = []
        self.latest: FoundCall | None = None
        self._past = Past()
        self._held: dict[int, tuple[Any, frozenset[int] | None]] = {}  # what components hold, by their id
        self.changed: dict[int, Any] = {}  # what the function has changed so far, by id
        self._places = Places(components)
        self._first = 0  # ``met`` when the last walk began
        self.unsure: set[int] = set()

    def follow(self) -> None:
        """Has the first walk begin when the function runs already: it trusts nothing if it meets a change."""
        self._past.first = False

    @property
    def quiet(self) -> bool:
        """True if the function has made no component call, and no walk has found one, or a change that it makes."""
        return not (self.table.calls or self.texts or self.writes)

    def look(self) -> list[FoundCall]:
        """Walks through the function with what is known by now; returns the calls under way that may gain."""
        for found in self.table.calls:
            found.met = False
        self.blocked = self.worth = False
        self._first = self.met
        self.unsure.clear()
        self.table.factory.restart()
        walk = self.walk = Walk(self, self._past)
        self.changed = {}
        self.texts.clear()
        walk.asked, walk.in_context = self.asked, self.in_context
        self._run(walk)
        walk.leave()
        self.blocked = (self.blocked or bool(walk.reason)) and walk.left >= 0  # no walk gets through more instructions
        self.beside, self.writes = walk.beside, walk.changes.of_others
        # Stock has made a call that this walk has not met: what it has read is no longer as the function found it, or
        # stock has passed what no walk understands, which may have changed anything.
        strayed = any(found.taken and not found.met and (found.walked or walk.reason) for found in self.table.calls)
        if walk.stale or strayed:
            self.table.calls = [found for found in self.table.calls if found.begun or found.taken]
        waiting = [found for found in self.table.calls if found.under_way and not isinstance(found.component, Fresh)]
        waiting = [found for found in waiting if found.begun or (found.met and self._in_time(found))]
        return [found for found in waiting if self.table.pays(found.component, found.name)]

    def _in_time(self, found: FoundCall) -> bool:
        """Returns False for a call that may be made after a change that is made beside it, by a task or beside one."""
        for other in found.beside:
            if not other.ended or (other.changed and self._may_hold(found.component, other.changed)):
                return False
        task = found.task
        while task is not None:
            if not (task.joined and task.settled) or (
                task.overtaken and self._may_hold(found.component, task.overtaken)
            ):
                return False
            task = task.within
        return True

    def _run(self, walk: Walk) -> None:
        func, args, named = self._function
        walk.run(func, args, shown(walk, named))

    @property
    def through(self) -> bool:
        """True if the last walk got through the function, which changes nothing that it did not create."""
        return not (self.walk.reason or self.walk.changes.of_others)

    @property
    def passed(self) -> bool:
        """True if stock may have passed the place where the last walk ended: it does not understand what is there."""
        return bool(self.walk.reason) and all(found.taken and found.ended for found in self.table.calls if found.met)

    @property
    def value(self) -> Any:
        """What the function returns; UNKNOWN if a part of it is not known."""
        return self._settled(self.walk.value)

    @property
    def returned(self) -> Mapping[str, Any] | None:
        """The dict that the function returns, with UNKNOWN for values that are not known yet; {} for None.

        None if the function may do something else: the last walk did not get ``through``.
        """
        walk = self.walk
        value = walk.value
        if not self.through or (value is not None and type(value) is not dict):
            return None
        if value is not None and not (walk.whole(value) and all(type(key) is str for key in value)):
            return None
        return {key: self._settled(each) for key, each in (value or {}).items()}

    def _settled(self, value: Any) -> Any:
        """Returns a copy of a value without anything of the walk's own; UNKNOWN if a part of it is unknown."""
        try:
            usable = self.walk.known(value) and self.walk.real(value) and not self.knows(value)
        except Stop:  # it is too large
            return UNKNOWN
        return self.walk.copied(value) if usable else UNKNOWN

    @property
    def place(self) -> int:
        """Number of component calls that the last walk has met so far."""
        return self.met - self._first

    @property
    def held(self) -> InTheWay | None:
        """Where the last walk ended early, and why; None if it got through."""
        return InTheWay(self.walk.where, self.walk.reason) if self.walk.reason else None

    def calls_so_far(self) -> Callable[[], None]:
        """See ``lookahead.Host``."""
        before = [(found, found.met, found.walked) for found in self.table.calls]
        texts, met, fresh = len(self.texts), self.met, self.table.factory.so_far()

        def back() -> None:
            self.table.calls[:] = [found for found, _, _ in before]
            for found, found_met, walked in before:
                found.met, found.walked = found_met, walked
            del self.texts[texts:]
            self.met = met
            fresh()

        return back

    def awaits(self, obj: Any, name: str) -> bool:
        """See ``lookahead.Host``."""
        stands_in = self._components.awaits(name) and not self._components.makes(obj, name)
        return awaited(obj, name, otherwise=stands_in)

    def made(self, kind: Any, name: str, args: Args, named: Named) -> Any:
        """See ``lookahead.Host``."""
        self._embeds(kind, name, args, named)
        return self.table.factory.make(self.walk, kind, name, args, named)

    def changes(self, value: Any) -> None:
        """See ``lookahead.Host``."""
        self.changed[id(value)] = value

    def function(
        self, func: FunctionType, promise: Declaration, args: Args, named: Named, *, of: Any, sure: bool
    ) -> Any:
        """See ``lookahead.Host``."""
        name, walk = name_of_call(func), self.walk
        given = [*args, *named.values()]
        fixed = any(map(walk.is_fixed, given))  # a stand-in for the config
        if self.table.pays(func, name) and not fixed and not self._places.stays(func, of, given):
            # What it reads besides its arguments is what it was before the function began, or nobody knows.
            same = not walk.changes.of_others and all(comparable(each) or self._is_stocks(each) for each in given)
            value = self._met(func, name, walk.own(tuple(given)), args, named, sure and same)
        else:
            value = self._missing(func, name, args, named)
        if value is HELD:  # it may return a part of them
            walk.aliases.add(*promise.reads)
        return value

    def _is_stocks(self, value: Any) -> bool:
        """Returns True for an object that the walk has not made, so that stock passes the same one."""
        return lasting(value) or (type(value) in (list, dict) and not self.walk.owns(value))

    def call(self, obj: Any, name: str, args: Args, named: Named, *, sure: bool) -> Any:
        """See ``lookahead.Host``."""
        obj = self._resolved(obj)
        if self._components.makes(obj, name):
            return self.made(obj, name, args, named)
        value = self._value(obj, name, args, named, sure)
        return Awaited(value) if self.awaits(obj, name) else value

    def _embeds(self, obj: Any, name: str, args: Args, named: Named) -> None:
        found = None if self.walk.unsure else self._components.embedded(obj, name, args, named)
        if found is not None:
            self.texts.append(found)

    def _value(self, obj: Any, name: str, args: Args, named: Named, sure: bool) -> Any:
        self._embeds(obj, name, args, named)
        if args and (whole := self.table.met_as_a_whole(self.walk, obj, name, args, named)) is not None:
            return self._value_of(whole, args, named)
        if args:
            value = self._components.handed_on(
                obj, args[0], lambda part, given: self._value(self._resolved(part), name, [given], {}, sure)
            )
            if value is not NotImplemented:
                return self.walk.own(value) if type(value) is dict and value is not args[0] else value
        inner = self.inner(obj, name, args, named)
        if inner is not None:
            return self._through(*inner)
        key = self._components.key(obj, name, args, named)
        if type(key) is tuple:
            self.walk.own(key)
        steps = self._components.steps(obj)
        if steps is None:
            return self._met(obj, name, key, args, named, sure)
        first, *others = self.table.factory.flat(steps)
        value = self._value(first, name, args, named, sure)
        more = {each: given for each, given in named.items() if each != "input"}
        for step in others:
            value = self._value(step, name, [value, *args[1:]], more, sure)
        return value

    def _through(self, func: Any, args: Args, named: Named) -> Any:
        """Walks through the user's function in a component."""
        value = self.walk.awaited(self.walk.call(func, list(args), dict(named)), optional=True)
        if self.knows(value) or isinstance(value, Lazy | Coroutine):
            raise Stop("gets a function's value from what the function returned")
        return value

    def _holds_changed(self, obj: Any) -> bool:
        """Returns True if a component may hold something that the function has changed before this call."""
        return bool(self.changed) and self._may_hold(obj, self.changed)

    def _may_hold(self, obj: Any, changed: Mapping[int, Any]) -> bool:
        if is_declared(obj):  # it may read whatever has been changed
            return True
        if id(obj) not in self._held:
            self._held[id(obj)] = obj, held_by(obj)
        return holds(self._held[id(obj)][1], changed.keys())

    def _met(self, obj: Any, name: str, key: Any, args: Args, named: Named, sure: bool) -> Any:
        self.met += 1
        if not sure:
            self.unsure.add(self.place)
        for each in args:
            self._formatted(each)
        declared = is_declared(obj)  # it touches what it names
        if not declared and self._holds_changed(obj):
            raise Stop(f"calls a {type(obj).__name__} that may hold something that was changed before")
        part = None if declared or isinstance(obj, Fresh) else self._components.part(obj)
        known = self.walk.known(key)
        if part is not None and self._components.computes(obj, name):
            if known and (value := self._computed(part, key)) is not UNKNOWN:
                return as_text(value)
        else:
            self.worth = self.worth or self.table.pays(obj, name)
        reads_only = part is None or self._components.reads_only(part, name, key if known else UNKNOWN)
        if self._components.streams(name):
            if not reads_only:
                raise Stop(f"streams a {type(obj).__name__}, which may have side effects")
            self.walk.beside = self.walk.beside or sure
            return self._missing(obj, name, args, named)
        if not declared:
            claims_of(obj.kind if isinstance(obj, Fresh) else type(obj), name)  # before stock loads the method
        if not (sure and known and self.walk.real(key) and self._configured(args, named)):
            self.blocked = True
            if not reads_only:
                raise Stop(f"waits for the arguments of a {type(obj).__name__} that may have side effects")
            return self._missing(obj, name, args, named)
        found = self.table.met(self.walk, obj, name, self.walk.copied(key), args, named)
        found.place = self.place
        if found.failed:
            raise Stop(f"its call of a {type(obj).__name__} failed")
        if not found.known and not reads_only:
            raise Stop(f"waits for a {type(obj).__name__}, which may have side effects")
        return self._value_of(found, args, named)

    def _formatted(self, given: Any, depth: int = 2) -> None:
        """Walks through what makes a text of the user's objects in an argument, as a prompt may."""
        kind = type(given)
        if kind in (dict, list, tuple) and depth:
            for each in (given.values() if kind is dict else given) if self.walk.whole(given) else ():
                self._formatted(each, depth - 1)
        elif kind not in MET and not (of_package(kind.__module__) or self.knows(given)):
            for own in {text_of(kind, inside=inside) for inside in (False, True)}:
                if isinstance(own, FunctionType) and not _is_generated(own):
                    with self.walk.perhaps():
                        self.walk.call(own, [given], {})

    def _missing(self, obj: Any, name: str, args: Args, named: Named) -> Any:
        """Returns an unknown result of a component."""
        value, aliases = self._components.result(obj, name), self.walk.aliases
        if value is not UNKNOWN:
            aliases.returned_by(obj)
        if value is HELD:
            aliases.add(*args, *named.values())
        return value

    def _configured(self, args: Args, named: Named) -> bool:
        """Returns True if all is known of the arguments that makes a call another one, though no key has it.

        Callbacks, tags and the like, which stock fills in, may be unknown.
        """
        for each in (*args[1:], *named.values()):
            if self.walk.is_fixed(each):  # that of the run, which the call gets anyway
                continue
            if each is HELD or each is FOUND or (type(each) is dict and not self.walk.whole(each)):
                return False
            if type(each) is dict and not self.walk.known(each.get("configurable")):
                return False
        return True

    def _value_of(self, found: FoundCall, args: Args, named: Named) -> Any:
        if not found.known:  # it may be a part of the arguments, of which the call has copies
            return self._missing(found.component, found.name, args, named)
        value = as_text(found.value)
        return value if found.taken and found is not self.latest else self.walk.changes.result(value)

    def _computed(self, part: Planned, key: Any) -> Any:
        try:
            return self._components.computed(part, self.walk.copied(key))
        except Exception as error:
            raise Stop(f"a {type(part.__wrapped__).__name__} raises {type(error).__name__}") from None
