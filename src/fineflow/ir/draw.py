"""Graphs as pictures: Mermaid source here, SVG from ``ir/svg.py``, the page around them from ``ir/page.py``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from fineflow.ir.graph import Graph
from fineflow.ir.page import to_html
from fineflow.ir.primitive import Primitive
from fineflow.ir.spec import bodies
from fineflow.ir.svg import COLOURS, edges, family, to_svg
from fineflow.ir.text import tidy

__all__ = ["to_html", "to_mermaid", "to_svg"]

_ARROWS = {"data": "-->", "stream": "==>", "order": "-.->"}


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart (as Markdown renderers draw it), bodies as subgraphs; the same from run to run."""
    lines = ["flowchart TD", *_flow(graph, count(), "  ")]
    for key, (colour, _) in COLOURS.items():
        lines.append(f"  classDef {key} stroke:{colour},stroke-width:2px")
    return "\n".join(lines)


def _flow(graph: Graph, numbers: count[int], indent: str) -> Iterator[str]:
    wires = edges(graph)
    used = {source for source, _ in wires} | {graph.output.name}
    ids: dict[str, str] = {}
    for name in graph.inputs:
        if name in used:
            ids[name] = f"n{next(numbers)}"
            yield f"{indent}{ids[name]}([{_quoted(name)}])"
    for p in graph:
        ids[p.name] = f"n{next(numbers)}"
        yield from _node(p, ids[p.name], numbers, indent)
    for (source, target), edge in wires.items():
        yield f"{indent}{ids[source]} {_ARROWS[edge.kind]} {ids[target]}"
    end = f"n{next(numbers)}"
    yield f"{indent}{ids[graph.output.name]} --> {end}([{_quoted('output')}])"


def _node(p: Primitive, key: str, numbers: count[int], indent: str) -> Iterator[str]:
    remarks = " · ".join(text for text in (p.engine, "" if str(p.effects) == "pure" else tidy(str(p.effects))) if text)
    label = _quoted(p.op.value, p.name, remarks)
    yield f"{indent}{key}[{label}]:::{family(p.op)}"
    for heading, body in bodies(p):
        inner = f"g{next(numbers)}"
        yield f"{indent}subgraph {inner} [{_quoted(f'{p.name}: {heading}')}]"
        yield from _flow(body, numbers, indent + "  ")
        yield f"{indent}end"
        yield f"{indent}{key} -.- {inner}"


def _quoted(*lines: str) -> str:
    """A label: every character that Mermaid, Markdown or HTML could take as its own becomes an entity."""

    def safe(text: str) -> str:
        return "".join(c if c.isalnum() or c in " /.-:,()[]·…" else f"#{ord(c)};" for c in text)

    return '"' + "<br/>".join(safe(line) for line in lines if line) + '"'
