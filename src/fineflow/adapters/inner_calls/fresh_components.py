"""Components that a user function makes itself: by a walk, or by stock, known as soon as it calls one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from fineflow.adapters.core.proxy import merged
from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.inner_calls.made_components import MadeComponents
from fineflow.adapters.lookahead import Stop, Walk
from fineflow.adapters.lookahead.values import Args, Named

_DATA = frozenset({dict, list, tuple, set, str, int, float, bool, type(None), FunctionType})  # no components


class Fresh:
    """A component that a walk has met as ``kind(...)``, or that is derived from one by a method.

    A walk makes no component, as that may open connections; stock does. args, named: what it is made of, or derived
    with. plain: they are plain data. bound: stock's own, once it has called it.
    """

    __slots__ = ("args", "bound", "kind", "name", "named", "parent", "plain")

    def __init__(
        self,
        kind: type,
        args: Args,
        named: Named,
        *,
        plain: bool = False,
        parent: Fresh | None = None,
        name: str = "",
    ) -> None:
        self.kind, self.parent = kind, parent
        self.name, self.args, self.named, self.plain = name, list(args), dict(named), plain
        self.bound: Any = None

    @property
    def made(self) -> Fresh:
        """The component that the function makes, of which this is one or is derived."""
        return self if self.parent is None else self.parent.made

    def same(self, other: Any) -> bool:
        """Returns True if another walk has met this component, or derived one from it in the same way."""
        if self is other or not isinstance(other, Fresh):
            return self is other
        if self.parent is None or other.parent is None or not self.parent.same(other.parent):
            return False
        return (self.name, self.args, self.named) == (other.name, other.args, other.named)


class ComponentFactory:
    """The components that one run of a function makes, the same for each of its walks.

    kept: those that walks of other runs have made.
    """

    def __init__(self, components: Components, kept: MadeComponents | None) -> None:
        self._components = components
        self._kept = kept or MadeComponents()
        self._made: list[Any] = []  # components that the walks made, as the function does
        self._fresh: list[Fresh] = []  # in the order in which walks meet them
        self._met = 0  # of these, by this walk

    def restart(self) -> None:
        """Begins another walk, which meets the same components in the same order."""
        self._met = 0

    def so_far(self) -> Callable[[], None]:
        """Returns a function after which this walk meets the same components again as from now on."""
        met = self._met

        def back() -> None:
            self._met = met

        return back

    def knows(self, obj: Any) -> bool:
        """See ``lookahead.Host``."""
        return type(obj) not in _DATA and self._components.knows(obj)

    def make(self, walk: Walk, kind: Any, name: str, args: Args, named: Named) -> Any:
        """Returns ``kind(...)`` or ``kind.name(...)``. Raises Stop as ``Components.made``."""
        if (composed := self._components.composed(kind, name, args, named)) is not None:
            return composed
        if not name and self._components.fresh(kind):
            return self._next(kind, args, named, plain=all(map(walk.plain, (*args, *named.values()))))
        if not all(self._usable(walk, each) for each in (*args, *named.values())):
            raise Stop(f"makes a {getattr(kind, '__name__', 'component')} of something that is not plain data")
        copied = [walk.copied(each) for each in args]
        by_name = {each: walk.copied(value) for each, value in named.items()}
        if isinstance(kind, Fresh):
            return Fresh(kind.kind, copied, by_name, parent=kind, name=name)
        fresh = any(isinstance(each, Fresh) for each in (*copied, *by_name.values()))  # this call's own
        kept = None if fresh else self._kept.find(kind, name, copied, by_name, self._same)
        if kept is not None:
            return kept
        made = self._components.made(kind, name, copied, by_name)
        if not self.knows(made):
            return walk.own(made)
        # Another walk, or the next turn of a loop, gets the same one.
        same = next((each for each in self._made if self._same(each, made)), None)
        if same is None:
            self._made.append(made)
            if not fresh:
                self._kept.keep(kind, name, copied, by_name, made)
        return made if same is None else same

    def _same(self, left: Any, right: Any) -> bool:
        return self._components.same(left, right, ())

    def _usable(self, walk: Walk, value: Any) -> bool:
        if type(value) in (list, tuple) and walk.whole(value):
            return all(self._usable(walk, each) for each in value)
        return isinstance(value, type) or self.knows(value) or walk.plain(value)

    def _next(self, kind: type, args: Args, named: Named, *, plain: bool) -> Fresh:
        """Returns the fresh component that a walk meets now. plain: its arguments are plain data."""
        if self._met < len(self._fresh) and self._fresh[self._met].kind is not kind:
            del self._fresh[self._met :]  # results have led this walk elsewhere
        if self._met == len(self._fresh):
            self._fresh.append(Fresh(kind, args, named, plain=plain))
        self._met += 1
        return self._fresh[self._met - 1]

    def shared(self) -> list[Any]:
        """Returns stock's components that may stand for others made of the same arguments."""
        return [each.bound for each in self._fresh if each.bound is not None and each.plain]

    def resolved(self, obj: Any) -> Any:
        """Returns the component behind a fresh one if stock has called it, or behind an optimized one."""
        obj = merged(obj)
        if not isinstance(obj, Fresh) or (bound := self._bound(obj.made)) is None:
            return obj
        if obj.parent is None:
            return bound
        return self._components.made(self.resolved(obj.parent), obj.name, obj.args, obj.named)

    def _bound(self, made: Fresh) -> Any:
        """Returns stock's component, or one that it has made of the same arguments before; None if it has made none."""
        if made.bound is not None or not made.plain:
            return made.bound
        for each in self._fresh:
            same = each.bound is not None and each.plain and each.kind is made.kind
            if same and (each.args, each.named) == (made.args, made.named):
                return each.bound
        return None

    def flat(self, steps: Sequence[Any]) -> Iterator[Any]:
        """Yields steps, ``resolved``, with those of sequences in place of these."""
        for step in map(self.resolved, steps):
            inner = self._components.steps(step)
            yield from (step,) if inner is None else inner
