"""toyflow as a framework: its kernels, its entry methods, and when running ahead pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import toyflow

from fineflow.adapters.core.builder import Builder, Leaf
from fineflow.adapters.core.framework import Framework, Lowered
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.plan import Plan, running, with_containers
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.recognition import Row, find
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.weights import critical_path
from fineflow.options import Options
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.component_calls import LimitedComponent
from toyflow_adapter.rows import ROWS

Args = Mapping[str, Any]


def _render(p: Primitive, args: Args, run: Execution) -> Any:
    return p.component.call(args["value"])


def _record(p: Primitive, args: Args, run: Execution) -> Any:
    return {name.removeprefix("key:"): value for name, value in args.items()}


def _decode(p: Primitive, args: Args, run: Execution) -> Work:
    model, prompt = p.component, args["prompt"]

    async def start(entry: Any) -> Any:
        entry.running()
        return await (in_thread(lambda: model.call(prompt)) if run.call.sync else model.acall(prompt))

    return Work(run.work(p, prompt, start), lambda text: text)


_KERNELS = {Op.RENDER: _render, Op.RECORD: _record, Op.DECODE: _decode}


class _Call(Invocation):
    """One call of a step."""

    __slots__ = ("value",)

    def inputs(self) -> Mapping[str, Any]:
        return {"input": self.value}


class OptimizedStep(Planned):
    """A step that runs ahead."""

    def run(self, value: Any) -> Any:
        return self._self_call(self._self_invocation("run", value, sync=True))

    async def arun(self, value: Any) -> Any:
        return await self._self_acall(self._self_invocation("arun", value, sync=False))

    def _self_invocation(self, entry: str, value: Any, *, sync: bool) -> _Call:
        call = _Call(entry, None, lambda runs: getattr(runs, entry)(value), sync=sync)
        call.value = value
        return call


class Toyflow(Framework):
    """toyflow. All calls of an object have one plan."""

    package = "toyflow"
    kernels = _KERNELS

    @property
    def rows(self) -> Sequence[Row]:
        return ROWS

    def optimized_class(self, obj: Any) -> Any:
        return OptimizedStep if isinstance(obj, toyflow.Step) else None

    def ways(self, obj: Any, input: Any) -> Sequence[Any]:
        return (None,)

    def lower(self, obj: Any, options: Options, way: Any) -> tuple[Graph, Lowered]:
        b = Builder(ROWS, options.assume_pure)
        output = b.whole(b.lower(obj, Leaf(Ref("input"))))
        return Graph(tuple(b.primitives), output.ref, notes=tuple(b.notes)), Lowered(obj, way, options, b)

    def decide(self, p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
        objects, entries = lowered.builder.objects, ("run", "arun")
        leaves = frozenset(p.leaf for p in running(e_graph) if p.op is Op.DECODE and not p.by_stock)
        gain = critical_path(e_graph)[0] < critical_path(p_graph)[0]
        watched = [(obj, row.reads if (row := find(ROWS, obj)) else ()) for obj in objects.values()]
        return Plan(
            way=lowered.way,
            p_graph=p_graph,
            e_graph=e_graph,
            entries=entries,
            pays=frozenset(entries if gain else ()),
            objects=objects,
            snapshot=Snapshot(watched),
            touched=with_containers(leaves) & objects.keys(),
            leaves=leaves,
        )

    def component(self, obj: Any) -> LimitedComponent:
        raise TypeError("nothing of toyflow can be limited")


FRAMEWORK = Toyflow()
