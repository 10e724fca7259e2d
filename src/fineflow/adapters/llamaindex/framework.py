"""LlamaIndex as a framework: its rows and kernels, and its differences from other frameworks.

Three differences. Its inner methods open spans and send events: the graph calls the functions inside these wrappers,
and the shadow that stock runs has the same wrappers around a claim (``methods``). Async methods that await nothing run
in threads. The parts of an engine that is no graph itself run ahead as calls of their own, nested in the engine's call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine

from fineflow.adapters.core.framework import Framework, Lowered
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Shadows, Site
from fineflow.adapters.inner_calls.functions import is_function, optimized_function
from fineflow.adapters.llamaindex import own_functions, planning, repeating
from fineflow.adapters.llamaindex.agents.workflows import flow_class, flow_parts, flow_ways, lower_flow
from fineflow.adapters.llamaindex.builder import Way
from fineflow.adapters.llamaindex.ingestion.proxies import ingesting_class
from fineflow.adapters.llamaindex.kernels.operations import KERNELS
from fineflow.adapters.llamaindex.lowering.containers import container_of
from fineflow.adapters.llamaindex.lowering.synthesizers import is_synthesizer
from fineflow.adapters.llamaindex.methods import opened
from fineflow.adapters.llamaindex.models.usage import beginning, tokens
from fineflow.adapters.llamaindex.proxy import (
    OptimizedChatEngine,
    OptimizedQueryEngine,
    OptimizedRetriever,
    OptimizedSynthesizer,
)
from fineflow.adapters.llamaindex.resources import lane_of, standing
from fineflow.ir import Graph, Primitive
from fineflow.options import Options
from fineflow.runtime.call.visits import Visit
from fineflow.runtime.queues.component_calls import LimitedComponent, token_readers
from fineflow.runtime.queues.provider_caches import beginning_readers


class LlamaIndex(Framework):
    """LlamaIndex. A way is a part of an object, called by its sync or its async method."""

    package = "llama_index"
    kernels = KERNELS

    @property
    def rows(self) -> Sequence[Row]:
        return planning.ROWS

    def optimized_class(self, obj: Any) -> Any:
        if is_function(obj):
            return optimized_function
        if isinstance(obj, BaseQueryEngine):
            return OptimizedQueryEngine
        if isinstance(obj, BaseRetriever):
            return OptimizedRetriever
        if isinstance(obj, BaseChatEngine):
            return OptimizedChatEngine
        if is_synthesizer(obj):
            return OptimizedSynthesizer
        return ingesting_class(obj) or flow_class(obj)

    def ways(self, obj: Any, input: Any) -> Sequence[Any]:
        if is_function(obj):
            return (True,)
        if flows := flow_ways(obj):
            return flows
        return self.ways_like(Way(planning.main_part(obj), True))

    def ways_like(self, way: Any) -> Sequence[Any]:
        if way is True:  # of a function
            return (way,)
        return Way(way.part, True), Way(way.part, False)

    def lower(self, obj: Any, options: Options, way: Any) -> tuple[Graph, Lowered]:
        if is_function(obj):
            return own_functions.lower(obj, options)
        if flow_ways(obj):
            return lower_flow(obj, options, way, self.knows)
        return planning.lower(obj, options, way)

    def decide(self, p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
        if is_function(lowered.obj):
            return own_functions.decide(p_graph, e_graph, lowered)
        plan = planning.decide(p_graph, e_graph, lowered)
        if flow_ways(lowered.obj) and any(is_function(p.component) for p in p_graph):
            plan = planning.following(plan)
        return planning.with_parts(plan) if flow_parts(lowered.obj, self.knows) else plan

    def parts(self, obj: Any, plan: Plan) -> Mapping[str, Any]:
        if plan.pays or is_function(obj):  # it runs ahead as a whole
            return {}
        row = container_of(obj)
        found = (row.parts(obj) if row is not None else {}) or flow_parts(obj, self.knows)
        return {name: part for name, part in found.items() if self.knows(part)}

    def shadows(self, plan: Plan, planned: Any, *, sync: bool, ahead: bool, made: Any = None) -> Shadows:
        made = own_functions.shadows if is_function(planned.__wrapped__) else Shadows
        return super().shadows(plan, planned, sync=sync, ahead=ahead, made=made)

    def visits(self, plan: Plan) -> Mapping[str, Visit]:
        return own_functions.visits(plan)

    def finish(self, shadow: Any, site: Site) -> None:
        way: Way = site.shadows.plan.way
        if shadow is not site.planned and opened(shadow, way.entry, site.opened):
            site.opens(way.entry)

    def unrepeatable(self, plan: Plan) -> str:
        if is_function(plan.objects.get("")):
            return ""
        return repeating.unrepeatable(plan.way, plan.objects.values())

    def sampled(self, p: Primitive) -> str:
        return repeating.sampled(p)

    def sources(self, plan: Plan) -> Mapping[str, Sequence[str]]:
        return repeating.sources(plan.way, plan.objects.get(""), plan.p_graph)

    def compared(self, value: Any) -> Mapping[str, Any] | None:
        return repeating.compared(value)

    def silences(self) -> Sequence[AbstractContextManager[Any]]:
        return repeating.silences()

    def lane(self, obj: Any) -> str:
        return lane_of(obj)

    def component(self, obj: Any) -> LimitedComponent:
        return standing(obj)


FRAMEWORK = LlamaIndex()
token_readers.append(tokens)
beginning_readers.append(beginning)
