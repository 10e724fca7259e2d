"""Graphs as standalone SVG that adapts to light and dark mode.

Vertical position is the order in which primitives can start; primitives side by side can run concurrently. Thin solid
edges carry values, thick ones items one by one, dashed ones mark order only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from fineflow.ir.graph import Graph
from fineflow.ir.primitive import Effect, Op, Primitive
from fineflow.ir.spec import bodies, everything
from fineflow.ir.text import NO_MARKS, Marks, format_value, inside, tidy
from fineflow.observe.graph_layout import Box, Layout, Wire, layered

FAMILIES: dict[str, tuple[str, frozenset[Op]]] = {  # of operations; user functions that are not opaque are OWN
    "llm": ("language model", frozenset({Op.PREFILL, Op.PARTIAL_PREFILL, Op.DECODE, Op.PARTIAL_DECODE})),
    "find": ("retrieval", frozenset({Op.EMBED, Op.INGEST, Op.SEARCH, Op.RERANK})),
    "text": ("prompts and parsers", frozenset({Op.RENDER, Op.PARSE})),
    "flow": ("data and control", frozenset({Op.PICK, Op.RECORD, Op.AGGREGATE, Op.MAP, Op.CONDITION})),
    "tool": ("tool", frozenset({Op.TOOL})),
    "code": ("your own or unknown code, run by stock", frozenset({Op.CALL})),
}
OWN = ("own", "your functions without side effects")
COLOURS = {  # light, dark
    "llm": ("#4338ca", "#a5b4fc"),
    "find": ("#b45309", "#fbbf24"),
    "text": ("#0f766e", "#5eead4"),
    "flow": ("#64748b", "#94a3b8"),
    "tool": ("#a21caf", "#f0abfc"),
    "own": ("#15803d", "#86efac"),
    "code": ("#be123c", "#fda4af"),
}
EDGES = {"data": "a value", "stream": "items, one by one", "order": "waits for, reads nothing"}

_MONO, _SANS = 6.65, 6.6  # width of a character in pixels, at the sizes below
_LETTERS = 38  # of a name; longer ones lose their beginning, because the end tells them apart
_ROW = 15.0

STYLE = (
    ".ff{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;color-scheme:light dark;"
    "--ink:#1e293b;--dim:#64748b;--paper:#fff;--line:#94a3b8;--flow-line:#475569"
    + "".join(f";--{key}:{light}" for key, (light, _) in COLOURS.items())
    + "}@media(prefers-color-scheme:dark){.ff{--ink:#e2e8f0;--dim:#94a3b8;--paper:#0f172a;--line:#64748b;"
    "--flow-line:#cbd5e1" + "".join(f";--{key}:{dark}" for key, (_, dark) in COLOURS.items()) + "}}"
    ".ff text{fill:var(--ink)}.ff .op{font-weight:650}.ff .dim{fill:var(--dim);font-size:11px}"
    ".ff .name{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".ff .paper{fill:var(--paper)}.ff .box{stroke-width:1.2;fill-opacity:.1}.ff .bar{stroke:none}"
    ".ff .wire{fill:none;stroke:var(--line);stroke-width:1.3}.ff .tip{fill:var(--line)}"
    ".ff .stream .wire{stroke:var(--llm);stroke-width:3.2}.ff .stream .tip{fill:var(--llm)}"
    ".ff .order .wire{stroke:var(--dim);stroke-width:1.6;stroke-dasharray:5 4}"
    ".ff .arm{fill:var(--paper);stroke:var(--line);stroke-width:.8}"
    ".ff .edge.critical .wire{stroke:var(--ink);stroke-width:2.8}.ff .edge.critical .tip{fill:var(--ink)}"
    ".ff .pill{fill:var(--paper);stroke:var(--ink);stroke-width:1.3}"
    ".ff .edge:hover .wire{stroke:var(--ink);stroke-width:2.6}.ff .edge:hover .tip{fill:var(--ink)}"
    ".ff .node:hover .box{fill-opacity:.25}.ff .stock .box{stroke-dasharray:3 3}"
    + "".join(
        f".ff .{key} .box{{stroke:var(--{key});fill:var(--{key})}}.ff .{key} .bar,.ff .{key} .op{{fill:var(--{key})}}"
        for key in COLOURS
    )
    + ".ff .critical .box{stroke:var(--ink);stroke-width:3}"
)


def family(p: Primitive) -> str:
    """Returns the key in ``COLOURS`` of a primitive's family."""
    if p.op is Op.CALL and p.effects.kind is not Effect.OPAQUE:
        return "flow" if p.meta.get("handed") else OWN[0]
    return next(key for key, (_, ops) in FAMILIES.items() if p.op in ops)


def to_svg(graph: Graph, *, title: str = "", marks: Marks = NO_MARKS) -> str:
    """Renders one self-contained SVG; the tooltip of a box or an edge shows all details.

    Critical primitives of ``marks`` get a heavy frame, and so do the edges between them.
    """
    picture = _picture(graph, marks)
    margin = 12
    width, height = picture.width + 2 * margin, picture.height + 2 * margin
    label = escape(title or f"graph of {len(graph.primitives)} primitives")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ff" role="img" aria-label="{label}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="min-width:{0.8 * width:.0f}px"><style>{STYLE}</style>'
        f'<rect class="paper" width="100%" height="100%"/>'
        f'<g transform="translate({margin} {margin})">{picture.svg}</g></svg>'
    )


@dataclass(frozen=True, slots=True)
class _Picture:
    width: float
    height: float
    svg: str


@dataclass(frozen=True, slots=True)
class _Edge:
    kind: str
    title: str


def edges(graph: Graph) -> dict[tuple[str, str], _Edge]:
    """Returns the edges to draw, by names: data edges, and the order edges that no other path implies."""
    found: dict[tuple[str, str], _Edge] = {}
    waits_for: dict[str, set[str]] = {}
    for p in graph:
        for source in dict.fromkeys(ref.name for ref in p.args.values()):
            uses = {arg: ref for arg, ref in p.args.items() if ref.name == source}
            kind = "stream" if any(ref.stream for ref in uses.values()) else "data"
            reads = ", ".join(f"{arg}={ref}" for arg, ref in uses.items())
            found[source, p.name] = _Edge(kind, f"{p.name} reads {reads}")
        direct = {ref.name for ref in p.args.values()} | set(p.after)
        beyond = set().union(*(waits_for.get(name, set()) for name in direct))
        for source in p.after:
            if source not in beyond and (source, p.name) not in found:
                found[source, p.name] = _Edge("order", f"{p.name} waits for {source}")
        waits_for[p.name] = direct | beyond
    return found


def critical_edges(graph: Graph, marks: Marks, prefix: str = "") -> set[tuple[str, str]]:
    """Returns the edges between consecutive primitives of the critical path."""
    on = [p.name for p in graph if prefix + p.name in marks.critical]
    found = set()
    for before, after in pairwise(on):
        # Steps between them that take no time are not on the path itself.
        between = _between(graph, before, after)
        found |= {(a, b) for a, b in edges(graph) if a in between and b in between}
    return found


def _between(graph: Graph, first: str, last: str) -> set[str]:
    """Returns a shortest chain of primitives from the first to the last, over data and order edges."""
    before = {p.name: [*(ref.name for ref in p.args.values()), *p.after] for p in graph}
    came, front = {last: ""}, [last]
    while front and first not in came:
        front = [came.setdefault(n, name) and n for name in front for n in before.get(name, ()) if n not in came]
    chain, name = set[str](), first if first in came else ""
    while name:
        chain.add(name)
        name = came[name]
    return chain


def describe(p: Primitive) -> str:
    """Returns a tooltip: everything about a primitive, one fact per line."""
    lines = [f"{p.op}: {p.name}"]
    lines += [f"{arg} = {ref}" for arg, ref in p.args.items()]
    lines += [f"after {name}" for name in p.after]
    lines.append(f"effects: {p.effects}" + (f" ({p.effects.reason})" if p.effects.reason else ""))
    lines += [f"at: {p.meta['where']}"] if p.meta.get("where") else []
    lines += [f"engine: {p.engine}"] if p.engine else []
    lines += [f"depth: {p.depth} (longest path to the output)"] if p.depth >= 0 else []
    lines += [f"{key}: {format_value(value, 120)}" for key, value in p.params.items() if not key.startswith("_")]
    return "\n".join(lines)


def _picture(graph: Graph, marks: Marks, prefix: str = "") -> _Picture:
    used = {ref.name for p in graph for ref in p.args.values()} | {graph.output.name}
    nodes = {name: _pill(name, "input") for name in graph.inputs if name in used}
    nodes |= {p.name: _node(p, marks, prefix) for p in graph}
    wires = edges(graph)
    end = "\0output"
    nodes[end] = _pill("output", f"output: {graph.output}")
    wires[graph.output.name, end] = _Edge("stream" if graph.output.stream else "data", f"output = {graph.output}")
    placed = layered({name: (node.width, node.height) for name, node in nodes.items()}, list(wires))
    heavy = critical_edges(graph, marks, prefix)
    drawn = [
        _wire(wire, wires[wire.source, wire.target], (wire.source, wire.target) in heavy)
        for wire in _sorted_wires(placed, wires)
    ]
    drawn += [_at(placed.boxes[name], node.svg) for name, node in nodes.items()]
    return _Picture(placed.width, placed.height, "".join(drawn))


def _sorted_wires(placed: Layout, kinds: dict[tuple[str, str], _Edge]) -> list[Wire]:
    """Returns the wires, streams last, so that they are drawn on top."""
    return sorted(placed.wires, key=lambda wire: kinds[wire.source, wire.target].kind == "stream")


def _at(box: Box, svg: str) -> str:
    return f'<g transform="translate({box.x:.1f} {box.y:.1f})">{svg}</g>'


def _wire(wire: Wire, edge: _Edge, critical: bool) -> str:
    points = wire.points
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for index, (x, y) in enumerate(points[1:], start=1):
        before_x, before_y = points[index - 1]
        if index % 2 or abs(before_x - x) < 0.5:
            path.append(f"L{x:.1f} {y:.1f}")
        else:
            middle = (before_y + y) / 2
            path.append(f"C{before_x:.1f} {middle:.1f} {x:.1f} {middle:.1f} {x:.1f} {y:.1f}")
    x, y = points[-1]
    tip = f'<path class="tip" d="M{x:.1f} {y:.1f}l-3.6 -7.5h7.2z"/>'
    return (
        f'<g class="edge {edge.kind}{" critical" * critical}"><title>{escape(edge.title)}</title>'
        f'<path class="wire" d="{" ".join(path)}"/>{tip}</g>'
    )


def _pill(label: str, title: str) -> _Picture:
    label = _short(label)
    width = len(label) * _SANS + 28
    svg = (
        f'<g class="node"><title>{escape(title)}</title><rect class="pill" width="{width:.0f}" height="24" rx="12"/>'
        f'<text x="{width / 2:.1f}" y="16" text-anchor="middle">{escape(label)}</text></g>'
    )
    return _Picture(width, 24, svg)


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else "…" + name[-_LETTERS + 1 :]


def _remarks(p: Primitive) -> str:
    effects = "" if p.effects.kind is Effect.PURE else tidy(str(p.effects))
    return " · ".join(part for part in (_short(p.engine or ""), _short(effects)) if part)


def _node(p: Primitive, marks: Marks, prefix: str) -> _Picture:
    took = marks.of(prefix + p.name)
    lines = [("op", p.op.value + (f"   {took}" if took else "")), ("name", _short(p.name))]
    if remarks := _remarks(p):
        lines.append(("dim", remarks))
    inner = [(heading, _picture(body, marks, prefix + inside(p.name, heading))) for heading, body in bodies(p)]
    width = 22 + max(len(text) * (_MONO if kind == "name" else _SANS) for kind, text in lines)
    width = max(width, 92.0, 12 + sum(max(picture.width, len(text) * _SANS) + 24 for text, picture in inner))
    tallest = max((picture.height for _, picture in inner), default=0.0)
    height = 9 + _ROW * len(lines)
    rows = "".join(
        f'<text class="{kind}" x="12" y="{_ROW * (index + 1):.0f}">{escape(text)}</text>'
        for index, (kind, text) in enumerate(lines)
    )
    parts = []
    x = 20.0
    for heading, picture in inner:
        room = max(picture.width, len(heading) * _SANS)
        parts.append(
            f'<rect class="arm" x="{x - 8:.1f}" y="{height:.0f}" width="{room + 16:.1f}" height="{tallest + 36:.1f}" '
            'rx="5"/>'
            f'<text class="dim" x="{x:.0f}" y="{height + 15:.0f}">{escape(heading)}</text>'
            f'<g transform="translate({x:.1f} {height + 26:.1f})">{picture.svg}</g>'
        )
        x += room + 24
    if inner:
        height += tallest + 36 + 9
    stock = " stock" if p.by_stock else ""
    stock += " critical" if prefix + p.name in marks.critical else ""
    svg = (
        f'<g class="node {family(p)}{stock}"><title>{escape(describe(p))}</title>'
        f'<rect class="paper" width="{width:.1f}" height="{height:.1f}" rx="6"/>'
        f'<rect class="box" width="{width:.1f}" height="{height:.1f}" rx="6"/>'
        f'<rect class="bar" width="4" height="{height:.1f}" rx="2"/>{rows}</g>{"".join(parts)}'
    )
    return _Picture(width, height, svg)


def legend(graphs: Sequence[Graph], *, critical: str = "") -> Iterator[str]:
    """Yields HTML snippets that explain the colours in use and the edges; they need ``STYLE``.

    critical: meaning of the heavy frames, if there are any.
    """
    used = {family(p) for graph in graphs for p in everything(graph)}
    for key, name in (*((key, name) for key, (name, _) in FAMILIES.items()), OWN):
        if key in used:
            yield f'<span class="key"><i style="background:var(--{key})"></i>{escape(name)}</span>'
    if any(p.by_stock for graph in graphs for p in graph):
        yield '<span class="key"><i style="border:1.5px dashed"></i>dashed frame: run by stock itself</span>'
    if critical:
        yield f'<span class="key"><i style="border:2.5px solid var(--ink)"></i>{escape(critical)}</span>'
    for kind, name in EDGES.items():
        yield (
            f'<span class="key"><svg class="ff edge {kind}" width="34" height="10"><g class="edge {kind}">'
            f'<path class="wire" d="M1 5H27"/><path class="tip" d="M34 5l-8 -3.6v7.2z"/></g></svg>{escape(name)}</span>'
        )
