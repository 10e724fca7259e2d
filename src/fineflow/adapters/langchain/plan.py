"""From a runnable to a plan: its p-graph, its e-graph, what its shadow has to replace, and whether that pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from fineflow.adapters.base import TEXT, UNKNOWN, Builder, Leaf, Row, plain
from fineflow.adapters.langchain import compressors, models, parsers, prompts, retrievers, structure
from fineflow.adapters.langchain.changes import Snapshot
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.edit import critical_path
from fineflow.options import Options


@cache
def rows() -> tuple[Row, ...]:
    """Everything that is recognised; of langchain-classic only what is installed, which the first call imports."""
    return (
        *structure.ROWS,
        *prompts.ROWS,
        *models.ROWS,
        *parsers.ROWS,
        *parsers.classic_rows(),
        *retrievers.ROWS,
        *retrievers.classic_rows(),
        *compressors.ROWS,
        *compressors.classic_rows(),
        *compressors.LAST,
    )


@dataclass(frozen=True)
class Plan:
    """How one object runs.

    objects: what was planned at which path. touched: the paths that the shadow copies. tapped: opaque steps among
    them. gain/gain_sync: whether the graph is expected to be sooner than stock for async and sync entry points.
    own_batch: whether a step does something else in ``batch`` than to invoke itself for each input. snapshot: what the
    objects were like.
    """

    p_graph: Graph
    e_graph: Graph
    objects: Mapping[str, Any]
    touched: frozenset[str]
    tapped: frozenset[str]
    gain: bool
    gain_sync: bool
    own_batch: bool
    snapshot: Snapshot

    def gains(self, *, sync: bool) -> bool:
        return self.gain_sync if sync else self.gain


Planner = Callable[[Runnable[Any, Any], Options, bool], Plan]
"""Makes the plan of a runnable; the last argument says whether its input is text (see ``lower``)."""


def lower(runnable: Runnable[Any, Any], options: Options, *, text_input: bool) -> tuple[Graph, Mapping[str, Any]]:
    """The p-graph of a runnable, and the objects it was made from, by path.

    text_input: the input is text or numbers, or a dict of such, which no step can change under a reader.
    """
    b = Builder(rows(), options.assume_pure)
    value = b.lower(runnable, Leaf(Ref("input"), TEXT if text_input else UNKNOWN))
    output = b.whole(value)
    return Graph(tuple(b.primitives), output.ref, notes=tuple(b.notes)), b.objects


def decide(p_graph: Graph, e_graph: Graph, objects: Mapping[str, Any]) -> Plan:
    """What the shadow of a call has to replace, and whether running the graph ahead is expected to pay."""
    leaves = {p.meta["leaf"] for p in _all(e_graph) if _meets_stock(p)}
    tapped = frozenset(p.meta["leaf"] for p in e_graph if p.op is Op.CALL and p.params.get("by") == "stock")
    tapped &= _wanted(e_graph)
    leaves = {leaf for leaf in leaves if leaf not in _untapped(e_graph, tapped)}
    touched = frozenset("/".join(leaf.split("/")[:i]) for leaf in leaves for i in range(len(leaf.split("/")) + 1))
    touched = touched & objects.keys()
    sooner = critical_path(e_graph)[0] < critical_path(p_graph)[0] or any(p.op is Op.PARTIAL_PREFILL for p in e_graph)
    sooner = sooner or any(ref.stream for p in e_graph for ref in p.args.values())
    serial = any(p.op is Op.MAP for p in e_graph)  # what stock's sync methods do one by one
    own_batch = _own_batch(objects.values())
    return Plan(
        p_graph,
        e_graph,
        objects,
        touched,
        tapped,
        gain=bool(touched) and sooner,
        gain_sync=bool(touched) and (sooner or serial),
        own_batch=own_batch,
        snapshot=Snapshot(objects.values()),
    )


def _own_batch(objects: Iterable[Any]) -> bool:
    usual = [plain(base, "batch") for base in (Runnable, RunnableSequence, RunnableBindingBase)]
    return any(plain(type(obj), "batch") not in usual for obj in objects if isinstance(obj, Runnable))


def _all(graph: Graph) -> list[Primitive]:
    return [q for p in graph for q in (p, *(_all(p.body) if p.body is not None else ()))]


def _meets_stock(p: Primitive) -> bool:
    if p.op is Op.CALL:
        return p.params.get("by") == "stock"
    claimable = p.op in (Op.DECODE, Op.PARTIAL_DECODE, Op.SEARCH, Op.RERANK)
    return claimable and p.params.get("by") != "stock" and not p.params.get("stage")


def _wanted(graph: Graph) -> frozenset[str]:
    """Leaves of opaque steps whose value or success somebody in the graph waits for."""
    running = [p for p in graph if p.params.get("by") != "stock"]
    names = {r.name for p in running for r in p.args.values()} | {n for p in running for n in p.after}
    return frozenset(p.meta["leaf"] for p in graph if p.name in names and p.params.get("by") == "stock")


def _untapped(graph: Graph, tapped: frozenset[str]) -> set[str]:
    opaque = {p.meta["leaf"] for p in graph if p.op is Op.CALL and p.params.get("by") == "stock"}
    return opaque - tapped
