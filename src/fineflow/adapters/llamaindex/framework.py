"""LlamaIndex for ``fineflow.api``: what ``adapters.core.framework`` says. A way is a part of an object, and
sync or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fineflow.adapters.core.framework import Planner
from fineflow.adapters.llamaindex import plan as plans
from fineflow.adapters.llamaindex.agents.workflows import flow_parts, flow_ways, lower_flow
from fineflow.adapters.llamaindex.lowering.containers import parts_of
from fineflow.adapters.llamaindex.plan import Lowered, Plan, Way, main_part
from fineflow.adapters.llamaindex.proxy import Optimized, optimized_class
from fineflow.ir import Graph
from fineflow.options import Options


def known(obj: Any) -> bool:
    """Whether an object is one of LlamaIndex that can be optimized."""
    return isinstance(obj, Optimized) or optimized_class(obj) is not None


def optimized(obj: Any, options: Options, planner: Planner) -> Optimized:
    wrapped: Any = obj.__wrapped__ if isinstance(obj, Optimized) else obj
    made = optimized_class(wrapped)
    assert made is not None
    return made(wrapped, options, planner)


def ways(obj: Any, input: Any, used: Way | None) -> Sequence[Way]:
    own = obj.__wrapped__ if isinstance(obj, Optimized) else obj
    if flows := flow_ways(own):
        return flows
    part = main_part(obj) if used is None else used.part
    return Way(part, sync=True), Way(part, sync=False)


def lower(obj: Any, options: Options, way: Way) -> tuple[Graph, Lowered]:
    return (lower_flow if flow_ways(obj) else plans.lower)(obj, options, way)


def decide(p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
    made = plans.decide(p_graph, e_graph, lowered)
    return replace(made, parts=True) if flow_parts(lowered.obj) else made


def parts(obj: Any, plan: Plan) -> Mapping[str, Any]:
    if plan.gain:  # it runs ahead as a whole
        return {}
    ours = isinstance(obj, Optimized)
    own = obj.__wrapped__ if ours else obj
    found = parts_of(own) or flow_parts(own)
    return {name: obj._self_part(part) if ours else part for name, part in found.items() if known(part)}


__all__ = ["Optimized", "decide", "known", "lower", "optimized", "parts", "ways"]
