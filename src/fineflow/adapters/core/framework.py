"""Interface of a framework: its rows and kernels, how its objects are called, and its few real differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

from fineflow.adapters.core.builder import Builder
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Shadows, Site
from fineflow.ir import Graph, Op, Primitive
from fineflow.options import Options
from fineflow.runtime.call.executor import Kernel
from fineflow.runtime.call.visits import Visit
from fineflow.runtime.queues.component_calls import LimitedComponent

Planner = Callable[..., Plan]
"""``api.plan``: makes the plan of an object (framework, object, options, way). Raises PlanningError if a user's pass
fails."""


class Lowered(NamedTuple):
    """An object lowered for a way of calling it, and the builder with what was read of it."""

    obj: Any
    way: Any
    options: Options
    builder: Builder


class Framework(ABC):
    """One framework. Its instance is found by ``adapters.registry``.

    package: of the framework's own classes. A *way* is everything that a plan depends on besides the object (the part
    that is called, sync or async, the kind of input); each framework has its own type for it. first_imports: modules
    that stock imports in its first call, if the installed release has them.
    """

    package: str
    first_imports: Sequence[str] = ()
    kernels: Mapping[Op, Kernel]
    made: ClassVar[list[Framework]] = []  # all of them

    def __init__(self) -> None:
        Framework.made.append(self)

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
        """Returns True if ``optimize`` takes the object."""
        return self.optimized_class(obj) is not None

    def of(self, part: Any) -> Framework:
        """Returns the framework of a part of an object, or of a component that its functions call."""
        return self

    def closed(self, obj: Any) -> bool:
        """Returns True for an object of a package whose insides no plan sees: only calls that it makes can gain."""
        return False

    def inside_of(self, part: Any, around: tuple[Graph, Lowered]) -> Sequence[tuple[bool, str]]:
        """Returns what starts early inside a step of another framework's object, and what does not, as sentences.

        Makes this possible; empty if nothing does. around: that object, lowered.
        """
        return ()

    @abstractmethod
    def ways(self, obj: Any, input: Any) -> Sequence[Any]:
        """Returns the ways that ``explain`` shows. input: an example."""

    def ways_like(self, way: Any) -> Sequence[Any]:
        """Returns the ways that ``explain`` shows together with the way of an actual call."""
        return (way,)

    @abstractmethod
    def lower(self, obj: Any, options: Options, way: Any) -> tuple[Graph, Lowered]:
        """Returns the p-graph of an object, and what was read of it."""

    @abstractmethod
    def decide(self, p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
        """Returns the plan: the parts that the shadow replaces, and the entry points for which running ahead pays."""

    def parts(self, obj: Any, plan: Plan) -> Mapping[str, Any]:
        """Returns the parts of an object that stock calls by themselves, by display name."""
        return {}

    def inside(self, plan: Plan) -> Iterable[Any]:
        """Yields the components that user functions of an object call, as far as their code shows."""
        return ()

    def visits(self, plan: Plan) -> Mapping[str, Visit]:
        """Returns forecasts of the functions in whose runs component calls run ahead, by primitive, for ``explain``."""
        return {}

    def arguments(self, key: Any) -> Any:
        """Wraps the arguments of a component call so that the graph's call and stock's can be compared."""
        return key

    def tap(self, step: Any, site: Site, whole: bool) -> Any:
        """Returns an opaque step that feeds its value to the graph. whole: True if it is the user's own object."""
        return None

    def finish(self, shadow: Any, site: Site) -> None:
        """Completes the shadow of the whole object: makes it report when stock has opened its outermost run."""
        return None

    def prepare_component_context(self, outer: Any) -> None:
        """Prepares the current context, a copy of the one in which stock opened the outermost run, for components."""
        return None

    # Verification.

    def unrepeatable(self, plan: Plan) -> str:
        """Returns why calls may not be made once more, beyond what the graph says; "" if they may."""
        return ""

    def asked(self, p: Primitive) -> tuple[Sequence[Any], Callable[[], bool]] | str:
        """Returns the objects that an opaque step calls and that have plans, and a check that this is still so.

        If it may do anything else that changes something, a reason for that, or "".
        """
        return ""

    def sampled(self, p: Primitive) -> str:
        """Returns why equal requests of a primitive may be answered differently; "" for temperature 0, or no model."""
        return ""

    def sources(self, plan: Plan) -> Mapping[str, Sequence[str]]:
        """Returns the primitives that keys of the answer come from, by key, as far as the graph says."""
        graph, output = plan.p_graph, plan.p_graph.output
        if output.name not in graph or output.key is not None or graph[output.name].op is not Op.RECORD:
            return {}
        args = graph[output.name].args
        return {name.removeprefix("key:"): [ref.name] for name, ref in args.items() if name.startswith("key:")}

    def compared(self, value: Any) -> Mapping[str, Any] | None:
        """Returns the fields that say whether two objects are the same answer; None: all of them."""
        return None

    def silences(self) -> Sequence[AbstractContextManager[Any]]:
        """Returns contexts in which stock calls no handlers and tracers."""
        return ()

    def async_only(self, error: Exception) -> bool:
        """Returns True if a sync call raised this because something in it has only an async method."""
        return isinstance(error, NotImplementedError)

    def lane(self, obj: Any) -> str:
        """Returns the lane of a component in timelines, as its primitive names it; "" for what is no component."""
        return ""

    def defer_writes(self) -> None:
        """Lets sessions (``fineflow.session``) defer writes of the framework's stores. Called when one begins."""
        return None

    def bounded(self, plan: Plan) -> Plan:
        """Returns the plan, extended to bound the components that currently have a limit."""
        return plan

    @abstractmethod
    def component(self, obj: Any) -> LimitedComponent:
        """Returns the limited component of an object. Raises TypeError if it cannot be limited."""

    def shadows(
        self, plan: Plan, planned: Any, *, sync: bool, ahead: bool, made: Callable[..., Shadows] = Shadows
    ) -> Shadows:
        """Returns the shadows of an object, not yet built. made: makes them."""
        return made(
            plan,
            self.rows,
            sync=sync,
            ahead=ahead,
            nested=planned._self_part,
            component=planned._self_ahead,
            options=planned._self_options,
            arguments=self.arguments,
            tap=self.tap,
            finish=self.finish,
        )
