"""Plain functions that call runnables and stores, as objects of ``optimize``."""

from __future__ import annotations

import sys
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
    lower_function,
    visits_of,
)
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.run_figures import RunFigures
from fineflow.adapters.langchain import planning
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.calls import streaming_handlers
from fineflow.adapters.langchain.inner_calls.inner_calls import claims_inside, inner_calls_of
from fineflow.adapters.langchain.user_functions import calls_in, calls_some_of_langchain
from fineflow.ir import Graph
from fineflow.options import Options
from fineflow.runtime.call.visits import Visit


def takes(func: Any) -> bool:
    """Returns True for a function that calls a component, by the names of methods; for any if nobody else takes it."""
    return "llama_index.core" not in sys.modules or calls_some_of_langchain(func)


def lower(func: Any, options: Options) -> tuple[Graph, Lowered]:
    """Returns the p-graph of a function, and what lowering read."""
    b = ChainBuilder(planning.rows(), options.assume_pure, options.trust == "interfaces")
    found, inside = calls_in(func)
    output = lower_function(func, found, b, b.refused, inside=inside)
    return Graph(tuple(b.primitives), output, notes=tuple(b.notes)), Lowered(func, True, options, b)


def decide(p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
    """Returns the plan of a function."""
    found, inside = calls_in(lowered.obj)
    if inside:
        claims_inside(found)
    return decide_function(p_graph, e_graph, lowered, inside=inside)


def _begin(here: Claiming, func: Any, args: Any, named: Mapping[str, Any]) -> InnerCalls:
    figures = RunFigures(visits_of(func))
    return inner_calls_of(here, func, args, named, {}, streams_models=streaming_handlers(None), figures=figures)


shadows = partial(FunctionShadows, _begin)


def visits(plan: Plan) -> Mapping[str, Visit]:
    """Returns the forecast of a function's next run, by its primitive."""
    func = plan.objects[""]
    return {p.name: forecast_of(func, calls_in(func)[0].components) for p in plan.p_graph}
