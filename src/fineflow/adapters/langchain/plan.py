"""From a runnable to a plan: its p-graph, its e-graph, what its shadow has to replace, and whether that pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from langchain_core.runnables import Runnable

from fineflow.adapters.core.builder import TEXT, UNKNOWN, Builder, Leaf
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.langchain.batch_semantics import steps_meet
from fineflow.adapters.langchain.lowering import (
    branches,
    compressors,
    functions,
    history,
    models,
    parsers,
    prompts,
    retriever_lists,
    retrievers,
    structure,
    tools,
)
from fineflow.adapters.langchain.plan_staleness import Snapshot
from fineflow.adapters.langchain.shadows import Shadows
from fineflow.adapters.langchain.stores.facts import contents
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.primitive import FED
from fineflow.ir.spec import bodies
from fineflow.ir.traverse import ending
from fineflow.ir.weights import critical_path
from fineflow.options import Options

ENTRIES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


@cache
def rows() -> tuple[Row, ...]:
    """Everything that is recognised; of langchain-classic only what is installed, which the first call imports."""
    return (
        *structure.ROWS,
        *functions.ROWS,
        *history.ROWS,
        *tools.ROWS,
        *branches.ROWS,
        *prompts.ROWS,
        *models.ROWS,
        *parsers.ROWS,
        *parsers.classic_rows(),
        *retrievers.ROWS,
        *retrievers.classic_rows(),
        *retriever_lists.classic_rows(),
        *compressors.ROWS,
        *compressors.classic_rows(),
        *compressors.LAST,
    )


@dataclass(frozen=True)
class Plan:
    """How one object runs.

    objects: what was planned at which path. touched: the paths that the shadow copies. tapped: opaque steps among
    them. gain/gain_sync: whether the graph is expected to be sooner than stock for async and sync entry points;
    gain_streamed: for those that stream.
    own_batch: whether a step does something else in ``batch`` than to invoke itself for each input. snapshot: what the
    objects were like. shadows: what stock runs, for sync and for async calls, as far as there were such. bounded: the
    plan with what is needed to bound the calls of some components, by their paths.
    """

    p_graph: Graph
    e_graph: Graph
    objects: Mapping[str, Any]
    touched: frozenset[str]
    tapped: frozenset[str]
    gain: bool
    gain_sync: bool
    gain_streamed: bool
    own_batch: bool
    snapshot: Snapshot
    shadows: dict[bool, Shadows] = field(default_factory=dict, compare=False, repr=False)
    bounded: dict[frozenset[str], Plan] = field(default_factory=dict, compare=False, repr=False)

    @property
    def entries(self) -> tuple[str, ...]:
        """The methods that it is about."""
        return ENTRIES

    @property
    def remarks(self) -> tuple[str, ...]:
        return ()

    def gains(self, *, sync: bool, streaming: bool = False) -> bool:
        return (self.gain_sync if sync else self.gain) or (streaming and self.gain_streamed)

    def bounding(self, leaves: frozenset[str]) -> Plan:
        """The plan whose shadow also stands between stock and the components at these paths."""
        found = self.bounded.get(leaves)
        if found is None:
            opaque = {p.leaf for p in _all(self.e_graph) if p.op in FED and p.by_stock}
            touched = self.touched | (_paths(leaves) & self.objects.keys())
            found = replace(self, touched=touched, tapped=self.tapped | (leaves & opaque), shadows={}, bounded={})
            self.bounded[leaves] = found
        return found

    def ahead(self, *, eager: bool = False) -> tuple[str, ...]:
        """The methods whose calls run ahead of stock; the others go to the user's object."""
        found = []
        for sync, prefix in ((True, ""), (False, "a")):
            gain = self.gains(sync=sync)
            found += [f"{prefix}invoke"] * (gain or (eager and bool(self.touched)))
            found += [f"{prefix}stream"] * (self.gains(sync=sync, streaming=True) or (eager and bool(self.touched)))
            found += [f"{prefix}batch"] * (gain and not self.own_batch)
        return tuple(found)


def lower(runnable: Runnable[Any, Any], options: Options, *, text_input: bool) -> tuple[Graph, Mapping[str, Any]]:
    """The p-graph of a runnable, and the objects it was made from, by path.

    text_input: the input is text or numbers, or a dict of such, which no step can change under a reader.
    """
    b = Builder(rows(), options.assume_pure, contents=contents)
    value = b.lower(runnable, Leaf(Ref("input"), TEXT if text_input else UNKNOWN))
    output = b.whole(value)
    return Graph(tuple(b.primitives), output.ref, notes=tuple(b.notes)), b.objects


def decide(p_graph: Graph, e_graph: Graph, objects: Mapping[str, Any]) -> Plan:
    """What the shadow of a call has to replace, and whether running the graph ahead is expected to pay."""
    leaves = {p.leaf for p in _all(e_graph) if _meets_stock(p)}
    tapped = _wanted(e_graph, ended=False)
    leaves -= {p.leaf for p in _all(e_graph) if p.op in FED and p.by_stock} - tapped
    touched = _paths(leaves) & objects.keys()
    sooner = critical_path(e_graph)[0] < critical_path(p_graph)[0] or any(
        p.op is Op.PARTIAL_PREFILL for p in _all(e_graph)
    )
    written = [p for p in _all(e_graph) if p.op is Op.PARTIAL_DECODE]  # consumed meanwhile, if the model streams
    sooner = sooner or any(not p.meta.get("only_streamed") for p in written) or _asked(e_graph) < _asked(p_graph)
    serial = any(_one_by_one(p) for p in _all(e_graph))
    own_batch = any(branches.own_batch(obj) or history.writes(obj) for obj in objects.values())
    # Stock's batch writes for all inputs before it goes on with any.
    own_batch = own_batch or any(p.effects.writes for p in e_graph) or steps_meet(p_graph, objects)
    return Plan(
        p_graph,
        e_graph,
        objects,
        touched,
        tapped,
        gain=bool(touched) and sooner,
        gain_sync=bool(touched) and (sooner or serial),
        gain_streamed=bool(touched) and (sooner or any(not p.meta.get("invoked") for p in written)),
        own_batch=own_batch,
        snapshot=Snapshot(objects.values()),
    )


def _paths(leaves: Iterable[str]) -> frozenset[str]:
    """The leaves, and all that they are inside of."""
    return frozenset("/".join(leaf.split("/")[:i]) for leaf in leaves for i in range(len(leaf.split("/")) + 1))


def _asked(graph: Graph) -> int:
    """How often stores and their embeddings are asked: engines have a queue, in which equal requests are two."""
    asking = [p for p in _all(graph) if p.op in (Op.EMBED, Op.SEARCH) and not p.params.get("stage")]
    return len([p for p in asking if "same" not in p.params])


def _one_by_one(p: Primitive) -> bool:
    """Whether stock's sync methods do one by one what the graph does side by side."""
    return (p.op is Op.MAP and not p.meta.get("batched")) or (p.op is Op.AGGREGATE and len(p.args) > 1)


def _all(graph: Graph) -> list[Primitive]:
    """The primitives, and those in bodies of what runs ahead."""
    return [q for p in graph for q in (p, *(inner for body in _running(p) for inner in _all(body)))]


def _running(p: Primitive) -> list[Graph]:
    return [] if p.by_stock else [body for _, body in bodies(p)]


def _meets_stock(p: Primitive) -> bool:
    if p.by_stock:
        return p.op in FED
    claimable = p.meta.get("claimed") or p.op in (Op.DECODE, Op.PARTIAL_DECODE, Op.SEARCH, Op.RERANK)
    return claimable and not p.params.get("stage")


def _wanted(graph: Graph, *, ended: bool) -> frozenset[str]:
    """Leaves of steps by stock whose value or success somebody in the graph waits for.

    ended: whether somebody waits for the end of the graph as a whole.
    """
    running = [p for p in graph if not p.by_stock]
    names = {r.name for p in running for r in p.args.values()} | {n for p in running for n in p.after}
    names |= ending(graph) if ended else set()
    own = {p.leaf for p in graph if p.name in names and p.op in FED and p.by_stock}
    return frozenset(own).union(
        *(_wanted(body, ended=_waited(p, at, names)) for p in running for at, body in bodies(p))
    )


def _waited(p: Primitive, label: str, names: Set[str]) -> bool:
    return p.name in names or label.startswith("if ")
