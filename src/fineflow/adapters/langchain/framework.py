"""LangChain as a ``Framework``: its rows and kernels, and where it differs from other frameworks.

"Stock" means LangChain's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import var_child_runnable_config

from fineflow.adapters.core.framework import Framework, Lowered
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.recognition import Row, find
from fineflow.adapters.core.shadows import Shadows, Site
from fineflow.adapters.inner_calls.functions import is_function, optimized_function
from fineflow.adapters.langchain import own_functions, planning, repeating
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.calls import is_constant
from fineflow.adapters.langchain.chain_proxy import OptimizedChain
from fineflow.adapters.langchain.inner_calls.classic_chains import is_chain
from fineflow.adapters.langchain.inner_calls.inner_calls import held_in, looking_through
from fineflow.adapters.langchain.kernels.operations import KERNELS
from fineflow.adapters.langchain.lanes import lane_of
from fineflow.adapters.langchain.models.usage import beginning, tokens
from fineflow.adapters.langchain.opaque_steps import Tap
from fineflow.adapters.langchain.proxy import Optimized
from fineflow.adapters.langchain.resources import limited, meant, standing, writes
from fineflow.adapters.langchain.stores import deferred_writes
from fineflow.adapters.langchain.user_functions import ENTRIES, looked_through
from fineflow.ir import Graph, Note, Primitive
from fineflow.ir.meta import LATE_TOOLS
from fineflow.ir.spec import everything
from fineflow.options import Options
from fineflow.runtime.call.visits import Visit
from fineflow.runtime.queues.component_calls import LimitedComponent, token_readers
from fineflow.runtime.queues.provider_caches import beginning_readers

_FIRST_IMPORTS = (
    *("langchain_core.env", "langchain_core.messages.block_translators.langchain_v0"),
    *(f"langchain_core.tracers.{name}" for name in ("context", "langchain", "run_collector", "stdout")),
)


class LangChain(Framework):
    """LangChain. A way is a bool: True if the input is text or numbers, which no step can change.

    In a call whose config sets configurable values that steps read, it is a ``Way``.
    """

    package = "langchain_core"
    first_imports = _FIRST_IMPORTS
    kernels = KERNELS

    @property
    def rows(self) -> Sequence[Row]:
        return planning.rows()

    def optimized_class(self, obj: Any) -> Any:
        if is_function(obj):
            return optimized_function if own_functions.takes(obj) else None
        if not isinstance(obj, Runnable):
            return None
        return OptimizedChain if is_chain(type(obj)) else Optimized

    def of(self, part: Any) -> Framework:
        takers = [
            each for each in Framework.made if isinstance(each, LangChain) and each.optimized_class(part) is not None
        ]
        return max(takers, key=lambda each: len(type(each).__mro__), default=self)  # a graph is a runnable, too

    def closed(self, obj: Any) -> bool:
        return find(self.rows, obj) is None and of_package(type(obj).__module__) and not is_function(obj)

    def ways(self, obj: Any, input: Any) -> Sequence[bool]:
        return (is_function(obj) or is_constant(input),)

    def lower(self, obj: Any, options: Options, way: bool) -> tuple[Graph, Lowered]:
        if is_function(obj):
            return own_functions.lower(obj, options)
        graph, lowered = planning.lower(obj, options, way)
        return self._noting_graphs(graph, lowered), lowered

    def decide(self, p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
        if is_function(lowered.obj):
            return own_functions.decide(p_graph, e_graph, lowered)
        plan = planning.decide(p_graph, e_graph, lowered)
        ahead = isinstance(lowered.builder, ChainBuilder) and lowered.builder.graphs
        return replace(plan, follows=plan.follows | ENTRIES) if ahead else plan

    def _noting_graphs(self, graph: Graph, lowered: Lowered) -> Graph:
        """Returns a p-graph with notes on what starts early inside of steps that are graphs."""
        notes = []
        for p in everything(graph):
            found = self if p.component is None or not p.by_stock else self.of(p.component)
            for ahead, text in () if found is self else found.inside_of(p.component, (graph, lowered)):
                notes.append(Note("lower" if ahead else LATE_TOOLS, p.name, ahead, text))
        assert isinstance(lowered.builder, ChainBuilder)
        lowered.builder.graphs = any(note.done for note in notes)
        return replace(graph, notes=(*graph.notes, *notes))

    def inside(self, plan: Plan) -> Iterator[Any]:
        for p in everything(plan.p_graph):
            if p.meta.get("inside"):
                for _, found in looked_through(p.component).values():
                    yield from found.components.values()

    def shadows(self, plan: Plan, planned: Any, *, sync: bool, ahead: bool, made: Any = None) -> Shadows:
        made = made or (own_functions.shadows if is_function(planned.__wrapped__) else Shadows)
        return super().shadows(plan, planned, sync=sync, ahead=ahead, made=made)

    def visits(self, plan: Plan) -> Mapping[str, Visit]:
        if is_function(plan.objects.get("")):
            return own_functions.visits(plan)
        held = {p.name: held_in(p.component) for p in plan.p_graph if p.meta.get("inside")}
        return {name: Visit(held=each) for name, each in held.items() if each}

    def arguments(self, key: Any) -> Arguments:
        return Arguments(key)

    def tap(self, step: Any, site: Site, whole: bool) -> Any:
        step = looking_through(step, site) if whole else step
        if not isinstance(step, Runnable):  # a compressor: its shadow feeds the value itself
            return None if whole else step
        component = site.planned
        return Tap(step, site, component if whole or writes(component) else None)

    def prepare_component_context(self, outer: Any) -> None:
        """Hides stock's handlers from components: of a step's config they see everything else."""
        var_child_runnable_config.set({**(var_child_runnable_config.get() or {}), "callbacks": None})

    def unrepeatable(self, plan: Plan) -> str:
        return repeating.unrepeatable(plan.objects.values())

    def asked(self, p: Primitive) -> tuple[Sequence[Any], Callable[[], bool]] | str:
        return repeating.asked(p.component)

    def sampled(self, p: Primitive) -> str:
        return repeating.sampled(p)

    def compared(self, value: Any) -> Mapping[str, Any] | None:
        return repeating.compared(value)

    def silences(self) -> Sequence[AbstractContextManager[Any]]:
        return repeating.silences()

    def async_only(self, error: Exception) -> bool:
        return repeating.async_only(error)

    def lane(self, obj: Any) -> str:
        return lane_of(obj)

    def defer_writes(self) -> None:
        deferred_writes.defer_writes()

    def bounded(self, plan: Plan) -> Plan:
        leaves = limited(plan.objects)
        return plan.bounding(leaves) if leaves else plan

    def component(self, obj: Any) -> LimitedComponent:
        row = find(self.rows, meant(obj))
        if row is not None and row.composite:
            raise TypeError(f"{type(obj).__name__} is planned as its parts; limit those instead")
        return standing(obj)


FRAMEWORK = LangChain()
token_readers.append(tokens)
beginning_readers.append(beginning)
