"""Components that a user function makes itself: known as soon as stock calls one for the first time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Fresh:
    """A component that a walk has met as ``kind(...)``, or that is derived from one by a method.

    A walk makes no component, as that may open connections; stock does. bound: stock's own, once it has called it.
    """

    __slots__ = ("args", "bound", "kind", "name", "named", "parent")

    def __init__(
        self,
        kind: type,
        parent: Fresh | None = None,
        name: str = "",
        args: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind, self.parent = kind, parent
        self.name, self.args, self.named = name, list(args), dict(named or {})
        self.bound: Any = None

    @property
    def made(self) -> Fresh:
        """The component that the function makes, of which this is one or is derived."""
        return self if self.parent is None else self.parent.made


class FreshComponents:
    """The components that one run of a function makes, in the order in which walks meet them."""

    def __init__(self) -> None:
        self._known: list[Fresh] = []
        self._met = 0

    def restart(self) -> None:
        """Begins another walk, which meets the same components in the same order."""
        self._met = 0

    def next(self, kind: type) -> Fresh:
        """Returns the component that a walk meets now."""
        if self._met < len(self._known) and self._known[self._met].kind is not kind:
            del self._known[self._met :]  # results have led this walk elsewhere
        if self._met == len(self._known):
            self._known.append(Fresh(kind))
        self._met += 1
        return self._known[self._met - 1]
