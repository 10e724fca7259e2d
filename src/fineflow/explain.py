"""What ``explain`` returns: the plan for one object, as text, Mermaid, HTML and in notebooks."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fineflow.ir import Graph, Note, Op, Primitive
from fineflow.ir.draw import to_html, to_mermaid
from fineflow.ir.page import calls
from fineflow.ir.spec import bodies
from fineflow.ir.text import format_graph, wrap

_PLUMBING = frozenset({Op.RENDER, Op.PARSE, Op.PICK, Op.RECORD, Op.AGGREGATE, Op.MAP, Op.CONDITION})


@dataclass(frozen=True)
class Explanation:
    """The plan for one object of the user.

    ``p_graph`` and ``e_graph``: before and after the passes, None where planning did not get that far. ``notes``:
    rewrites and refusals beyond those that the graphs carry. ``fallback``: why everything is left to stock, or "".
    ``name``: the user's object, for people.
    """

    p_graph: Graph | None
    e_graph: Graph | None
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
        notes = self.all_notes
        parts += _table("Rewrites", [(n.source, n.where, n.reason) for n in notes if n.done])
        parts += _table("Left as it was", [(n.source, n.where, n.reason) for n in notes if not n.done])
        if (graph := self.e_graph or self.p_graph) is not None:
            own = [(p.name, p.effects.reason or "not known to be pure") for p in calls(graph)]
            parts += _table("Your own code, run exactly where stock runs it", own)
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
    working = [p for p in graph if _works(p)]
    yield (
        f"{_count(len(graph.primitives), 'primitive')}, of which {len(working)} "
        f"{'does' if len(working) == 1 else 'do'} the work and the rest pass values on."
    )
    early = starts_early(graph)
    if early:
        start = "starts" if len(early) == 1 else "start"
        yield f"{_count(len(early), 'primitive')} {start} before earlier steps have finished: {_listed(early)}."
    streams = [p.name for p in graph if any(ref.stream for ref in p.args.values())]
    if streams:
        yield f"These take items as they are produced instead of waiting for all of them: {_listed(streams)}."
    if not early and not streams:
        yield "Every step needs the one before, so nothing can start sooner than in stock."
    own = [p.name for p in calls(graph)]
    if own:
        runs = "step is your own code and runs" if len(own) == 1 else "steps are your own code and run"
        yield f"{len(own)} {runs} exactly as and when stock runs {'it' if len(own) == 1 else 'them'}: {_listed(own)}."
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
            if p.op is not Op.CALL and not before[p.name].issuperset(working):
                early.append(p.name)
            working.append(p.name)
    return early


def _works(p: Primitive) -> bool:
    return p.op not in _PLUMBING or any(_works(inner) for _, body in bodies(p) for inner in body)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _wrapped(sentence: str) -> list[str]:
    return wrap("", [sentence], hang="    ")


def _table(heading: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [min(48, max(len(row[i]) for row in rows)) for i in range(len(rows[0]) - 1)]
    lines = [heading]
    for *cells, reason in rows:
        line = "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines += wrap(line, [reason], hang=" " * 8)
    return ["\n".join(lines)]
