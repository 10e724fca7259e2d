"""What ``explain`` returns: the plan for one object, as text, Mermaid, HTML and in notebooks."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fineflow.ir import Effect, Graph, Note, Op, Primitive
from fineflow.ir.draw import to_html, to_mermaid
from fineflow.ir.page import opaque, sections
from fineflow.ir.spec import bodies
from fineflow.ir.text import WIDTH, format_graph, wrap

_PLUMBING = frozenset({Op.RENDER, Op.PARSE, Op.PICK, Op.RECORD, Op.AGGREGATE, Op.MAP, Op.CONDITION})


@dataclass(frozen=True)
class Explanation:
    """The plan for one object of the user.

    ``p_graph`` and ``e_graph``: before and after the passes, None where planning did not get that far. ``notes``:
    rewrites and refusals beyond those that the graphs carry. ``fallback``: why everything is left to stock, or "".
    ``name``: the user's object, for people.
    """

    p_graph: Graph | None = None
    e_graph: Graph | None = None
    notes: tuple[Note, ...] = ()
    fallback: str = ""
    name: str = ""

    @property
    def all_notes(self) -> tuple[Note, ...]:
        """Every rewrite and refusal once, in the order in which they were made."""
        carried = (graph.notes for graph in (self.p_graph, self.e_graph) if graph is not None)
        return tuple(dict.fromkeys(note for notes in (*carried, self.notes) for note in notes))

    @property
    def summary(self) -> tuple[str, ...]:
        """What will happen, in a few plain sentences."""
        if self.fallback:
            return (f"Everything runs as stock, through your own object: {self.fallback}",)
        graph = self.e_graph or self.p_graph
        if graph is None:
            return ("There is no plan: everything runs as stock, through your own object.",)
        return tuple(_sentences(graph))

    def __str__(self) -> str:
        title = f"Plan for {self.name}" if self.name else "Plan"
        parts = [f"{title}\n{'=' * len(title)}", "\n".join(line for s in self.summary for line in _wrapped(s))]
        if self.p_graph is not None:
            parts.append(format_graph(self.p_graph, title="As written (p-graph)"))
        if self.e_graph is not None:
            parts.append(format_graph(self.e_graph, title="As run (e-graph)"))
        for heading, _, rows in sections(self.e_graph or self.p_graph, self.all_notes):
            parts.append(_table(heading, rows))
        return "\n\n".join(parts)

    def to_mermaid(self) -> str:
        """The plan as a Mermaid flowchart; a single box when everything runs as stock."""
        graph = self.e_graph or self.p_graph
        return to_mermaid(graph) if graph is not None else 'flowchart TD\n  n0["everything runs as stock"]'

    def to_html(self) -> str:
        """The plan as one self-contained HTML page."""
        title = f"Plan for {self.name}" if self.name else "Plan"
        summary = () if self.fallback else self.summary
        return to_html(self.p_graph, self.e_graph, self.all_notes, title=title, summary=summary, fallback=self.fallback)

    def _repr_html_(self) -> str:
        # A frame keeps the styles of the page and those of the notebook apart.
        return (
            f'<iframe srcdoc="{escape(self.to_html())}" style="width:100%;height:720px;border:0" '
            'title="fineflow plan"></iframe>'
        )

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, Any]:
        bundle = {"text/plain": str(self), "text/html": self._repr_html_(), "text/vnd.mermaid": self.to_mermaid()}
        return {
            kind: value
            for kind, value in bundle.items()
            if (not include or kind in include) and (not exclude or kind not in exclude)
        }


def _sentences(graph: Graph) -> Iterator[str]:
    ahead = sum(not _by_stock(p) for p in graph)
    rest = "" if ahead == len(graph.primitives) else "; stock runs the others itself, where it always did"
    yield f"{_count(len(graph.primitives), 'primitive')}, of which {ahead} can run ahead of stock{rest}."
    early = starts_early(graph)
    if early:
        start = "starts" if len(early) == 1 else "start"
        yield f"{_count(len(early), 'primitive')} {start} before earlier steps have finished: {_listed(early)}."
    streams = [p.name for p in graph if any(ref.stream for ref in p.args.values())]
    if streams:
        yield f"These take items as they are produced instead of waiting for all of them: {_listed(streams)}."
    if not early and not streams:
        yield "Every step needs the one before, so nothing can start sooner than in stock."
    own = [p.name for p in opaque(graph)]
    if own:
        runs = "step is opaque and runs" if len(own) == 1 else "steps are opaque and run"
        why = "your own code, or a component that fineflow does not know"
        yield f"{len(own)} {runs} exactly as and when stock always did ({why}): {_listed(own)}."
    yield "The answer, the callbacks and the errors are those of stock."


def starts_early(graph: Graph) -> list[str]:
    """The working primitives that wait for less than stock makes them wait for, in program order."""
    before: dict[str, set[str]] = {}
    working: list[str] = []
    early = []
    for p in graph:
        direct = {ref.name for ref in p.args.values()} | set(p.after)
        before[p.name] = direct.union(*(before.get(name, set()) for name in direct))
        if _works(p):
            if not _by_stock(p) and not before[p.name].issuperset(working):
                early.append(p.name)
            working.append(p.name)
    return early


def _works(p: Primitive) -> bool:
    return p.op not in _PLUMBING or any(_works(inner) for _, body in bodies(p) for inner in body)


def _by_stock(p: Primitive) -> bool:
    return p.effects.kind is Effect.OPAQUE or p.params.get("by") == "stock"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _wrapped(sentence: str) -> list[str]:
    return wrap("", [sentence], hang="    ")


def _table(heading: str, rows: Sequence[tuple[str, ...]]) -> str:
    widths = [min(56, max(len(row[i]) for row in rows)) for i in range(len(rows[0]) - 1)]
    lines = [heading]
    for *cells, reason in rows:
        line = "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + "  "
        if len(line) > 2 * WIDTH // 3:
            lines.append(line.rstrip())
            line = " " * 8
        lines += textwrap.wrap(reason, WIDTH, initial_indent=line, subsequent_indent=" " * len(line))
    return "\n".join(lines)
