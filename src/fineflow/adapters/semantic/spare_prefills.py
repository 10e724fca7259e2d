"""Keeps the early prefills of a program that pay: those during which their engine would have nothing else to do for it.

While an engine writes one text, prefilling the beginning of another prompt slows the writing by about as much as it
saves later, and the blocks may be evicted before they are used. A program consists of little else than such waits, so
only what waits for another engine, or for the user's functions, is prefilled ahead.
"""

from __future__ import annotations

from fineflow.ir import Graph, Op, Primitive
from fineflow.ir.editor import GraphEditor
from fineflow.passes.beginnings import Ready

_SOURCES = ("prefill", "fanout")


def spare_prefills(graph: Graph) -> Graph:
    """Removes each PARTIAL_PREFILL that waits for nothing but texts of its own engine; notes why."""
    edit, ready = GraphEditor(graph, "prefill"), Ready(graph)
    gone = {p.name: p for p in graph if p.op is Op.PARTIAL_PREFILL and _competes(p, graph, ready)}
    if not gone:
        return graph
    for p in graph:  # what several of them would have shared
        sharing = [each.name for each in graph if each.params.get("shares") == p.name]
        if p.op is Op.PARTIAL_PREFILL and sharing and gone.keys() >= set(sharing):
            gone[p.name] = p
    kept = {_place(p) for p in graph if p.op is Op.PARTIAL_PREFILL and p.name not in gone}
    places = [place for place in dict.fromkeys(map(_place, gone.values())) if place not in kept]
    untrue = {*gone, *(f"{place}.prefill" for place in places)}
    edit.retract([note for note in edit.earlier if note.done and note.source in _SOURCES and note.where in untrue])
    for name in gone:
        edit.remove(name)
    for p in edit:
        params = {key: value for key, value in p.params.items() if key != "shares" or value not in gone}
        after = tuple(name for name in p.after if name not in gone)
        if params != p.params or after != p.after:
            edit.change(p.name, params=params, after=after)
    for place in places:
        engine = graph[f"{place}.prefill"].engine
        edit.refused(f"{place}.prefill", f"{engine} itself writes what it waits for, and would be slowed by as much")
    return edit.graph()


def _place(p: Primitive) -> str:
    return p.name.partition(".partial_prefill")[0].partition(".shared_prefill")[0]


def _competes(p: Primitive, graph: Graph, ready: Ready) -> bool:
    until = p.meta.get("until", "")
    known = ready.waits(*(ref.name for ref in p.args.values()), *p.after)
    late = ready.waits(until) - known if until in graph else frozenset()
    return bool(late) and all(graph[name].engine == p.engine and graph[name].op is Op.DECODE for name in late)
