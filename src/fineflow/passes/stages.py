"""Pass 2, stage decomposition (Ayo, section 4.3): large batches flow in stages of the engine's efficient batch size.

Two rewrites. A batch operation on many texts is submitted in stages of ``max_batch``, so that the engine can take
more urgent work of other queries in between. And work that treats each document by itself (pairwise reranking,
embedding documents) starts for the documents of one search as soon as that search is back, instead of when all are.
"""

from __future__ import annotations

from fineflow.ir import Graph, Note, Op, Primitive, Ref
from fineflow.ir.edit import replaced


def stages(graph: Graph) -> Graph:
    changes: dict[str, tuple[Primitive, ...]] = {}
    notes: list[Note] = []
    for p in graph:
        if not _per_document(p):
            continue
        p = _sized(p, notes)
        changes[p.name] = (p,)
        union = graph.by_name.get(p.args[_documents(p)].name)
        if union is None or union.op is not Op.AGGREGATE or union.params.get("how") != "unique":
            notes.append(Note("stages", p.name, False, "its documents come from one place, all at once"))
            continue
        _spread(p, union, graph, changes, notes)
    return graph.with_primitives(replaced(graph, changes), notes)


def _per_document(p: Primitive) -> bool:
    return (p.op is Op.RERANK and bool(p.params.get("pairwise"))) or (
        p.op is Op.EMBED and p.params.get("of") == "documents"
    )


def _documents(p: Primitive) -> str:
    return "documents" if p.op is Op.RERANK else "texts"


def _sized(p: Primitive, notes: list[Note]) -> Primitive:
    size = p.meta.get("max_batch")
    if not size:
        return p
    notes.append(Note("stages", p.name, True, f"runs in stages of {size}, the engine's maximum efficient batch"))
    return p.with_(params={**p.params, "stages": size})


def _spread(
    p: Primitive, union: Primitive, graph: Graph, changes: dict[str, tuple[Primitive, ...]], notes: list[Note]
) -> None:
    """Puts a copy of ``p`` behind every search that ``union`` unites; ``p`` itself then finds their results."""
    outer = {name: ref for name, ref in p.args.items() if name != _documents(p)}
    if any(ref.name in graph and graph[ref.name].op is not Op.PICK for ref in outer.values()):
        notes.append(Note("stages", p.name, False, "its query is computed, and may come later than the documents"))
        return
    for ref in union.args.values():
        source = graph.by_name.get(ref.name)
        if source is None:
            continue
        (source,) = changes.get(source.name, (source,))[:1]
        if source.op is Op.MAP:
            body = source.body
            stage = _stage(p, f"{body.output.name}.{p.op}", {**{n: Ref(n) for n in outer}, _documents(p): body.output})
            new_body = Graph((*body.primitives, stage), body.output, (*body.inputs, *outer), body.notes)
            changes[source.name] = (source.with_(args={**source.args, **outer}, body=new_body),)
        elif source.op is Op.SEARCH:
            stage = _stage(p, f"{source.name}.{p.op}", {**outer, _documents(p): ref})
            changes[source.name] = (source, stage)
    notes.append(Note("stages", p.name, True, "starts on the documents of each search when that search is back"))


def _stage(p: Primitive, name: str, args: dict[str, Ref]) -> Primitive:
    return p.with_(name=name, args=args, params={**p.params, "stage": "each"}, after=())
