"""Pass 2, stage decomposition (Ayo, section 4.3): large batches run in stages of the engine's efficient batch size.

Four rewrites. A batch operation on many texts is submitted in stages of the efficient batch size, so that the engine
can take more urgent work of other queries in between. Work on each document separately (pairwise reranking, embedding
documents) starts on the documents of one search as soon as that search returns, instead of when all have, and on each
document that a map makes as soon as the map has made it. Items flow through consecutive maps independently
(``map_chains``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.editor import GraphEditor
from fineflow.ir.meta import CORES
from fineflow.ir.traverse import added_to_body, ancestors, in_bodies
from fineflow.ir.weights import waits_elsewhere
from fineflow.passes.gather import gathered
from fineflow.passes.made_each import MadeEach, made_each
from fineflow.passes.map_chains import chained

_UNIONS = ("unique", "merge", "fusion")  # aggregates of the documents of several searches
_LEAST = 8  # texts: smaller stages cost more in submissions than they free up on the engine for others
_TEXTS = {Op.RERANK: "documents", Op.EMBED: "texts"}  # the argument whose elements are processed separately


def stages(graph: Graph) -> Graph:
    """Splits off stages as primitives; the original primitive stays and collects their results."""
    graph = gathered(chained(in_bodies(stages, graph)))
    staging = _Staging(graph)
    for p in graph:
        if _one_by_one(p):
            staging.stage(p)
    return staging.edit.graph()


def _one_by_one(p: Primitive) -> bool:
    return (p.op is Op.RERANK and bool(p.params.get("pairwise"))) or (
        p.op is Op.EMBED and p.params.get("of") == "documents"
    )


def _unites(p: Primitive) -> bool:
    return p.op is Op.AGGREGATE and p.params.get("how") in _UNIONS


def _busy(p: Primitive) -> str:
    return f"until it has all documents the cores that {p.engine} needs are busy anyway"


def _size(p: Primitive) -> int:
    """Returns the texts per stage: the measured efficient batch, at most the engine's maximum; 0 for no limit."""
    largest: int = p.meta.get("max_batch") or 0
    learned = costs.efficient_batch(p.engine or "", p.op) if largest else None
    return largest if learned is None else min(largest, max(learned, _LEAST))


class _Staging:
    """Adds stages to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.edit = GraphEditor(graph, "stages")
        self._graph = graph
        self._behind = ancestors(graph, order=True)
        self._data = ancestors(graph, order=False)

    def stage(self, p: Primitive) -> None:
        """Runs ``p`` in stages of the efficient batch size, and in one per united search, which can start earlier."""
        if size := _size(p):
            p = self.edit.change(p.name, params={**p.params, "stages": size})
            self.edit.done(p.name, f"runs in stages of {size}, the engine's maximum efficient batch")
        found = p.args[_TEXTS[p.op]]
        union = self._graph.by_name.get(found.name)
        making = self._making(union) if union is not None and found.key is None and not found.stream else None
        if making is not None:
            if p.meta.get("device") == CORES and not waits_elsewhere(making.source):
                self.edit.refused(p.name, _busy(p))
            else:
                self._after_each(p, making)
        elif union is None or not _unites(union):
            self.edit.refused(p.name, "its documents come from one place, all at once")
        elif union.meta.get("by_id"):
            self.edit.refused(p.name, "documents that share an id are dropped, so work on them would be wasted")
        elif p.meta.get("device") == CORES and not any(map(waits_elsewhere, self._apart(union))):
            self.edit.refused(p.name, _busy(p))
        else:
            parts = list(dict.fromkeys(self._parts(union)))
            own: list[str] = []
            refusals = [why for ref in parts if (why := self._stage(p, ref, own))]
            if len(refusals) < len(parts):
                # It waits for its stages anyway; the edges pass its priority on to them.
                self.edit.change(p.name, after=(*p.after, *own), meta={**p.meta, "staged": True})
                self.edit.done(p.name, "starts on the documents of each search when that search returns")
            for why in dict.fromkeys(refusals):
                self.edit.refused(p.name, why)

    def _apart(self, union: Primitive) -> Iterator[Primitive]:
        """Yields what some of the united searches wait for, and others do not."""
        parts = [name for ref in self._parts(union) if (name := ref.name) in self._graph]
        behind = [self._behind[name] | {name} for name in parts]
        for name in frozenset().union(*behind) - frozenset.intersection(*behind):
            if name in self._graph:
                yield self._graph[name]

    def _making(self, union: Primitive) -> MadeEach | None:
        """Returns the map that makes documents one by one: ``union``, or one whose items ``union`` makes them of."""
        return MadeEach(union) if union.op is Op.MAP else made_each(union, self._graph)

    def _after_each(self, p: Primitive, making: MadeEach) -> None:
        """Inserts a stage of ``p`` into the body of the map that makes its documents, one document for each item."""
        source = making.source
        others = {name: ref for name, ref in p.args.items() if name != _TEXTS[p.op]}
        after = (name for name in p.after if name not in self._data[p.name])
        if why := self._too_late(source, {**others, **making.given}, after):
            self.edit.refused(p.name, why)
            return
        mapped, document = making.in_body(self.edit[source.name])
        self.edit.put(self._stage_in_body(p, mapped, others, "one", document))
        self.edit.change(p.name, meta={**p.meta, "staged": True})
        self.edit.done(p.name, f"starts on each document when {source.name} has made {making.what}")

    def _parts(self, union: Primitive) -> Iterator[Ref]:
        """Yields the references that are united, unions of unions included."""
        for ref in union.args.values():
            inner = self._graph.by_name.get(ref.name)
            if inner is not None and _unites(inner) and not inner.meta.get("by_id"):
                yield from self._parts(inner)
            else:
                yield ref

    def _stage(self, p: Primitive, found: Ref, own: list[str]) -> str:
        """Inserts a stage of ``p`` after one of the united searches. Returns the refusal, or "".

        Adds the stage's name to ``own`` if it is in the same graph.
        """
        source = self._graph.by_name.get(found.name)
        if source is None or source.op not in (Op.SEARCH, Op.MAP):
            return f"{found.name} is not a search"
        others = {name: ref for name, ref in p.args.items() if name != _TEXTS[p.op]}
        # Order edges to data ancestors of ``p`` are dropped: the stage waits for its own documents only. Others stay.
        after = tuple(name for name in p.after if name not in self._data[p.name])
        if source.op is Op.SEARCH:
            name = self.edit.fresh(f"{source.name}.{p.op}")
            args = {**others, _TEXTS[p.op]: found}
            self.edit.insert(p.with_(name=name, args=args, params=_each(p), after=after), before=p.name)
            own.append(name)
            return ""
        if late := self._too_late(source, others, after):
            return late
        self.edit.put(self._stage_in_body(p, self.edit[source.name], others))
        return ""

    def _too_late(self, source: Primitive, others: Mapping[str, Ref], after: Iterable[str]) -> str:
        """Returns why a stage in the body of ``source`` might have to wait for something else; "" if it does not."""
        late = [name for name in (*(ref.name for ref in others.values()), *after) if not self._there(name, source)]
        return f"what a stage needs of {late[0]} may come later than the documents of {source.name}" if late else ""

    def _there(self, name: str, source: Primitive) -> bool:
        """Returns True if the value is ready when ``source`` starts, without making it wait."""
        return name in self._graph.inputs or name in self._behind[source.name]

    def _stage_in_body(
        self, p: Primitive, source: Primitive, others: Mapping[str, Ref], of: str = "each", found: Ref | None = None
    ) -> Primitive:
        """Returns the map with a stage in its body. found: the documents there; None for the body's output."""
        body: Graph = source.body
        found = found or body.output
        stage = p.with_(name=f"{found.name}.{p.op}", args={_TEXTS[p.op]: found}, params=_each(p, of), after=())
        return added_to_body(source, stage, others)


def _each(p: Primitive, of: str = "each") -> Mapping[str, Any]:
    """Returns the parameters of a stage: on ``each`` of a list of documents, or on ``one`` document."""
    return {**p.params, "stage": of}
