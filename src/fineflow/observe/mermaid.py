"""Drawings of graphs: Mermaid source here, SVG in ``observe/plan_svg.py``, the page in ``observe/plan_page.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from fineflow.ir.graph import Graph
from fineflow.ir.primitive import Primitive
from fineflow.ir.spec import bodies
from fineflow.ir.text import NO_MARKS, Marks, inside, tidy
from fineflow.observe.plan_page import to_html
from fineflow.observe.plan_svg import COLOURS, edges, family, to_svg

__all__ = ["to_html", "to_mermaid", "to_svg"]

_ARROWS = {"data": "-->", "stream": "==>", "order": "-.->"}


def to_mermaid(graph: Graph, *, marks: Marks = NO_MARKS) -> str:
    """Renders a Mermaid flowchart (for Markdown renderers), bodies as subgraphs; deterministic.

    Critical primitives of ``marks`` get a heavy frame.
    """
    heavy: list[str] = []
    inner: list[str] = []
    lines = ["flowchart TD", *_Flow(marks, heavy, inner).lines(graph, "  ", "")]
    for key, (colour, _) in COLOURS.items():
        lines.append(f"  classDef {key} stroke:{colour},stroke-width:2px")
    if inner:
        lines += [f"  classDef body fill:none,stroke:{COLOURS['flow'][0]}", f"  class {','.join(inner)} body"]
    if heavy:
        lines += ["  classDef critical stroke-width:5px", f"  class {','.join(heavy)} critical"]
    return "\n".join(lines)


@dataclass(slots=True)
class _Flow:
    """Writes nested graphs with consecutive node numbers.

    ``heavy`` collects the nodes on the critical path, ``bodies`` the subgraphs.
    """

    marks: Marks
    heavy: list[str]
    bodies: list[str]
    numbers: count[int] = field(default_factory=count)

    def lines(self, graph: Graph, indent: str, prefix: str) -> Iterator[str]:
        wires = edges(graph)
        used = {source for source, _ in wires} | {graph.output.name}
        ids: dict[str, str] = {}
        for name in graph.inputs:
            if name in used:
                ids[name] = f"n{next(self.numbers)}"
                yield f"{indent}{ids[name]}([{_quoted(name)}])"
        for p in graph:
            ids[p.name] = f"n{next(self.numbers)}"
            yield from self._node(p, ids[p.name], indent, prefix)
        for (source, target), edge in wires.items():
            yield f"{indent}{ids[source]} {_ARROWS[edge.kind]} {ids[target]}"
        end = f"n{next(self.numbers)}"
        yield f"{indent}{ids[graph.output.name]} --> {end}([{_quoted('output')}])"

    def _node(self, p: Primitive, key: str, indent: str, prefix: str) -> Iterator[str]:
        effects = "" if str(p.effects) == "pure" else tidy(str(p.effects))
        remarks = " · ".join(text for text in (p.engine, effects) if text)
        took = self.marks.of(prefix + p.name)
        if prefix + p.name in self.marks.critical:
            self.heavy.append(key)
        yield f"{indent}{key}[{_quoted(f'{p.op.value} {took}'.rstrip(), p.name, remarks)}]:::{family(p)}"
        for heading, body in bodies(p):
            inner = f"g{next(self.numbers)}"
            self.bodies.append(inner)
            yield f"{indent}subgraph {inner} [{_quoted(f'{p.name}: {heading}')}]"
            yield f"{indent}  direction TB"
            yield from self.lines(body, indent + "  ", prefix + inside(p.name, heading))
            yield f"{indent}end"
            yield f"{indent}{key} -.- {inner}"


def _quoted(*lines: str) -> str:
    """Quotes a label: every character that has a meaning in Mermaid, Markdown or HTML becomes an entity."""

    def safe(text: str) -> str:
        return "".join(c if c.isalnum() or c in " /.-:,()[]·…" else f"#{ord(c)};" for c in text)

    return '"' + "<br/>".join(safe(line) for line in lines if line) + '"'
