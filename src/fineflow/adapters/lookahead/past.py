"""What a function changes of the world around it, as it was before the function began.

Stock runs the function between two walks, so a later walk may find a list longer, or a counter higher, than the
function found it. What the first walk found to be changed is remembered, and later walks read that. One that meets
another change can trust nothing that it has read.
"""

from __future__ import annotations

import copy
from typing import Any

from fineflow.adapters.lookahead.values import Stop


class AlreadyChanged(Stop):
    """Stock may have made this change already."""


class Past:
    """The state before one run of a function, as far as walks need it."""

    def __init__(self) -> None:
        self.first = True
        self.contents: dict[int, tuple[Any, Any]] = {}  # containers, with a copy of each, by id
        self._values: dict[tuple[int, str], tuple[Any, Any]] = {}  # attributes and variables

    def keep(self, place: Any, name: str, value: Any, *, new: bool) -> None:
        """Notes that the function assigns to an attribute or variable whose value is this one. Raises Stale.

        new: stock has not seen the place yet.
        """
        if (id(place), name) not in self._values:
            self._check(new)
            self._values[id(place), name] = place, value

    def keep_content(self, container: Any, *, new: bool) -> None:
        """Notes that the function changes a container, which has its first content now. Raises Stale. new: as above."""
        self._check(new)
        self.contents[id(container)] = container, copy.copy(container)

    def value(self, place: Any, name: str, otherwise: Any) -> Any:
        """Returns the first value of an attribute or variable that the function assigns to, NULL if it had none.

        otherwise: what is returned for others.
        """
        found = self._values.get((id(place), name))
        return otherwise if found is None else found[1]

    def _check(self, new: bool) -> None:
        if not (self.first or new):
            raise AlreadyChanged("changes something that it may have changed already")
