"""What a framework brings: its rows and kernels, how its objects are called, and its few true differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fineflow.adapters.core.builder import Builder
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Shadows, Site
from fineflow.ir import Graph, Op
from fineflow.options import Options
from fineflow.runtime.call.executor import Kernel
from fineflow.runtime.queues.component_calls import LimitedComponent

Planner = Callable[["Framework", Any, Options, Any], Plan]
"""Makes the plan of an object for a way. Raises PlanningError for a pass of the user's that fails."""


class Lowered(NamedTuple):
    """An object that was lowered for a way of calling it, and the builder with what was read of it."""

    obj: Any
    way: Any
    options: Options
    builder: Builder


class Framework(ABC):
    """One framework. Its instance is found by ``adapters.registry``.

    package: of the framework's own classes. A *way* is what a plan depends on beside
    the object (the part that is called, sync or async, the kind of input); frameworks have values of their own for it.
    """

    package: str
    kernels: Mapping[Op, Kernel]

    def __reduce__(self) -> str:
        return "FRAMEWORK"  # pickled as the module's one instance

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """The recognised constructs, first match first."""

    @abstractmethod
    def optimized_class(self, obj: Any) -> Any:
        """Returns the class of the proxy (a ``core.proxy.Planned``) for an object; None if it is not taken."""

    def knows(self, obj: Any) -> bool:
        """Whether an object is one that ``optimize`` takes."""
        return self.optimized_class(obj) is not None

    @abstractmethod
    def ways(self, obj: Any, input: Any) -> Sequence[Any]:
        """Returns the ways that ``explain`` shows. input: an example."""

    def ways_like(self, way: Any) -> Sequence[Any]:
        """Returns the ways that ``explain`` shows together with one by which a call was made."""
        return (way,)

    @abstractmethod
    def lower(self, obj: Any, options: Options, way: Any) -> tuple[Graph, Lowered]:
        """Returns the p-graph of an object, and what was read of it."""

    @abstractmethod
    def decide(self, p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
        """Returns the plan: what the shadow has to replace, and for which entry points running ahead pays."""

    def parts(self, obj: Any, plan: Plan) -> Mapping[str, Any]:
        """Returns what stock calls by itself in an object, by names for people."""
        return {}

    def arguments(self, key: Any) -> Any:
        """Wraps the arguments of a component call so that the graph's call and stock's can be compared."""
        return key

    def tap(self, step: Any, site: Site, whole: bool) -> Any:
        """Returns an opaque step that feeds its value to the graph. whole: it is the user's own object."""
        return None

    def finish(self, shadow: Any, site: Site) -> None:
        """Completes the shadow of the object as a whole: has it say when stock has opened its outermost run."""
        return None

    def prepare_component_context(self, outer: Any) -> None:
        """Makes the current context, a copy of the one in which stock opened the outermost run, fit for components."""
        return None

    def bounded(self, plan: Plan) -> Plan:
        """Returns the plan with what is needed to bound components that have a limit now."""
        return plan

    @abstractmethod
    def component(self, obj: Any) -> LimitedComponent:
        """Returns the entry of a component among the limited ones. Raises TypeError for what cannot be limited."""

    def shadows(self, plan: Plan, planned: Any, *, sync: bool, ahead: bool) -> Shadows:
        """Returns the shadows of an object, not built yet."""
        return Shadows(
            plan,
            self.rows,
            sync=sync,
            ahead=ahead,
            nested=planned._self_part,
            arguments=self.arguments,
            tap=self.tap,
            finish=self.finish,
        )
