"""A call of a component, or of a declared function, that a user function is going to make, or has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.adapters.inner_calls.arguments import LOST, comparable, is_declared, shares, stocks_own
from fineflow.adapters.inner_calls.calls_ahead import CallAhead, MethodAhead
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.adapters.lookahead.tasks import Task
from fineflow.runtime.call import written
from fineflow.runtime.call.claims import equal
from fineflow.runtime.events import now, processor_time


class FoundCall:
    """One call that the function is going to make. A declared function is its own component.

    met: in the current walk. begun: it was started ahead. taken: stock is making it. since, ended: when it began, and
    when it had its result (0: not yet), in seconds. processor: processor time of the process when it began.
    whole: walks do not meet the calls that it makes of other components. walked: a walk has met it. shared: its result
    may have parts of its arguments; None if nobody has asked. task: that makes it. beside: tasks that may be going on
    when it is made. place: how many component calls the last walk had met then. version: of what it searches, as of
    when it began ahead (``written``).
    """

    __slots__ = (
        *("ahead", "args", "begun", "beside", "component", "ended", "failed", "key", "met", "name", "named"),
        *("place", "processor", "shared", "version", "since", "taken", "task", "value", "walked", "whole"),
    )

    def __init__(self, component: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.component, self.name, self.key, self.args, self.named = component, name, key, args, named
        self.value: Any = UNKNOWN
        self.shared: bool | None = None
        self.task: Task | None = None
        self.beside: Sequence[Task] = ()
        self.ahead: CallAhead | None = None
        self.met = self.walked = True
        self.begun = self.taken = self.failed = False
        self.whole = not is_declared(component)
        self.since = self.ended = self.processor = 0.0
        self.place = 0
        self.version: written.Version = written.NOTHING

    def given_up(self) -> None:
        """Leaves to stock what began ahead. Its result, if it is there, is not what stock is going to get."""
        if self.ahead is not None:
            self.ahead.stop()
        self.ahead, self.value, self.shared, self.failed, self.ended = None, UNKNOWN, None, False, 0.0

    def begins(self) -> None:
        """Notes when it begins."""
        self.since, self.processor = now(), processor_time()

    @property
    def known(self) -> bool:
        """True if walks may go on with its result: it is there, and has no parts of the walk's own arguments."""
        if self.value is UNKNOWN:
            return False
        if self.shared is None:
            given = () if self.ahead is None else filter(comparable, (*self.args, *self.named.values()))
            self.shared = shares(self.value, list(given))
        return not self.shared

    def of_stock(self, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns a result that began ahead as stock has it, with its own arguments. LOST: stock has to make the call.

        args, named: those of stock.
        """
        if not isinstance(self.ahead, MethodAhead):  # the steps of a graph run on stock's input
            return value
        given = [*self.args, *self.named.values()]
        try:
            return stocks_own(value, given, [*args, *(named.get(name) for name in self.named)])
        except Exception:  # of an object that does not let itself be looked at
            return LOST

    def again(self, other: FoundCall) -> bool:
        """Returns True if this is an equal call to one that is under way."""
        same = other is not self and other.component is self.component and other.under_way
        return same and (other.begun or other.taken) and equal(other.key, self.key)

    @property
    def opened(self) -> bool:
        """True if stock runs it by the calls that it makes."""
        return self.ahead is None and not self.whole

    @property
    def under_way(self) -> bool:
        return self.value is UNKNOWN and not self.failed
