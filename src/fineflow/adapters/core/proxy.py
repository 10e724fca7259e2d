"""What stands for the user's object, in every framework: all of it is the user's object, except that it has plans."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import wrapt

from fineflow.adapters.core.framework import Planner
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.options import Options


class Planned(wrapt.ObjectProxy[Any]):
    """An object with its plans, by the ways in which it is called; None for one that could not be planned."""

    def __init__(self, wrapped: Any, options: Options, planner: Planner) -> None:
        super().__init__(wrapped)
        self._self_options = options
        self._self_planner = planner
        self._self_plans: dict[Any, Any] = {}

    def _self_current(self, way: Any) -> Any:
        """The plan for a way of calling the object as it is now."""
        plans = self._self_plans
        plan = plans[way] if way in plans else plans.setdefault(way, self._self_planned(way))
        if plan is not None and not plan.snapshot.holds():  # the user has changed the object since
            plan = plans[way] = self._self_planned(way)
        return plan

    def _self_planned(self, way: Any) -> Any:
        try:
            return self._self_planner(self.__wrapped__, self._self_options, way)
        except Exception as error:
            own = isinstance(error, PlanningError)  # a pass of the user's, and the message says so
            what = str(error) if own else f"{type(error).__name__}: {error}"
            text = f"{type(self.__wrapped__).__name__} could not be planned ({what})"
            if self._self_options.strict:
                cause = error.__cause__ if own else error
                raise PlanningError(f"{text}; without strict=True it runs as stock") from cause or error
            report = "" if own else " Please report this."
            warnings.warn(f"{text}; it runs as stock.{report}", FineflowWarning, stacklevel=5)
            return None

    def __repr__(self) -> str:
        return f"fineflow.optimize({self.__wrapped__!r})"

    # A proxy cannot be copied as what it stands for; its copies are optimized copies.

    def __copy__(self) -> Any:
        return type(self)(copy.copy(self.__wrapped__), self._self_options, self._self_planner)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(copy.deepcopy(self.__wrapped__, memo), self._self_options, self._self_planner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.__wrapped__, self._self_options, self._self_planner)
