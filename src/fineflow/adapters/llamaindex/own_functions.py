"""Plain functions that call engines, retrievers and models, as objects of ``optimize``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.framework import Lowered
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.inner_calls.functions import (
    FunctionShadows,
    decide_function,
    forecast_of,
    is_function,
    lower_function,
)
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.llamaindex import planning
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.inner_calls import IndexComponents, calls_of
from fineflow.adapters.llamaindex.reading import Readings, refused_by
from fineflow.adapters.llamaindex.stores.searches import resource_of
from fineflow.adapters.llamaindex.user_functions import calls_in, functions_of
from fineflow.ir import Graph
from fineflow.options import Options
from fineflow.runtime.call.visits import Visit


def lower(func: Any, options: Options) -> tuple[Graph, Lowered]:
    """Returns the p-graph of a function, and what lowering read."""
    b = IndexBuilder(planning.ROWS, options.assume_pure, options.trust == "interfaces", contents=resource_of)
    found = calls_in(func)
    output = lower_function(func, found, b, refused_by(options), inside=found.calls > 1)
    return Graph(tuple(b.primitives), output, notes=tuple(b.notes)), Lowered(func, True, options, b)


def decide(p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
    """Returns the plan of a function."""
    return decide_function(p_graph, e_graph, lowered, inside=calls_in(lowered.obj).calls > 1)


def _begin(here: Claiming, func: Any, args: Any, named: Mapping[str, Any]) -> InnerCalls:
    shadows: Any = here.shadows
    if shadows.readings is None:
        shadows.readings = Readings(shadows.options, calls_in(func).components.values())
    return calls_of(IndexComponents(shadows.options, shadows.nested, shadows.readings), here, func, args, named)


class _Shadows(FunctionShadows):
    readings: Readings | None = None


shadows = partial(_Shadows, _begin)


def visits(plan: Plan) -> Mapping[str, Visit]:
    """Returns forecasts of the next runs of user functions and methods in which component calls run ahead."""
    found = {}
    for p in plan.p_graph:
        functions = [p.component] if is_function(p.component) else functions_of(p.component).values()
        runs = [forecast for each in functions if (forecast := forecast_of(each, calls_in(each).components)).runs]
        if is_function(p.component) or runs:
            found[p.name] = max(runs, key=lambda visit: visit.runs, default=Visit())
    return found
