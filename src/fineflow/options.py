"""What a user can choose, in one immutable value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fineflow.passes import PASSES, Pass, checked


@dataclass(frozen=True, slots=True)
class Options:
    """How an object is optimized. Raises TypeError for ``passes`` that are not functions.

    passes: the rewrites, in order; any subset of ``fineflow.PASSES``, or functions of your own.
    strict: raise PlanningError instead of falling back to stock when fineflow itself fails.
    assume_pure: take every user function for pure, whatever the analysis says.
    eager: run the graph ahead even where no gain is expected (for tests of fidelity).
    """

    passes: Sequence[Pass] = PASSES
    strict: bool = False
    assume_pure: bool = False
    eager: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", checked(self.passes))
