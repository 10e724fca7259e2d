"""Figures of one run of a user function, kept at its end for ``explain``."""

from __future__ import annotations

import weakref
from typing import Any

from fineflow.adapters.core.durations import QUICK
from fineflow.adapters.inner_calls.finder import CallFinder
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.runtime.call.visits import ComponentCall, InTheWay, Visits
from fineflow.runtime.events import now

_PATIENCE = 3  # quiet runs


class RunFigures:
    """Notes where walks of a run ended, and at the run's end its component calls.

    visits: gets the figures. patient: in a run that is likely to make no call, the first walk may wait for one.
    """

    def __init__(self, visits: Visits, *, patient: bool = True) -> None:
        self._visits, self._patient, self._began = visits, patient, now()
        self._ends: list[tuple[InTheWay, frozenset[int]]] = []  # with the calls that were known then, by id

    @property
    def quiet(self) -> bool:
        """True if this run is likely to make no component call, as the last ones have made none."""
        return self._patient and self._visits.quiet >= _PATIENCE

    def undisturbed(self) -> None:
        """Records the run, which has made no component call, as was likely: no walk has looked at it."""
        if now() - self._began >= QUICK:
            self._visits.quiet = 0

    def walked(self, finder: CallFinder) -> None:
        """Notes where the last walk ended, if it did not get through the function."""
        if finder.held is not None:
            self._ends.append((finder.held, frozenset(map(id, finder.table.calls))))

    def end(self, finder: CallFinder, saved: float) -> None:
        """Records the run, if it has made component calls and none has failed. saved: seconds that stock waited less.

        Calls that are made of other ones do not count beside these.
        """
        quiet = finder.quiet and now() - self._began < QUICK
        self._visits.quiet = self._visits.quiet + 1 if quiet else 0
        if not finder.table.calls:
            return
        taken = [call for call in finder.table.calls if call.taken]
        made = sorted((call for call in taken if not call.opened), key=lambda call: call.since)
        if not made or not all(call.ended for call in taken):
            return
        calls = [self._figures(call) for call in made]
        held = [each for each, known in self._ends if any(id(call) not in known for call in made)]
        self._visits.add(now() - self._began, saved, calls, held)

    def _figures(self, call: FoundCall) -> ComponentCall:
        component: Any = call.component
        try:
            reference = weakref.ref(component)
        except TypeError:
            reference = None
        began, ended = (max(at - self._began, 0.0) for at in (call.since, call.ended))  # it may have begun earlier
        return ComponentCall(reference, type(component).__name__, call.name, began, ended)
