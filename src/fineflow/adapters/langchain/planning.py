"""From a runnable to a plan: its p-graph, what its shadow has to replace, and whether running ahead pays off."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache, partial
from itertools import combinations, takewhile
from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from fineflow.adapters.core.builder import TEXT, UNKNOWN, Leaf
from fineflow.adapters.core.durations import brief, slow
from fineflow.adapters.core.framework import Lowered
from fineflow.adapters.core.plan import Plan, asked, running, with_containers
from fineflow.adapters.core.recognition import Row, find
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering import (
    branches,
    configurable,
    example_selectors,
    functions,
    history,
    models,
    parsers,
    prompts,
    recovery,
    routing,
    structure,
    tools,
    whole_parsers,
)
from fineflow.adapters.langchain.lowering.configurable import NOTHING, Way
from fineflow.adapters.langchain.lowering.retrieval import compressors, indexing, retriever_lists, retrievers
from fineflow.adapters.langchain.lowering.retrieval.queries_ahead import embed_queries
from fineflow.adapters.langchain.run_recorder import lessons
from fineflow.adapters.langchain.stores.facts import EMBEDS, contents
from fineflow.adapters.langchain.user_functions import calls_in_its_context
from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.primitive import FED
from fineflow.ir.spec import bodies, everything
from fineflow.ir.traverse import ending
from fineflow.ir.weights import critical_path
from fineflow.options import Options
from fineflow.runtime import servers

ENTRIES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")

_OWN = (Effect.OPAQUE, Effect.UNORDERED)


def rows() -> tuple[Row, ...]:
    """Returns all recognised constructs; those of langchain-classic once somebody has imported it: that takes long."""
    return _rows(sys.modules.get("langchain_classic.retrievers") is not None)


@cache
def _rows(classic: bool) -> tuple[Row, ...]:
    return (
        *structure.ROWS,
        *recovery.ROWS,
        *configurable.ROWS,
        *functions.ROWS,
        *history.ROWS,
        *indexing.ROWS,
        *tools.ROWS,
        *branches.ROWS,
        *routing.ROWS,
        *prompts.ROWS,
        *example_selectors.ROWS,
        *models.ROWS,
        *parsers.ROWS,
        *(parsers.classic_rows() if classic else ()),
        *whole_parsers.ROWS,
        *whole_parsers.CLASSIC,
        *whole_parsers.LAST,
        *retrievers.ROWS,
        *((*retrievers.classic_rows(), *retriever_lists.classic_rows()) if classic else ()),
        *retrievers.ANY,
        *compressors.ROWS,
        *(compressors.classic_rows() if classic else ()),
        *compressors.LAST,
    )


def lower(runnable: Runnable[Any, Any], options: Options, text_input: bool | Way) -> tuple[Graph, Lowered]:
    """Returns the p-graph of a runnable, and what lowering read.

    text_input: the input is text or numbers, or a dict of these, which no step can change under a reader; with
    configurable values a ``Way``.
    """
    constant, configured = text_input if isinstance(text_input, Way) else (text_input, NOTHING)
    b = ChainBuilder(rows(), options.assume_pure, options.trust == "interfaces", contents=contents)
    b.configurable, b.queries, b.stream_answers = configured.values, embed_queries, options.stream_answers
    value = b.lower(runnable, Leaf(Ref("input"), TEXT if constant else UNKNOWN))
    output = b.whole(value)
    graph = Graph(tuple(b.primitives), output.ref, notes=tuple(b.notes))
    return graph, Lowered(runnable, text_input, options, b)


def decide(p_graph: Graph, e_graph: Graph, lowered: Lowered) -> Plan:
    """Decides what the shadow of a call has to replace, and for which entry points running ahead pays."""
    objects = lowered.builder.objects
    leaves = {p.leaf for p in running(e_graph) if _meets_stock(p)}
    inside = frozenset(p.leaf for p in running(e_graph) if p.meta.get("inside"))
    tapped = _wanted(e_graph, ended=False) | inside
    leaves -= {p.leaf for p in running(e_graph) if p.op in FED and p.by_stock} - tapped
    touched = with_containers(leaves) & objects.keys()
    batched = _batched(p_graph, e_graph, objects)
    return Plan(
        lowered.way,
        p_graph,
        e_graph,
        ENTRIES,
        _paying(p_graph, e_graph, batched) if touched else frozenset(),
        objects,
        _snapshot(p_graph, objects),
        touched,
        touched,
        tapped,
        inside,
        batched=batched,
        any_input=not any(map(_depends_on_input, everything(p_graph))),
    )


def _batched(p_graph: Graph, e_graph: Graph, objects: Mapping[str, Any]) -> bool:
    """Returns True if a batch may run as one call per input; stock's batch runs each step for all inputs."""
    own = any(branches.own_batch(obj) or history.writes(obj) for obj in objects.values())
    # In a step, stock's batch of the whole sets no config for the calls that it makes: no handler hears of them.
    unheard = any(calls_in_its_context(obj) for path, obj in objects.items() if path)
    # Stock's batch writes for all inputs before it goes on with any of them.
    return not (own or unheard or any(p.effects.writes for p in e_graph) or steps_meet(p_graph, objects))


def _paying(p_graph: Graph, e_graph: Graph, batched: bool) -> frozenset[str]:
    """Returns the entry points whose calls are expected to be faster than stock's."""
    shorter = critical_path(e_graph)[0] < critical_path(p_graph)[0] or any(
        p.op is Op.PARTIAL_PREFILL for p in running(e_graph)
    )
    inside = any(p.meta.get("inside") for p in running(e_graph))
    written = [p for p in running(e_graph) if p.op is Op.PARTIAL_DECODE]  # consumed meanwhile, if the model streams
    shorter = shorter or any(not p.meta.get("only_streamed") for p in written) or asked(e_graph) < asked(p_graph)
    serial = any(_one_by_one(p) for p in running(e_graph))
    streamed = any(not p.meta.get("invoked") for p in written)
    found = set[str]()
    for prefix, gain in (("", shorter or serial), ("a", shorter)):
        found |= {f"{prefix}invoke"} if gain or inside else set()
        found |= {f"{prefix}stream"} if gain or streamed or inside else set()
        found |= {f"{prefix}batch"} if (gain and batched) or inside else set()
    return frozenset(found)


def _snapshot(p_graph: Graph, objects: Mapping[str, Any]) -> Snapshot:
    """Returns the snapshot of the objects; the plan is stale once it no longer matches.

    Settings that a component reads when it runs (``search_kwargs``, ``top_n``, a temperature) are not in it: they are
    read when it runs in the graph, too.
    """
    planned = [(obj, find(rows(), obj)) for obj in objects.values()]
    watched = [(obj, row.reads if row is not None else ()) for obj, row in planned]
    # Whether nothing has to wait for a function that stock runs is decided here; the kernel checks the others.
    unordered = [p for p in everything(p_graph) if p.effects.kind is Effect.UNORDERED and p.by_stock]
    verdicts = [p.meta["verdict"].still_holds for p in unordered]
    pure = [p for p in everything(p_graph) if p.op is Op.CALL and "reads" in p.meta]
    durations = [partial(brief if p.meta.get("claimed") else slow, p.component.func) for p in pure]
    return Snapshot(watched, _called(planned), (lessons, servers.changes, *verdicts, *durations))


def _called(planned: Iterable[tuple[Any, Row | None]]) -> Iterator[tuple[type, str]]:
    """Yields the methods of components that the graph calls, once per class."""
    kinds: list[tuple[type, tuple[str, ...]]] = []
    for obj, row in planned:
        if row is None:
            kinds.append((type(obj), EMBEDS))  # the embeddings of a store that is written to
        elif row.calls:
            kinds += [(type(each), row.calls) for each in (obj, *row.components(obj))]
    yield from dict.fromkeys((kind, name) for kind, names in kinds for name in names)


def _one_by_one(p: Primitive) -> bool:
    """Returns True if stock's sync methods do one by one what the graph does concurrently."""
    return (p.op is Op.MAP and not p.meta.get("batched")) or (p.op is Op.AGGREGATE and len(p.args) > 1)


def _depends_on_input(p: Primitive) -> bool:
    """Returns True for steps that are lowered by whether their input is text: user functions, and what is opaque."""
    function = isinstance(p.component, RunnableLambda) and "model" not in p.meta  # langchain-openai's parser is known
    return function or p.effects.kind is Effect.OPAQUE


def _meets_stock(p: Primitive) -> bool:
    if p.by_stock:
        return p.op in FED
    claimable = p.meta.get("claimed") or p.op in (Op.DECODE, Op.PARTIAL_DECODE, Op.SEARCH, Op.RERANK)
    return bool(claimable) and not p.params.get("stage")


def _wanted(graph: Graph, *, ended: bool) -> frozenset[str]:
    """Returns the leaves of stock's steps whose value or success some primitive of the graph waits for.

    ended: something waits for the end of the graph as a whole.
    """
    own = [p for p in graph if not p.by_stock]
    names = {r.name for p in own for r in p.args.values()} | {n for p in own for n in p.after}
    names |= ending(graph) if ended else set()
    found = {p.leaf for p in graph if p.name in names and p.op in FED and p.by_stock}
    return frozenset(found).union(*(_wanted(body, ended=_waited(p, at, names)) for p in own for at, body in bodies(p)))


def _waited(p: Primitive, label: str, names: Set[str]) -> bool:
    return p.name in names or label.startswith("if ")


def steps_meet(graph: Graph, objects: Mapping[str, Any]) -> bool:
    """Returns True if steps that stock's batch runs one after the other could observe the order of inputs.

    The batch of a sequence runs a step for all inputs before it runs the next step for any. The order can be observed
    if one of two steps is opaque user code and the other one is opaque, too, or reads something: a counter that the
    first step increments has counted all inputs when the second step reads it. It can also be observed if both print.

    graph: as lowered. objects: the lowered objects, by path.
    """
    telling = [p for p in graph if p.effects.kind in _OWN or p.effects.touched]
    return any(
        _observable(one.effects.kind, other.effects.kind) and _kept_apart(one.leaf, other.leaf, objects)
        for one, other in combinations(telling, 2)
    )


def _observable(one: Effect, other: Effect) -> bool:
    return Effect.OPAQUE in (one, other) or one is other is Effect.UNORDERED


def _kept_apart(one: str, other: str, objects: Mapping[str, Any]) -> bool:
    """Returns True if two paths diverge at a sequence whose own ``batch`` runs when the whole object is batched."""
    pairs = zip(one.split("/"), other.split("/"), strict=False)
    common = [step for step, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    way = [objects.get("/".join(common[:end])) for end in range(len(common) + 1)]
    return isinstance(way[-1], RunnableSequence) and all(
        isinstance(obj, (RunnableSequence, RunnableBindingBase)) for obj in way
    )
