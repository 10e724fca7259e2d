"""Pass 4, decode pipelining (Ayo, section 4.3): a generated list is consumed while it is being generated."""

from __future__ import annotations

from dataclasses import replace

from fineflow.ir import Graph, Note, Op, Primitive
from fineflow.ir.edit import in_bodies, replaced


def decode(graph: Graph) -> Graph:
    """DECODE → list-producing PARSE → MAP becomes PARTIAL_DECODE → PARSE ... → MAP over a stream of items."""
    graph = in_bodies(decode, graph)
    changes: dict[str, tuple[Primitive, ...]] = {}
    notes: list[Note] = []
    for consumer in graph:
        if consumer.op is not Op.MAP:
            continue
        parse = graph.by_name.get(consumer.args["items"].name)
        made = graph.by_name.get(next(iter(parse.args.values())).name) if parse and parse.op is Op.PARSE else None
        if parse is None or made is None or made.op is not Op.DECODE:
            notes.append(Note("decode", consumer.name, False, "its items are not parsed from what a model writes"))
            continue
        if refusal := _refusal(parse, made, graph):
            notes.append(Note("decode", made.name, False, refusal))
            continue
        changes[made.name] = (made.with_(op=Op.PARTIAL_DECODE),)
        args = {name: replace(ref, stream=True) for name, ref in parse.args.items()}
        changes[parse.name] = (parse.with_(args=args),)
        args = {name: replace(ref, stream=name == "items") for name, ref in consumer.args.items()}
        changes[consumer.name] = (consumer.with_(args=args),)
        unit = str(parse.params["items"]).removesuffix("s")
        text = f"each {unit} goes to {consumer.name} as soon as no later token can change it"
        notes.append(Note("decode", made.name, True, text))
    return graph.with_primitives(replaced(graph, changes), notes)


def _refusal(parse: Primitive, made: Primitive, graph: Graph) -> str:
    if not parse.params.get("items"):
        return f"it is not known when an item of {type(parse.component).__name__} is final"
    if why := made.meta.get("whole"):
        return str(why)
    if graph.output.name in (made.name, parse.name):
        return "it is the answer as a whole"
    for name in (n for p in (made, parse) for n in graph.users.get(p.name, ())):
        reader = graph[name]
        piecewise = [(arg, ref.name) for arg, ref in reader.args.items() if ref.name in (made.name, parse.name)]
        if piecewise != [("items", parse.name)] * (reader.op is Op.MAP) and name != parse.name:
            return f"{name} reads it as a whole"
    return ""
