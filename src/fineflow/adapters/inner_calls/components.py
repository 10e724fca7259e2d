"""What the walks through user functions ask a framework about its components."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.calls_ahead import CallAhead

QUEUED = "on_engine"
"""Class attribute of components whose calls go through the queue of an engine: True."""


Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class Components(Protocol):
    """A framework's side: its components, and their methods that may run ahead."""

    def knows(self, obj: Any) -> bool:
        """Returns True for a component, or for something that ``joined`` or ``made`` has returned."""

    def judges(self, obj: Any, name: str) -> bool:
        """Returns True if calls of this method of a component are calls of the component, not of the user's code."""

    def steps(self, obj: Any) -> Sequence[Any] | None:
        """Returns the steps of a sequence that the function makes itself; None for anything else."""

    def parts(self, obj: Any) -> Sequence[Any]:
        """Returns the components in a composition of them; anything else as it is."""

    def alike(self, made: Any, obj: Any) -> bool:
        """Returns True if stock's component may be what ``composed`` or ``joined`` has returned: of the same parts."""

    def key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns what two calls must have in common to be the same: a tuple of arguments, or the only one that counts.

        Raises Stop for a method that is not known to change nothing.
        """

    def told_apart(self, obj: Any, one: Arguments, other: Arguments) -> bool:
        """Returns True if calls of a component with equal keys are different ones, by what chooses what it does."""

    def reads_only(self, part: Planned, name: str, key: Any) -> bool:
        """Returns True if a call changes nothing that anything else depends on. key: UNKNOWN for any arguments."""

    def computes(self, obj: Any, name: str) -> bool:
        """Returns True for calls of a component that only computes: a prompt, a parser."""

    def computed(self, part: Planned, key: Any) -> Any:
        """Returns the value of such a component; UNKNOWN if it may do more. Raises what it raises."""

    def invocation(
        self, part: Planned, name: str, args: Any, named: Any, limit: asyncio.Semaphore | None
    ) -> Invocation:
        """Returns the call of a component, as its ``CallAhead`` needs it."""

    def ahead(self, part: Planned, name: str, invocation: Any) -> CallAhead | None:
        """Returns how a call of a component runs ahead; None if nothing of it can."""

    def method(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], limit: asyncio.Semaphore | None
    ) -> CallAhead | None:
        """Returns the call of a method of a component that has no graph; None if stock has to make it."""

    def streams(self, name: str) -> bool:
        """Returns True for methods whose results arrive piece by piece; stock alone calls these."""

    def awaits(self, name: str) -> bool:
        """Returns True for async methods."""

    def result(self, obj: Any, name: str) -> Any:
        """Returns what is known of a result that is not there: UNKNOWN, FOUND or HELD of ``lookahead.values``."""

    def seen(self, name: str, value: Any) -> Any:
        """Returns what walks get for the value that stock's call of a method has returned."""

    def limit(self) -> int | None:
        """Returns the ``max_concurrency`` in force."""

    def inner(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Any, Sequence[Any], Mapping[str, Any]] | None:
        """Returns the user's function that a call of a component runs, and its arguments; None if there is none."""

    def makes(self, obj: Any, name: str) -> bool:
        """Returns True for methods that only compute, or make a new component (``made``), such as ``bind``."""

    def same(self, left: Any, right: Any, made: Sequence[Any]) -> bool:
        """Returns True if two components are made of the same parts, so that their calls are the same.

        made: components that stand for others made of the same arguments, as long as these are configured alike.
        """

    def fresh(self, kind: Any) -> bool:
        """Returns True for classes of components that only stock makes, as that may open connections."""

    def composite(self, obj: Any) -> bool:
        """Returns True for a component that consists of several, so that one call of it may gain by itself."""

    def joined(self, left: Any, right: Any) -> Any:
        """Returns ``left | right``. Raises Stop."""

    def composed(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns what ``kind(...)`` or ``kind.name(...)`` composes of components; None for others. Raises Stop."""

    def handed_on(self, obj: Any, given: Any, value_of: Callable[[Any, Any], Any]) -> Any:
        """Returns what something that ``composed`` has returned makes of its input; ``NotImplemented`` for others.

        value_of: returns that of a component in it.
        """

    def embedded(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Any, Sequence[str]] | None:
        """Returns the embeddings that a call uses, on an engine, and the texts known by now; None if it has none."""

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns ``kind(...)``, ``kind.name(...)`` or, if it ``makes`` it, ``component.name(...)``.

        Raises Stop if that may do more.
        """
