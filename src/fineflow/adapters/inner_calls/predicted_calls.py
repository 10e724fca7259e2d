"""Component calls of a function that stock is going to call, with arguments that are not all known yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fineflow.adapters.inner_calls.calls_ahead import CallAhead
from fineflow.adapters.inner_calls.finder import CallFinder, shown
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.lookahead import Stop
from fineflow.adapters.lookahead.past import Past
from fineflow.adapters.lookahead.walk import Walk
from fineflow.runtime.events import now


class PredictedFinder(CallFinder):
    """Walks through a function that has not begun, so each walk finds the world as it is. Values may be UNKNOWN."""

    def look(self) -> list[FoundCall]:
        self._past = Past()
        return super().look()

    def _run(self, walk: Walk) -> None:
        func, args, named = self._function
        walk.run(func, args if self.given is None else [walk.own(dict(self.given))], shown(walk, named))

    in_context = False
    given: Mapping[str, Any] | None = None  # the state of a graph, in place of arguments


class PredictedCalls(InnerCalls):
    """Starts component calls of a function before stock calls it with a dict, as far as that is known.

    At last stock's own ``InnerCalls`` of the function takes them over (``hand_over``), or nobody does (``aclose``).
    """

    finder = PredictedFinder
    _finder: PredictedFinder
    _heir: InnerCalls | None = None

    def predict(self, given: Mapping[str, Any]) -> None:
        """Starts what these values allow."""
        self._finder.given = given
        self.look()

    def result(self, given: Mapping[str, Any]) -> Any:
        """Returns what the function returns, UNKNOWN if it may return several things, and starts nothing.

        Raises Stop if it may do more than return something.
        """
        self._finder.given = given
        self._finder.look()
        if self._table.calls or not self._finder.through:
            raise Stop("may do more than return a value")
        return self._finder.value

    @property
    def handed_over(self) -> bool:
        """True if stock's own ``InnerCalls`` has what has begun."""
        return self._heir is not None

    def hand_over(self, heir: InnerCalls) -> float:
        """Gives the calls that have begun to the one who claims them. Returns the seconds that these have run."""
        with self._lock:
            self._over, self._heir = True, heir
            begun = [call for call in self._table.calls if call.begun]
            self._table.calls = []
        heir.adopt(begun)
        return sum((call.ended or now()) - call.since for call in begun if call.ahead is not None)

    def _several(self) -> bool:
        return True  # what runs now is beside it

    def _next_look(self, call: FoundCall) -> bool:
        self._finder.blocked = True  # a later function may wait for any result
        return super()._next_look(call)

    def _finished(self, call: FoundCall, ahead: CallAhead, value: Any) -> None:
        with self._lock:
            heir = self._heir
        if heir is None:
            super()._finished(call, ahead, value)
        else:
            heir._finished(call, ahead, value)
