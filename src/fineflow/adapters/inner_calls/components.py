"""What the walks through user functions ask a framework about its components."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.calls_ahead import CallAhead
from fineflow.adapters.lookahead import Stop
from fineflow.adapters.lookahead.values import Args, Named

QUEUED = "on_engine"
"""Class attribute of components whose calls go through the queue of an engine: True."""


Given = tuple[Args, Named]


class Components(ABC):
    """A framework's side: its components, and their methods that may run ahead.

    What is not abstract is what holds where each component runs ahead as a whole, by a method of its own.
    """

    # --- what is a component ----------------------------------------------------------------------------------------

    @abstractmethod
    def knows(self, obj: Any) -> bool:
        """Returns True for a component, or for something that ``joined`` or ``made`` has returned."""

    @abstractmethod
    def judges(self, obj: Any, name: str) -> bool:
        """Returns True if calls of this method of a component are calls of the component, not of the user's code."""

    @abstractmethod
    def part(self, obj: Any) -> Planned | None:
        """Returns the proxy of a component that has a plan, or that ``computes``; None for others."""

    def composite(self, obj: Any) -> bool:
        """Returns True for a component that consists of several, so that one call of it may gain by itself."""
        return False

    def parts(self, obj: Any) -> Sequence[Any]:
        """Returns the components in a composition of them; anything else as it is."""
        return (obj,)

    def inner(self, obj: Any, name: str, args: Args, named: Named) -> tuple[Any, Args, Named] | None:
        """Returns the user's function that a call of a component runs, and its arguments; None if there is none."""
        return None

    # --- which calls are the same -----------------------------------------------------------------------------------

    @abstractmethod
    def key(self, obj: Any, name: str, args: Args, named: Named) -> Any:
        """Returns what two calls must have in common to be the same: a tuple of arguments, or the only one that counts.

        Raises Stop for a method that is not known to change nothing.
        """

    @abstractmethod
    def compared(self, obj: Any, key: Any) -> Any:
        """Returns a key of a call of a component as it is now, in the form in which keys are compared."""

    def told_apart(self, obj: Any, one: Given, other: Given) -> bool:
        """Returns True if calls of a component with equal keys are different ones, by what chooses what it does."""
        return False

    @abstractmethod
    def same(self, left: Any, right: Any, made: Sequence[Any]) -> bool:
        """Returns True if two components are made of the same parts, so that their calls are the same.

        made: components that stand for others made of the same arguments, as long as these are configured alike.
        """

    # --- what a call does -------------------------------------------------------------------------------------------

    def awaits(self, name: str) -> bool:
        """Returns True for async methods."""
        return name.startswith("a")

    def streams(self, name: str) -> bool:
        """Returns True for methods whose results arrive piece by piece; stock alone calls these."""
        return False

    def reads_only(self, part: Planned, name: str, key: Any) -> bool:
        """Returns True if a call changes nothing that anything else depends on. key: UNKNOWN for any arguments."""
        return True

    @abstractmethod
    def computes(self, obj: Any, name: str) -> bool:
        """Returns True for calls of a component that only computes: a prompt, a parser."""

    @abstractmethod
    def computed(self, part: Planned, key: Any) -> Any:
        """Returns the value of such a component; UNKNOWN if it may do more. Raises what it raises."""

    @abstractmethod
    def result(self, obj: Any, name: str) -> Any:
        """Returns what is known of a result that is not there: UNKNOWN, FOUND or HELD of ``lookahead.values``."""

    def seen(self, name: str, value: Any) -> Any:
        """Returns what walks get for the value that stock's call of a method has returned."""
        return value

    def embedded(self, obj: Any, name: str, args: Args, named: Named) -> tuple[Any, Sequence[str]] | None:
        """Returns the embeddings that a call uses, on an engine, and the texts known by now; None if it has none."""
        return None

    # --- how it runs ahead ------------------------------------------------------------------------------------------

    def limit(self) -> int | None:
        """Returns the ``max_concurrency`` in force."""
        return None

    @abstractmethod
    def method(
        self, obj: Any, name: str, args: Args, named: Named, limit: asyncio.Semaphore | None
    ) -> CallAhead | None:
        """Returns the call of a method of a component that has no plan; None if stock has to make it."""

    def invocation(
        self, part: Planned, name: str, args: Any, named: Any, limit: asyncio.Semaphore | None
    ) -> Invocation:
        """Returns the call of a component that has a plan, as its ``CallAhead`` needs it."""
        raise NotImplementedError

    def ahead(self, part: Planned, name: str, invocation: Any) -> CallAhead | None:
        """Returns how a call of a component that has a plan runs ahead; None if nothing of it can."""
        raise NotImplementedError

    # --- what a function makes itself -------------------------------------------------------------------------------

    def fresh(self, kind: Any) -> bool:
        """Returns True for classes of components that only stock makes, as that may open connections."""
        return False

    def makes(self, obj: Any, name: str) -> bool:
        """Returns True for methods that only compute, or make a new component (``made``), such as ``bind``."""
        return False

    @abstractmethod
    def made(self, kind: Any, name: str, args: Args, named: Named) -> Any:
        """Returns ``kind(...)``, ``kind.name(...)`` or, if it ``makes`` it, ``component.name(...)``.

        Raises Stop if that may do more.
        """

    def joined(self, left: Any, right: Any) -> Any:
        """Returns ``left | right``. Raises Stop."""
        raise Stop("joins components")

    def composed(self, kind: Any, name: str, args: Args, named: Named) -> Any:
        """Returns what ``kind(...)`` or ``kind.name(...)`` composes of components; None for others. Raises Stop."""
        return None

    def steps(self, obj: Any) -> Sequence[Any] | None:
        """Returns the steps of a sequence that the function makes itself; None for anything else."""
        return None

    def alike(self, made: Any, obj: Any) -> bool:
        """Returns True if stock's component may be what ``composed`` or ``joined`` has returned: of the same parts."""
        return False

    def handed_on(self, obj: Any, given: Any, value_of: Callable[[Any, Any], Any]) -> Any:
        """Returns what something that ``composed`` has returned makes of its input; ``NotImplemented`` for others.

        value_of: returns that of a component in it.
        """
        return NotImplemented
