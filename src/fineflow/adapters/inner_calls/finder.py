"""Finds the component calls that a user function is going to make, by walks (``adapters.lookahead``)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

from fineflow.adapters.core.durations import quick
from fineflow.adapters.core.proxy import Planned, merged
from fineflow.adapters.inner_calls.arguments import FunctionArguments, comparable, is_declared, lasting
from fineflow.adapters.inner_calls.components import Components, Given
from fineflow.adapters.inner_calls.entry_wrappers import claims_of
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.fresh_components import Fresh, FreshComponents
from fineflow.adapters.inner_calls.made_components import MadeComponents
from fineflow.adapters.inner_calls.own_runs import Places
from fineflow.adapters.lookahead import UNKNOWN, Stop, Walk
from fineflow.adapters.lookahead.calls import call
from fineflow.adapters.lookahead.objects import as_text
from fineflow.adapters.lookahead.past import Past
from fineflow.adapters.lookahead.reachable import held_by, holds
from fineflow.adapters.lookahead.surroundings import Injected
from fineflow.adapters.lookahead.values import FOUND, HELD, Awaited, Coroutine, Lazy
from fineflow.declare import Declaration, name_of_call
from fineflow.runtime.call.claims import equal
from fineflow.runtime.call.visits import InTheWay


def awaited(obj: Any, name: str, *, otherwise: bool) -> bool:
    """Returns True for methods that are coroutine functions. otherwise: of stand-ins, which have no methods."""
    method = inspect.getattr_static(type(obj), name, None)
    return inspect.iscoroutinefunction(inspect.unwrap(method)) if isinstance(method, FunctionType) else otherwise


_DATA = frozenset({dict, list, tuple, set, str, int, float, bool, type(None), FunctionType})  # no components


def shown(walk: Walk, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns arguments with what the walk gets in place of those that stock fills in."""
    return {name: value.shown(walk, value.value) if type(value) is Injected else value for name, value in named.items()}


class CallFinder:
    """Walks through one run of a user function, and keeps the component calls that the walks have found.

    The ``Host`` of its walks. blocked: a result that is missing would let the walk get further. worth: the last walk
    has met a call that may be worth running ahead. beside: it has met calls that only stock can start. writes: the
    function changes something that the walk did not create. texts: what is going to be embedded, with the embeddings.
    latest: the call whose result stock is about to get. asked: see ``Walk``. met: number of component calls that walks
    have met.
    """

    asked = -1
    met = 0
    in_context: ClassVar[bool] = True  # walks are made in the context of the function

    _walk: Walk  # the last one

    def __init__(
        self,
        components: Components,
        function: tuple[Any, Sequence[Any], Mapping[str, Any]],
        *,
        eager: bool,
        kept: MadeComponents | None = None,
    ) -> None:
        self._kept = kept or MadeComponents()
        self.calls: list[FoundCall] = []
        self.blocked = self.worth = self.writes = False
        self._components = components
        self.judges, self.joined, self.inner = components.judges, components.joined, components.inner
        self._function, self._eager = function, eager
        self.beside = False
        self.texts: list[tuple[Any, Sequence[str]]] = []
        self.latest: FoundCall | None = None
        self._past = Past()
        self._fresh = FreshComponents()
        self._made: list[Any] = []  # components that the walks made, as the function does
        self._held: dict[int, tuple[Any, frozenset[int] | None]] = {}  # what components hold, by their id
        self.changed: dict[int, Any] = {}  # what the function has changed so far, by id
        self._places = Places(components)

    def follow(self) -> None:
        """Has the first walk begin when the function runs already: it trusts nothing if it meets a change."""
        self._past.first = False

    @property
    def quiet(self) -> bool:
        """True if the function has made no component call, and no walk has found one, or a change that it makes."""
        return not (self.calls or self.texts or self.writes)

    def look(self) -> list[FoundCall]:
        """Walks through the function with what is known by now; returns the calls under way that may gain."""
        for found in self.calls:
            found.met = False
        self.blocked = self.worth = False
        self._fresh.restart()
        walk = self._walk = Walk(self, self._past)
        self.changed = {}
        self.texts.clear()
        walk.asked, walk.in_context = self.asked, self.in_context
        self._run(walk)
        walk.leave()
        self.blocked = (self.blocked or bool(walk.reason)) and walk.left >= 0  # no walk gets through more instructions
        self.beside, self.writes = walk.beside, walk.changes_others
        if not self.calls:
            return []
        # Stock has made a call that this walk has not met: what it has read is no longer as the function found it, or
        # stock has passed what no walk understands, which may have changed anything.
        strayed = any(found.taken and not found.met and (found.walked or walk.reason) for found in self.calls)
        if walk.stale or strayed:
            self.calls = [found for found in self.calls if found.begun or found.taken]
        waiting = [found for found in self.calls if found.under_way and not isinstance(found.component, Fresh)]
        waiting = [found for found in waiting if found.begun or (found.met and self._in_time(found))]
        return [found for found in waiting if self.pays(found.component, found.name)]

    def _in_time(self, found: FoundCall) -> bool:
        """Returns False for a call that may be made after a change that is made beside it, by a task or beside one."""
        for other in found.beside:
            if not other.ended or (other.changed and self._may_hold(found.component, other.changed)):
                return False
        task = found.task
        while task is not None:
            if not task.joined or (task.overtaken and self._may_hold(found.component, task.overtaken)):
                return False
            task = task.within
        return True

    def _run(self, walk: Walk) -> None:
        func, args, named = self._function
        walk.run(func, args, shown(walk, named))

    @property
    def through(self) -> bool:
        """True if the last walk got through the function, which changes nothing that it did not create."""
        return not (self._walk.reason or self._walk.changes_others)

    @property
    def passed(self) -> bool:
        """True if stock may have passed the place where the last walk ended: it does not understand what is there."""
        return bool(self._walk.reason) and all(found.taken and found.ended for found in self.calls if found.met)

    @property
    def paused(self) -> bool:
        """True if the last walk ended at a yield, whose caller has not asked for more yet."""
        return self._walk.paused

    @property
    def value(self) -> Any:
        """What the function returns; UNKNOWN if a part of it is not known."""
        return self._settled(self._walk.value)

    @property
    def returned(self) -> Mapping[str, Any] | None:
        """The dict that the function returns, with UNKNOWN for values that are not known yet; {} for None.

        None if the function may do something else: the last walk did not get ``through``.
        """
        walk = self._walk
        value = walk.value
        if not self.through or (value is not None and type(value) is not dict):
            return None
        if value is not None and not (walk.whole(value) and all(type(key) is str for key in value)):
            return None
        return {key: self._settled(each) for key, each in (value or {}).items()}

    def _settled(self, value: Any) -> Any:
        """Returns a copy of a value without anything of the walk's own; UNKNOWN if a part of it is unknown."""
        try:
            usable = self._walk.known(value) and self._walk.real(value) and not self.knows(value)
        except Stop:  # it is too large
            return UNKNOWN
        return self._walk.copied(value) if usable else UNKNOWN

    def take(
        self, component: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]
    ) -> FoundCall | None:
        """Returns the call that stock is about to make. One that no walk has found yet is noted for the next ones."""
        for found in self.calls:
            if not found.taken and self._is_equal(found, component, name, key, (args, named)):
                found.taken = True
                return found
        if is_declared(component) and not self.pays(component, name):
            return None
        if self._components.computes(component, name):
            return None
        made = FoundCall(component, name, key, args, named)
        made.taken, made.walked = True, False
        made.whole = made.whole and self._single(component, name)
        self.calls.append(made)
        return made

    def _single(self, component: Any, name: str) -> bool:
        """Returns True for a component whose method makes no calls of others.

        A batch of a function is one call for walks, which look through its ``invoke``.
        """
        known = any(found.component is component and found.name == name and found.whole for found in self.calls)
        alone = all(part is component for part in self._components.parts(component))
        return known or (alone and not self._components.composite(component))

    def _is_call(self, call: FoundCall, component: Any, name: str) -> bool:
        """Returns True if this is a call of a component's method, or of one that is made of the same parts."""
        if call.name != name:
            return False
        if isinstance(call.component, Fresh):
            return call.component.same(component)
        return call.component is component or self._components.same(call.component, component, self._fresh.shared())

    def _is_equal(self, call: FoundCall, component: Any, name: str, key: Any, given: Given) -> bool:
        same = self._is_call(call, component, name) and equal(call.key, key)
        return same and not self._components.told_apart(component, (call.args, call.named), given)

    @property
    def held(self) -> InTheWay | None:
        """Where the last walk ended early, and why; None if it got through."""
        return InTheWay(self._walk.where, self._walk.reason) if self._walk.reason else None

    @property
    def began(self) -> float:
        """When the last walk began, in seconds of processor time of this thread."""
        return self._walk.began

    @property
    def steps(self) -> int:
        """Instructions of the last walk."""
        return self._walk.steps

    def expects(self, component: Any, name: str) -> bool:
        """Returns True if a call under way is one that the steps of a sequence are going to make."""
        steps = [part for part in self._components.parts(component) if part is not component]
        waiting = [found for found in self.calls if (found.met or found.begun) and not found.taken]
        return any(self._is_call(found, step, name) for step in steps for found in waiting)

    def first(self, component: Any, name: str, args: Sequence[Any]) -> FoundCall | None:
        """Returns the call by which stock shows a component that the function has made; the next walk uses it."""
        fresh = [c for c in self.calls if isinstance(c.component, Fresh) and c.component.kind is type(component)]
        if not fresh:
            return None
        wanted = self.wanted(component, name, args[:2], {})
        found = next((c for c in fresh if c.name == name and not c.taken and equal(c.key, wanted)), None)
        if found is None:
            return None
        found.component.made.bound = component
        for each in self.calls:
            each.component = next(self._flat([each.component]))
            claims_of(type(each.component), each.name)
        found.taken = True
        return found

    def _resolved(self, obj: Any) -> Any:
        """Returns the component behind a fresh one if stock has called it, or behind an optimized one."""
        obj = merged(obj)
        if not isinstance(obj, Fresh) or (bound := self._fresh.bound(obj.made)) is None:
            return obj
        if obj.parent is None:
            return bound
        return self._components.made(self._resolved(obj.parent), obj.name, obj.args, obj.named)

    def _flat(self, steps: Sequence[Any]) -> Iterator[Any]:
        for step in map(self._resolved, steps):
            inner = self._components.steps(step)
            yield from (step,) if inner is None else inner

    def pays(self, component: Any, name: str) -> bool:
        """Returns True if calls of a method take long enough to run ahead."""
        return self._eager or not quick(component, name)

    def knows(self, obj: Any) -> bool:
        """See ``lookahead.Host``."""
        return type(obj) not in _DATA and self._components.knows(obj)

    def awaits(self, obj: Any, name: str) -> bool:
        """See ``lookahead.Host``."""
        stands_in = self._components.awaits(name) and not self._components.makes(obj, name)
        return awaited(obj, name, otherwise=stands_in)

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """See ``lookahead.Host``."""
        self._embeds(kind, name, args, named)
        if (composed := self._components.composed(kind, name, args, named)) is not None:
            return composed
        if not name and self._components.fresh(kind):
            plain = all(map(self._walk.plain, (*args, *named.values())))
            return self._fresh.next(kind, args, named, plain=plain)
        if not all(map(self._usable, (*args, *named.values()))):
            raise Stop(f"makes a {getattr(kind, '__name__', 'component')} of something that is not plain data")
        copied = [self._walk.copied(each) for each in args]
        by_name = {each: self._walk.copied(value) for each, value in named.items()}
        if isinstance(kind, Fresh):
            return Fresh(kind.kind, copied, by_name, parent=kind, name=name)
        fresh = any(isinstance(each, Fresh) for each in (*copied, *by_name.values()))  # this call's own
        kept = None if fresh else self._kept.find(kind, name, copied, by_name, self._same)
        if kept is not None:
            return kept
        made = self._components.made(kind, name, copied, by_name)
        if not self.knows(made):
            return self._walk.own(made)
        # Another walk, or the next turn of a loop, gets the same one.
        same = next((each for each in self._made if self._same(each, made)), None)
        if same is None:
            self._made.append(made)
            if not fresh:
                self._kept.keep(kind, name, copied, by_name, made)
        return made if same is None else same

    def _same(self, left: Any, right: Any) -> bool:
        return self._components.same(left, right, ())

    def _usable(self, value: Any) -> bool:
        if type(value) in (list, tuple) and self._walk.whole(value):
            return all(map(self._usable, value))
        return isinstance(value, type) or self.knows(value) or self._walk.plain(value)

    def changes(self, value: Any) -> None:
        """See ``lookahead.Host``."""
        self.changed[id(value)] = value

    def function(
        self,
        func: FunctionType,
        promise: Declaration,
        args: Sequence[Any],
        named: Mapping[str, Any],
        *,
        of: Any,
        sure: bool,
    ) -> Any:
        """See ``lookahead.Host``."""
        name, walk = name_of_call(func), self._walk
        given = [*args, *named.values()]
        fixed = any(map(walk.is_fixed, given))  # a stand-in for the config
        if self.pays(func, name) and not fixed and not self._places.stays(func, of, given):
            # What it reads besides its arguments is what it was before the function began, or nobody knows.
            same = not walk.changes_others and all(comparable(each) or self._is_stocks(each) for each in given)
            value = self._met(func, name, walk.own(tuple(given)), args, named, sure and same)
        else:
            value = self._missing(func, name, args, named)
        if value is HELD:  # it may return a part of them
            walk.aliases.add(*promise.reads)
        return value

    def wanted(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns what two calls must have in common to be the same. Raises Stop as ``Components.key``."""
        if is_declared(obj):
            return FunctionArguments(args, named)
        return self._components.compared(self._components.key(obj, name, args, named))

    def _is_stocks(self, value: Any) -> bool:
        """Returns True for an object that the walk has not made, so that stock passes the same one."""
        return lasting(value) or (type(value) in (list, dict) and not self._walk.owns(value))

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        """See ``lookahead.Host``."""
        obj = self._resolved(obj)
        if self._components.makes(obj, name):
            return self.made(obj, name, args, named)
        value = self._value(obj, name, args, named, sure)
        return Awaited(value) if self.awaits(obj, name) else value

    def _embeds(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        found = None if self._walk.unsure else self._components.embedded(obj, name, args, named)
        if found is not None:
            self.texts.append(found)

    def _value(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], sure: bool) -> Any:
        self._embeds(obj, name, args, named)
        if args and (whole := self._as_a_whole(obj, name, args, named)) is not None:
            return self._value_of(whole)
        if args:
            value = self._components.handed_on(
                obj, args[0], lambda part, given: self._value(self._resolved(part), name, [given], {}, sure)
            )
            if value is not NotImplemented:
                return self._walk.own(value) if type(value) is dict and value is not args[0] else value
        inner = self.inner(obj, name, args, named)
        if inner is not None:
            return self._through(*inner)
        key = self._components.key(obj, name, args, named)
        if type(key) is tuple:
            self._walk.own(key)
        steps = self._components.steps(obj)
        if steps is None:
            return self._met(obj, name, key, args, named, sure)
        first, *others = self._flat(steps)
        value = self._value(first, name, args, named, sure)
        more = {each: given for each, given in named.items() if each != "input"}
        for step in others:
            value = self._value(step, name, [value, *args[1:]], more, sure)
        return value

    def _through(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Walks through the user's function in a component."""
        value = call(self._walk, func, list(args), dict(named))
        if isinstance(value, Awaited | Coroutine):
            value = self._walk.awaited(value)
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

    def _met(self, obj: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any], sure: bool) -> Any:
        self.met += 1
        declared = is_declared(obj)  # it touches what it names
        if not declared and self._holds_changed(obj):
            raise Stop(f"calls a {type(obj).__name__} that may hold something that was changed before")
        part = None if declared or isinstance(obj, Fresh) else self._components.part(obj)
        known = self._walk.known(key)
        if part is not None and self._components.computes(obj, name):
            if known and (value := self._computed(part, key)) is not UNKNOWN:
                return as_text(value)
        else:
            self.worth = self.worth or self.pays(obj, name)
        reads_only = part is None or self._components.reads_only(part, name, key if known else UNKNOWN)
        if self._components.streams(name):
            if not reads_only:
                raise Stop(f"streams a {type(obj).__name__}, which may have side effects")
            self._walk.beside = self._walk.beside or sure
            return self._missing(obj, name, args, named)
        if not declared:
            claims_of(obj.kind if isinstance(obj, Fresh) else type(obj), name)  # before stock loads the method
        if not (sure and known and self._walk.real(key) and self._configured(args, named)):
            self.blocked = True
            if not reads_only:
                raise Stop(f"waits for the arguments of a {type(obj).__name__} that may have side effects")
            return self._missing(obj, name, args, named)
        found = self._matching(obj, name, self._walk.copied(key), args, named)
        if found.failed:
            raise Stop(f"its call of a {type(obj).__name__} failed")
        if not found.known and not reads_only:
            raise Stop(f"waits for a {type(obj).__name__}, which may have side effects")
        return self._value_of(found)

    def _missing(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns an unknown result of a component."""
        value, aliases = self._components.result(obj, name), self._walk.aliases
        if value is not UNKNOWN:
            aliases.returned_by(obj)
        if value is HELD:
            aliases.add(*args, *named.values())
        return value

    def _configured(self, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Returns True if all is known of the arguments that makes a call another one, though no key has it.

        Callbacks, tags and the like, which stock fills in, may be unknown.
        """
        for each in (*args[1:], *named.values()):
            if self._walk.is_fixed(each):  # that of the run, which the call gets anyway
                continue
            if each is HELD or each is FOUND or (type(each) is dict and not self._walk.whole(each)):
                return False
            if type(each) is dict and not self._walk.known(each.get("configurable")):
                return False
        return True

    def _value_of(self, found: FoundCall) -> Any:
        if not found.known:
            return self._missing(found.component, found.name, found.args, found.named)
        value = as_text(found.value)
        return value if found.taken and found is not self.latest else self._walk.result(value)

    def _as_a_whole(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> FoundCall | None:
        """Returns the call of something that the function composes that runs ahead as one, rather than by its parts."""
        alike = [each for each in self.calls if each.ahead is not None and each.taken and each.name == name]
        alike = [each for each in alike if not each.met and self._components.alike(obj, each.component)]
        if not alike or not self._walk.known(args[0]):
            return None
        wanted = self.wanted(obj, name, args, named)
        found = next((each for each in alike if equal(each.key, wanted)), None)
        if found is not None:
            found.met = found.walked = True
        return found

    def _computed(self, part: Planned, key: Any) -> Any:
        try:
            return self._components.computed(part, self._walk.copied(key))
        except Exception as error:
            raise Stop(f"a {type(part.__wrapped__).__name__} raises {type(error).__name__}") from None

    def _matching(self, obj: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> FoundCall:
        wanted = FunctionArguments(args, named) if is_declared(obj) else self._components.compared(key)
        for found in self.calls:
            if not found.met and self._is_equal(found, obj, name, wanted, (args, named)):
                found.met = found.walked = True
                found.task, found.beside = self._walk.tasks.current, self._walk.tasks.beside()
                return found
        made = FoundCall(obj, name, wanted, list(map(self._given, args)), {n: self._given(v) for n, v in named.items()})
        if is_declared(obj):
            made.key = FunctionArguments(made.args, made.named)
        made.task, made.beside = self._walk.tasks.current, self._walk.tasks.beside()
        self.calls.append(made)
        return made

    def _given(self, arg: Any) -> Any:
        # Only what the key leaves out, such as a config with callbacks of stock, can be unknown.
        walk = self._walk
        if walk.known(arg):
            return walk.copied(arg)
        if type(arg) is not dict or not walk.whole(arg) or walk.is_fixed(arg):
            return None
        return {name: walk.copied(value) for name, value in arg.items() if walk.known(name) and walk.known(value)}
