"""What an adapter offers to ``fineflow.api``: each has a module ``framework`` that is a ``Framework``.

A *way* is what a plan depends on beside the object: how it will be called, and with what. An adapter has values of its
own for it, which may be keys of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fineflow.ir import Graph
from fineflow.options import Options


class Plan(Protocol):
    """How an object runs when it is called in some way.

    entries: names of the methods that it is about. ``ahead``: those of them whose calls run ahead of stock; the others
    go to the user's object. remarks: sentences on what is done for these calls that the graphs do not show.
    """

    @property
    def p_graph(self) -> Graph: ...

    @property
    def e_graph(self) -> Graph: ...

    @property
    def entries(self) -> tuple[str, ...]: ...

    @property
    def remarks(self) -> tuple[str, ...]: ...

    def ahead(self, *, eager: bool = False) -> tuple[str, ...]: ...


Planner = Callable[[Any, Options, Any], Any]
"""Makes the plan of an object for a way. Raises PlanningError for a pass of the user's that fails."""


class Framework(Protocol):
    """One framework. ``Optimized``: class of what stands for its objects; has ``_self_options``, ``_self_plans`` by
    way, and ``_self_last``, the summary of the call that ended last.
    """

    @property
    def Optimized(self) -> type: ...

    def optimized(self, obj: Any, options: Options, planner: Planner) -> Any:
        """What ``optimize`` returns for an object of this framework, which may be optimized already."""
        ...

    def ways(self, obj: Any, input: Any, used: Any) -> Sequence[Any]:
        """The ways that ``explain`` tells of. input: an example. used: of the call that it is about, or None."""
        ...

    def parts(self, obj: Any, plan: Any) -> Mapping[str, Any]:
        """What of an object, optimized or not, is called by itself by this plan of it, by names for people."""
        ...

    def lower(self, obj: Any, options: Options, way: Any) -> tuple[Graph, Any]:
        """The p-graph of an object, and what was seen of it on the way, for ``decide``."""
        ...

    def decide(self, p_graph: Graph, e_graph: Graph, seen: Any) -> Plan:
        """What stock's side of a call has to replace, and whether running ahead is expected to pay."""
        ...
