"""Components that a user function makes itself: known as soon as stock calls one for the first time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Fresh:
    """A component that a walk has met as ``kind(...)``, or that is derived from one by a method.

    A walk makes no component, as that may open connections; stock does. args, named: what it is made of, or derived
    with. plain: they are plain data. bound: stock's own, once it has called it.
    """

    __slots__ = ("args", "bound", "kind", "name", "named", "parent", "plain")

    def __init__(
        self,
        kind: type,
        args: Sequence[Any],
        named: Mapping[str, Any],
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


class FreshComponents:
    """The components that one run of a function makes, in the order in which walks meet them."""

    def __init__(self) -> None:
        self._known: list[Fresh] = []
        self._met = 0

    def restart(self) -> None:
        """Begins another walk, which meets the same components in the same order."""
        self._met = 0

    def next(self, kind: type, args: Sequence[Any], named: Mapping[str, Any], *, plain: bool) -> Fresh:
        """Returns the component that a walk meets now. plain: its arguments are plain data."""
        if self._met < len(self._known) and self._known[self._met].kind is not kind:
            del self._known[self._met :]  # results have led this walk elsewhere
        if self._met == len(self._known):
            self._known.append(Fresh(kind, args, named, plain=plain))
        self._met += 1
        return self._known[self._met - 1]

    def bound(self, made: Fresh) -> Any:
        """Returns stock's component, or one that it has made of the same arguments before; None if it has made none."""
        if made.bound is not None or not made.plain:
            return made.bound
        for each in self._known:
            same = each.bound is not None and each.plain and each.kind is made.kind
            if same and (each.args, each.named) == (made.args, made.named):
                return each.bound
        return None

    def shared(self) -> list[Any]:
        """Returns stock's components that may stand for others made of the same arguments."""
        return [each.bound for each in self._known if each.bound is not None and each.plain]
