"""Pass 2, stage decomposition (Ayo, section 4.3): large batches flow in stages of the engine's efficient batch size.

Three rewrites. A batch operation on many texts is submitted in stages of the efficient batch, so that the engine can
take more urgent work of other queries in between. Work that treats each document by itself (pairwise reranking,
embedding documents) starts for the documents of one search as soon as that search is back, instead of when all are.
And of maps in a row, each item goes through by itself (``map_chains``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.ir import Graph, Op, Primitive, Ref
from fineflow.ir.editor import GraphEditor
from fineflow.ir.traverse import ancestors, fresh, in_bodies
from fineflow.passes.map_chains import chained

_UNIONS = ("unique", "merge", "fusion")  # aggregates of the documents of several searches
_LEAST = 8  # texts: smaller stages cost more in submissions than they give others of an engine's time
_TEXTS = {Op.RERANK: "documents", Op.EMBED: "texts"}  # the argument that holds what is treated one by one


def stages(graph: Graph) -> Graph:
    """Each stage is a primitive of its own; the one it was taken from stays, and finds the results of its stages."""
    graph = chained(in_bodies(stages, graph))
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


def _size(p: Primitive) -> int:
    """Texts of a stage: the engine's efficient batch as far as it was measured, at most its largest; 0 for no limit."""
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
        """Runs ``p`` in stages: of the efficient batch size, and one for each search that can begin earlier."""
        if size := _size(p):
            p = self.edit.change(p.name, params={**p.params, "stages": size})
            self.edit.done(p.name, f"runs in stages of {size}, the engine's maximum efficient batch")
        union = self._graph.by_name.get(p.args[_TEXTS[p.op]].name)
        if union is None or not _unites(union):
            self.edit.refused(p.name, "its documents come from one place, all at once")
        elif union.meta.get("by_id"):
            self.edit.refused(p.name, "documents that share an id are dropped, and would be treated for nothing")
        else:
            parts = list(dict.fromkeys(self._parts(union)))
            own: list[str] = []
            refusals = [why for ref in parts if (why := self._stage(p, ref, own))]
            if len(refusals) < len(parts):
                # It waits for its stages anyway; the edges give them its urgency.
                self.edit.change(p.name, after=(*p.after, *own), meta={**p.meta, "staged": True})
                self.edit.done(p.name, "starts on the documents of each search when that search is back")
            for why in dict.fromkeys(refusals):
                self.edit.refused(p.name, why)

    def _parts(self, union: Primitive) -> Iterator[Ref]:
        """What is united, also by unions of unions."""
        for ref in union.args.values():
            inner = self._graph.by_name.get(ref.name)
            if inner is not None and _unites(inner) and not inner.meta.get("by_id"):
                yield from self._parts(inner)
            else:
                yield ref

    def _stage(self, p: Primitive, found: Ref, own: list[str]) -> str:
        """Puts a stage of ``p`` behind one of the searches whose results are united; the refusal, or "".

        Adds the stage's name to ``own`` where it stands in the same graph.
        """
        source = self._graph.by_name.get(found.name)
        if source is None or source.op not in (Op.SEARCH, Op.MAP):
            return f"{found.name} is not a search"
        others = {name: ref for name, ref in p.args.items() if name != _TEXTS[p.op]}
        # Along with its documents go the steps that lead to them; for all else it waits as before.
        after = tuple(name for name in p.after if name not in self._data[p.name])
        if source.op is Op.SEARCH:
            name = self.edit.fresh(f"{source.name}.{p.op}")
            args = {**others, _TEXTS[p.op]: found}
            self.edit.insert(p.with_(name=name, args=args, params=_each(p), after=after), before=p.name)
            own.append(name)
            return ""
        late = [name for name in (*(ref.name for ref in others.values()), *after) if not self._there(name, source)]
        if late:
            return f"what a stage needs of {late[0]} may come later than the documents of {source.name}"
        self.edit.put(self._stage_in_body(p, self.edit[source.name], others))
        return ""

    def _there(self, name: str, source: Primitive) -> bool:
        """Whether the value is there when ``source`` starts, without making it wait."""
        return name in self._graph.inputs or name in self._behind[source.name]

    def _stage_in_body(self, p: Primitive, source: Primitive, others: Mapping[str, Ref]) -> Primitive:
        body: Graph = source.body
        inner, outer = {_TEXTS[p.op]: body.output}, dict(source.args)
        for name, ref in others.items():
            # One name for one value: another stage in this body may read something else by the same name.
            given = fresh(name, {n for n, there in outer.items() if there != ref} | {"item"})
            inner[name], outer[given] = Ref(given), ref
        name = fresh(f"{body.output.name}.{p.op}", {q.name for q in body})
        stage = p.with_(name=name, args=inner, params=_each(p), after=())
        inputs = tuple(dict.fromkeys((*body.inputs, *(n for n in outer if n != "items"))))
        return source.with_(args=outer, body=Graph((*body.primitives, stage), body.output, inputs, body.notes))


def _each(p: Primitive) -> Mapping[str, Any]:
    return {**p.params, "stage": "each"}
