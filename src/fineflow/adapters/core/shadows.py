"""Shadows: the copy of the user's object that stock runs, whose components claim results of the graph.

Only the parts that the plan touches are copied, shallowly. A shadow serves any number of calls, also concurrent ones:
its parts look up their current call (``claiming.under_way``). Attributes that the user changes between calls are read
when a call starts: ``Shadows.hold`` compares what was copied, and if it changed the call makes a new shadow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fineflow.adapters.core.claiming import Claiming, Usable, always, nobodys, under_way
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.recognition import Row, find
from fineflow.adapters.core.snapshot import Met, Snapshot
from fineflow.ir import Graph, Ref
from fineflow.options import Options
from fineflow.runtime.call.entry import Entry

T = TypeVar("T")


class Stale(Exception):
    """The user's object is no longer the one that was planned."""


class Shadows:
    """The shadow of one object, for sync or for async calls.

    rows: recognised constructs. nested: returns a part of the object as one that runs ahead by itself. component: the
    same for a component that a user function calls, None for anything else. options: the user's. arguments: wraps
    the arguments of a component call so that two calls can be compared. tap: makes the shadow of an opaque step.
    finish: completes the shadow of the whole. ahead: True if the graph runs in calls of this shadow; if not, it only
    moves work off the event loop, or enforces limits.
    """

    guests: Sequence[Callable[[], Any]] | None = None  # for ``inner_calls.guests``, once a function was walked through

    def __init__(
        self,
        plan: Plan,
        rows: Sequence[Row],
        *,
        sync: bool,
        ahead: bool = True,
        nested: Callable[[Any], Any] = lambda part: part,
        component: Callable[[Any], Any] = lambda obj: None,
        options: Options | None = None,
        arguments: Callable[[Any], Any] = lambda key: key,
        tap: Callable[[Any, Site, bool], Any] | None = None,
        finish: Callable[[Any, Site], None] = lambda shadow, site: None,
    ) -> None:
        self.plan = plan
        self.rows = rows
        self.sync = sync
        self.nested = nested
        self.component = component
        self.options = options or Options()
        self.inside: dict[int, Callable[..., Any]] = {}  # by id of an object whose method is looked through
        self._kept: Any = None
        self.arguments = arguments
        self.leaves = plan.leaves if ahead else frozenset[str]()
        self.shadow: Any = None
        self.opens: frozenset[str] = frozenset()  # methods in which stock reports that its outermost run is open
        self._tap = tap
        self._finish = finish
        self._shared = list(plan.shared)
        self._built = False  # objects copied during calls are not part of the shadow
        self._read: list[Any] = []
        self._met = Met()
        self._methods: list[tuple[type, str]] = []
        self._promises: list[Callable[[], bool]] = []

    def build(self, obj: Any) -> Shadows:
        """Makes ``shadow``, the copy of ``obj``. Raises Stale, and whatever the objects raise when copied."""
        site = Site(self, "")
        self.shadow = site.of(obj)
        self._finish(self.shadow, site)
        self._same = Snapshot([(each, None) for each in self._read], self._methods, parts=False, apart=True)
        if not self._met.hold():  # changed meanwhile: serves this call, and no other
            self._same.never()
        self._met = Met()
        self._built = True
        return self

    def hold(self, obj: Any) -> bool:
        """Returns True if a new shadow would be the same."""
        return self.plan.objects.get("") is obj and self._same.holds() and all(promise() for promise in self._promises)

    def kept_for_walks(self, made: Callable[[], T]) -> T:
        """Returns what walks through user functions keep for those of later calls. made: makes it."""
        if self._kept is None:
            self._kept = made()
        found: T = self._kept
        return found

    @property
    def here(self) -> Claiming | None:
        """The current call of this shadow, or None."""
        found = under_way.get()
        while found is not None and found.shadows is not self:
            found = found.outer
        return found

    def _of(self, obj: Any, site: Site) -> Any:
        leaf, plan = site.leaf, self.plan
        if plan.touched is not None:
            if leaf not in plan.touched:
                return obj
            if plan.objects.get(leaf) is not obj:
                raise Stale(leaf)
        row = find(self.rows, obj)
        if plan.touched is None and row is None:  # not recognised, so nothing is planned there
            return obj
        site.reads(obj)
        if self._tap is not None and leaf in plan.tapped and not self._has_parts(leaf):
            tapped = self._tap(obj, site, True)
            if tapped is not None:
                return tapped
        if row is None:  # a method was set on it after planning
            raise Stale(leaf)
        if self._built:
            pass
        elif type(row) is not Row:
            self._promises.append(partial(row.matches, obj))
        elif type(obj) is not row.base:
            self._methods += [(type(obj), name) for name in row.methods]
        shadow = row.shadow(obj, site)
        if self._tap is not None and leaf in plan.tapped:
            return self._tap(shadow, site, False)
        return shadow

    def _has_parts(self, leaf: str) -> bool:
        prefix = f"{leaf}/" if leaf else ""
        return any(other != leaf and other.startswith(prefix) for other in self.plan.touched or ())


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the object whose shadow is being made; used by shadows of constructs to claim and to feed."""

    shadows: Shadows
    leaf: str

    # Building.

    def part(self, name: str) -> Site:
        """Returns the site of a part."""
        return Site(self.shadows, f"{self.leaf}/{name}" if self.leaf else name)

    def at(self, leaf: str) -> Site:
        """Returns the site at another path."""
        return Site(self.shadows, leaf)

    def of(self, obj: Any, *steps: str) -> Any:
        """Returns the shadow of a part, or the part itself if the plan changes nothing there. Raises Stale."""
        site = self
        for step in steps:
            site = site.part(step)
        return self.shadows._of(obj, site)

    def shared(self, component: Any) -> Site:
        """Returns the site of a component that several parts may share."""
        return self.at(shared_leaf(component, self.shadows._shared))

    def reads(self, obj: Any) -> None:
        """Makes the shadow depend on the attributes of ``obj``, which it has copied."""
        if not self.shadows._built:
            self.shadows._read.append(obj)
            self.shadows._met.add(obj, None)

    def calls(self, kind: type, *methods: str) -> None:
        """Makes the shadow depend on methods of a class, whose functions it calls."""
        if not self.shadows._built:
            self.shadows._methods += [(kind, name) for name in methods]

    def holds_while(self, promise: Callable[[], bool]) -> None:
        """Makes the shadow depend on ``promise()``, which is checked before every call."""
        self.shadows._promises.append(promise)

    def opens(self, *methods: str) -> None:
        """Declares that the shadow calls ``opened`` in these methods when stock has opened its outermost run."""
        self.shadows.opens |= frozenset(methods)

    @property
    def planned(self) -> Any:
        """The object planned here, if the plan changes anything here; else None."""
        plan = self.shadows.plan
        return plan.objects.get(self.leaf) if plan.touched is None or self.leaf in plan.touched else None

    @property
    def tapped(self) -> bool:
        """True if stock alone runs the current object, and feeds its value."""
        return self.leaf in self.shadows.plan.tapped

    @property
    def looked_through(self) -> bool:
        """True if component calls inside the user function here run ahead."""
        return self.leaf in self.shadows.plan.looked_through

    @property
    def sync(self) -> bool:
        """True if the shadow serves sync calls."""
        return self.shadows.sync

    @property
    def options(self) -> Options:
        """The user's options."""
        return self.shadows.options

    @property
    def graph(self) -> Graph:
        """The p-graph of the plan."""
        return self.shadows.plan.p_graph

    def nested(self, part: Any) -> Any:
        """Returns a part as one that runs ahead by itself, in its own calls."""
        return self.shadows.nested(part)

    def any_ahead(self) -> bool:
        """Returns True if the graph may have a result at this path or below it."""
        return any(each == self.leaf or each.startswith(f"{self.leaf}/") for each in self.shadows.leaves)

    # In calls.

    @property
    def here(self) -> Claiming | None:
        """The current call; None outside of calls, where the shadow behaves like the user's object."""
        return self.shadows.here

    def opened(self) -> None:
        """Reports to the call that stock has opened the outermost run."""
        if (here := self.here) is not None:
            here.opened()

    def claim(self, key: Any, own: Callable[[], T], usable: Usable = always) -> tuple[Entry, T]:
        """Returns the graph's result for these arguments, or that of ``own()``, from a thread."""
        here = self.here
        return (nobodys(), own()) if here is None else here.claim(self.leaf, key, own, usable)

    async def aclaim(self, key: Any, own: Callable[[], Awaitable[Any]], usable: Usable = always) -> tuple[Entry, Any]:
        """``claim`` for coroutines, on any event loop."""
        here = self.here
        return (nobodys(), await own()) if here is None else await here.aclaim(self.leaf, key, own, usable)

    def claims(self, own: Callable[..., Any], key: Callable[..., Any], *, awaits: bool) -> Callable[..., Any]:
        """Returns a function that claims by its arguments, of which ``key`` makes what is compared; else it is ``own``.

        awaits: both are coroutine functions.
        """
        if awaits:

            async def acall(*args: Any, **named: Any) -> Any:
                return (await self.aclaim(key(*args, **named), partial(own, *args, **named)))[1]

            return acall

        def call(*args: Any, **named: Any) -> Any:
            return self.claim(key(*args, **named), partial(own, *args, **named))[1]

        return call

    def feed(self, value: Any, *, once: bool = False) -> None:
        """Feeds the graph the value of the step that stock ran here. From any thread."""
        if (here := self.here) is not None:
            here.feed(self.leaf, value, once=once)


def shared_leaf(component: Any, known: list[Any]) -> str:
    """Returns the path of a shared component; plan and shadow agree because they meet components in the same order."""
    for i, other in enumerate(known):
        if other is component:
            return f"shared {i}"
    known.append(component)
    return f"shared {len(known) - 1}"


def unclaimed(*, sync: bool) -> Site:
    """Returns a site outside of every call: copies made there claim nothing."""
    empty = Graph((), Ref("input"))
    plan = Plan(None, empty, empty, (), frozenset(), {}, Snapshot(()))
    return Site(Shadows(plan, (), sync=sync), "")
