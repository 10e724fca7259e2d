"""Part of pass 2: of two consecutive maps, the second starts on an item as soon as the first has finished it.

Stock finishes all items of the first before any of the second. Fused, each item flows independently, and the slowest
item of one step does not hold up the others in the next.
"""

from __future__ import annotations

from collections.abc import Mapping

from fineflow.ir import Effect, Graph, Op, Primitive, Ref
from fineflow.ir.editor import GraphEditor
from fineflow.ir.traverse import ancestors, combined, fresh, pointed, redirected
from fineflow.ir.weights import weight


def chained(graph: Graph) -> Graph:
    """Fuses MAP → MAP into one MAP with both bodies in sequence, unless another step reads the value in between."""
    edit = GraphEditor(graph, "stages")
    behind = ancestors(graph, order=True)
    for p in graph:
        ref = p.args["items"] if p.op is Op.MAP else None
        first = edit[ref.name] if ref is not None and ref.name in edit else None
        if ref is not None and first is not None and first.op is Op.MAP and not ref.stream and ref.key is None:
            if refusal := _refusal(first, p, graph, behind):
                edit.refused(p.name, refusal)
            else:
                edit.remove(first.name)
                edit.put(_fused(first, p))
                edit.done(p.name, f"starts on each item when {first.name} has finished it")
    return edit.graph()


def _refusal(first: Primitive, second: Primitive, graph: Graph, behind: Mapping[str, frozenset[str]]) -> str:
    waiting = [q.name for q in graph if q.name != second.name and first.name in q.after]
    others = [name for name in (*graph.users.get(first.name, ()), *waiting) if name != second.name]
    if others or graph.output.name == first.name:
        return f"{others[0] if others else 'the answer'} needs all that {first.name} makes"
    for p, other in ((first, second), (second, first)):
        if p.effects.kind is Effect.OPAQUE or p.effects.writes:
            return f"{p.name} has effects, which stay before or after all of {other.name}"
    early = {*graph.inputs, first.name, *behind[first.name]}
    late = [name for name in (*(ref.name for ref in second.args.values()), *second.after) if name not in early]
    if late:
        return f"what it needs of {late[0]} may come later than the items of {first.name}"
    read = [ref for q in second.body for ref in q.args.values() if ref.name == "item"]
    if first.body.output.key is not None and any(ref.key is not None for ref in read):
        return f"it reads a part of what {first.name} picks"
    return ""


def _fused(first: Primitive, second: Primitive) -> Primitive:
    """Returns the second map, over the items of the first, with the body of the first before its own."""
    one: Graph = first.body
    two: Graph = second.body
    args = dict(first.args)
    renamed: dict[str, Ref] = {"item": one.output}
    for name, ref in second.args.items():
        if name != "items":
            other = {n for n, there in args.items() if there != ref}  # one name per value
            given = fresh(name, {"item", *other, *(q.name for q in one)})
            renamed[name], args[given] = Ref(given), ref
    taken = {*one.inputs, *args, *(q.name for q in one)}
    for q in two:
        renamed[q.name] = Ref(fresh(q.name, taken))
        taken.add(renamed[q.name].name)
    inputs = tuple(dict.fromkeys(("item", *one.inputs, *(name for name in args if name != "items"))))
    moved = (redirected(q, renamed).with_(name=renamed[q.name].name) for q in two)
    body = Graph((*one, *moved), pointed(two.output, renamed), inputs, (*one.notes, *two.notes))
    overlap = first.meta.get("overlap", 0.0) + min(weight(first), weight(second)) / 2  # as for other stages
    after = tuple(dict.fromkeys((*first.after, *(name for name in second.after if name != first.name))))
    return second.with_(
        args=args,
        body=body,
        after=after,
        effects=combined((first.effects, second.effects)),
        meta={
            **second.meta,
            "overlap": overlap,
            "batched": bool(first.meta.get("batched") and second.meta.get("batched")),
        },
    )
