"""Result of ``explain``: the plan of one object, and its last call, as text, Mermaid, HTML and in notebooks."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from fineflow.ir import Graph, Note
from fineflow.ir.meta import INSIDE
from fineflow.ir.text import NO_MARKS, WIDTH, Marks, duration, format_graph, printable, wrap
from fineflow.observe.bill import expected
from fineflow.observe.critical import Forecasts, gained, marks, measured, measured_marks, not_measured, predicted
from fineflow.observe.gain_sentences import by_entry, count, gains, gains_of_lowering, listed, so_far
from fineflow.observe.overview import LEAST, earlier, in_the_way
from fineflow.observe.sections import STOCK, Section, sections
from fineflow.observe.visits import drawn, forecasts
from fineflow.runtime.call.trace import Trace
from fineflow.runtime.call.visits import Visit

_STOCK = 'flowchart TD\n  n0["everything runs as stock"]'


@dataclass(frozen=True, slots=True)
class LastCall:
    """The last call of an optimized object.

    began: on the clock of ``events.now()``. saved: seconds of waiting that it saved, computed from its trace.
    """

    entry: str
    began: float
    seconds: float
    saved: float

    def with_parts(self, parts: Iterable[LastCall | None]) -> LastCall:
        """Returns the call with what its parts' calls saved, if its own plan saved nothing.

        Of parts that ran at the same time, only one counts.
        """
        if self.saved >= LEAST:
            return self
        saved = until = best = 0.0
        inside = [each for each in parts if each is not None and each.began >= self.began]
        for each in sorted(inside, key=lambda call: call.began):
            best = 0.0 if each.began >= until else best
            saved, best = saved + max(each.saved - best, 0.0), max(each.saved, best)
            until = max(until, each.began + each.seconds)
        return replace(self, saved=saved)

    def __str__(self) -> str:
        took = f"The last call ({self.entry}) took {duration(self.seconds)}"
        if self.saved < LEAST:
            return f"{took}, and nothing in it started earlier than in stock."
        if (stock := duration(self.seconds + self.saved)) == duration(self.seconds):
            return f"{took}, about as long as in stock."
        return f"{took} instead of about {stock}, computed from its trace."


@dataclass(frozen=True)
class Explanation:
    """The plan of one of the user's objects.

    ``p_graph`` and ``e_graph``: before and after the passes, None if planning did not get that far. ``notes``:
    rewrites and refusals beyond those in the graphs. ``fallback``: why everything runs as stock, or "". ``name``: of
    the user's object, for display. ``entries``: the methods that the plan covers. ``stock``: those of them that run as
    stock although others do not. ``forecasts``: the predicted critical paths. ``trace``: the last call. ``remarks``:
    gains that no graph shows. ``advice``: what would gain more. ``verified``: how calls are verified. ``parts``:
    explanations of parts that are called by themselves. ``taken``: ``optimize`` takes such an object. ``program``: of
    semantic functions, which no framework runs. ``off``: fineflow is switched off, so nothing follows the plan.
    ``newer``: sentences on frameworks that are newer than those tested. ``limits``: how many calls of their component
    may run at a time, by primitive. ``visits``: forecasts of the steps in whose runs component calls run ahead, by
    primitive. last: what the last call gained, of an optimized object. graphs: texts have all tables and both graphs.
    """

    p_graph: Graph | None = None
    e_graph: Graph | None = None
    notes: tuple[Note, ...] = ()
    fallback: str = ""
    name: str = ""
    entries: tuple[str, ...] = ()
    stock: tuple[str, ...] = ()
    forecasts: Forecasts | None = None
    trace: Trace | None = None
    remarks: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    verified: str = ""
    parts: tuple[Explanation, ...] = ()
    taken: bool = True
    program: bool = False
    off: bool = False
    newer: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    visits: Mapping[str, Visit] = field(default_factory=dict)
    last: LastCall | None = None
    graphs: bool = False

    @property
    def all_notes(self) -> tuple[Note, ...]:
        """Returns every rewrite and refusal once, in the order in which they were made."""
        carried = (graph.notes for graph in (self.p_graph, self.e_graph) if graph is not None)
        return tuple(dict.fromkeys(note for notes in (*carried, self.notes) for note in notes))

    @property
    def summary(self) -> tuple[str, ...]:
        """Summarises the plan in one or two plain sentences, after those on switches and versions."""
        return (*self._switch, *self.newer, *self._planned)

    @property
    def _switch(self) -> tuple[str, ...]:
        return (_OFF,) if self.off else ()

    @property
    def _planned(self) -> tuple[str, ...]:
        if not self.taken:
            return (f"There is nothing to plan: {self.fallback}.",)
        if self.fallback:
            return (f"Runs as stock, through your own object: {self.fallback}.",)
        if self.e_graph is None and self.p_graph is None:
            return ("There is no plan: everything runs as stock, through your own object.",)
        return (*self._gain(), *by_entry(self.stock), *filter(None, [self.verified]))

    def _gain(self) -> Iterator[str]:
        """Yields the gain in a sentence: predicted, else of the last call, else in steps."""
        ahead = [entry for entry in self.entries if entry not in self.stock]
        if self.forecasts is not None and (text := gained(self.forecasts, ahead)):
            yield text
        elif self.last is not None:
            yield str(self.last)
        elif any(visit.saved is not None for visit in self.visits.values()):
            yield so_far(self.visits)
        elif text := next(iter(self.gains), ""):
            asked = () if self.forecasts is None else not_measured(self.forecasts)
            when = f"; seconds follow once {listed(asked)} ran three times in this process" if asked else ""
            if any(note.done and note.source == INSIDE and note.reason in text for note in self.all_notes):
                steps = count(len({note.where for note in self.all_notes if note.source == INSIDE}), "step")
                text = f"Component calls inside of {steps} start as soon as their inputs are known."
                when = "; seconds follow after a call of the optimized object"
            yield f"{text.removesuffix('.')}{when}."
        else:
            yield _IN_ORDER if self.program else _NOT_YET if self.advice else _NOTHING

    @property
    def gains(self) -> tuple[str, ...]:
        """Says in sentences what starts earlier than in stock."""
        graph = self.e_graph or self.p_graph
        if self.fallback or graph is None:
            return ()
        return (*gains(graph, self.p_graph), *gains_of_lowering(self.all_notes), *self.remarks)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = WIDTH) -> str:
        """Renders the plan as text. width: in columns; words that are longer stay whole."""
        more = () if self.graphs or not self._has_more else (textwrap.fill(_MORE, width),)
        return printable("\n\n".join((*self._text(width), *more)))

    def _text(self, width: int) -> Iterator[str]:
        yield f"{self._title}\n{'=' * len(self._title)}"
        yield "\n".join(line for s in self.summary for line in wrap("", [s], hang="    ", width=width))
        tables = [*self.overview, *self.last_run]
        if self.graphs:
            tables += [*self.predicted, *sections(self.e_graph or self.p_graph, self.all_notes, gain=not self.fallback)]
        for heading, columns, rows in tables:
            yield _table(heading, columns, rows, width)
        for title, graph, mark in self._graphs() if self.graphs else ():
            yield format_graph(graph, title=title, marks=mark, width=width)
        for part in self.parts:
            yield from replace(part, graphs=self.graphs)._text(width)

    @property
    def _has_more(self) -> bool:
        return self.p_graph is not None or self.e_graph is not None or any(part._has_more for part in self.parts)

    @property
    def overview(self) -> tuple[Section, ...]:
        """Returns tables of what starts earlier than in stock, with seconds where known, and of what is in the way."""
        graph, ahead = self.e_graph or self.p_graph, [each for each in self.entries if each not in self.stock]
        early = None
        if graph is not None and not self.fallback:
            early = earlier(
                self.p_graph,
                graph,
                self.all_notes,
                forecasts=self.forecasts,
                entries=ahead,
                visits=self.visits,
                remarks=self.remarks,
                order=self._order,
                measured=self.last is not None and self.last.saved < LEAST,
            )
        return tuple(
            table for table in (early, in_the_way(graph, self.advice, self.visits, self.all_notes)) if table is not None
        )

    @property
    def predicted(self) -> tuple[Section, ...]:
        """Returns tables of what is expected: critical paths, runs of steps, limits, requests."""
        stock = self.entries if self.fallback else self.stock
        table = predicted(self.forecasts, self.entries, stock) if self.forecasts is not None else None
        before = *([table] if table is not None else []), *forecasts(self.visits), *_limited(self.limits)
        return (*before, *expected(self.p_graph))

    @property
    def last_run(self) -> tuple[Section, ...]:
        """Returns tables of the last call as measured: its critical path, and each step. Empty without a call."""
        return () if self.trace is None else tuple(measured(self.trace, self.forecasts))

    @property
    def timing(self) -> tuple[Section, ...]:
        """Returns all tables with seconds and requests: predicted, and of the last call."""
        return (*self.predicted, *self.last_run)

    @property
    def _marks(self) -> tuple[Marks, Marks]:
        """Returns the per-step marks of both drawings; those of the e-graph are measured if there is a trace."""
        written = marks(self.forecasts.written) if self.forecasts is not None else NO_MARKS
        run = marks(self.forecasts.run) if self.forecasts is not None else NO_MARKS
        return written, run if self.trace is None else measured_marks(self.trace)

    @property
    def _order(self) -> str:
        return "program order" if self.program else STOCK

    @property
    def _title(self) -> str:
        return f"Plan for {self.name}" if self.name else "Plan"

    def _graphs(self) -> Iterator[tuple[str, Graph, Marks]]:
        written, run = self._marks
        if self.p_graph is not None:
            yield "As written (p-graph)", *drawn(self.p_graph, self.visits, written, serial=True)
        if self.e_graph is not None and not self.fallback:  # with a fallback the e-graph does not run
            yield "As run (e-graph)", *drawn(self.e_graph, self.visits, run, serial=False)

    def to_json(self) -> str:
        """Renders the plan as JSON: ``name``, ``taken``, ``summary``, ``earlier``, ``in_the_way``, ``notes``."""
        tables = [[dict(zip(columns, row, strict=True)) for row in rows] for _, columns, rows in self.overview]
        notes = [{"pass": n.source, "step": n.where, "done": n.done, "reason": n.reason} for n in self.all_notes]
        told = {
            "name": self.name,
            "taken": self.taken,
            "summary": self.summary,
            "earlier": [row for rows in tables for row in rows if "how" in row],
            "in_the_way": [row["what"] for rows in tables for row in rows if "what" in row],
            "notes": notes,
        }
        return json.dumps(told, indent=1)

    def to_mermaid(self) -> str:
        """Renders the plan as a Mermaid flowchart; a single box when everything runs as stock."""
        from fineflow.observe.mermaid import to_mermaid  # what draws is loaded when something is drawn

        graphs = list(self._graphs())
        return to_mermaid(graphs[-1][1], marks=graphs[-1][2]) if graphs and not self.fallback else _STOCK

    def to_html(self) -> str:
        """Renders the plan as one self-contained HTML page."""
        from fineflow.observe.plan_page import to_html

        summary = self._switch if self.fallback else self.summary
        written, run = self._marks
        p_graph, e_graph = self.p_graph, None if self.fallback else self.e_graph
        if p_graph is not None:
            p_graph, written = drawn(p_graph, self.visits, written, serial=True)
        if e_graph is not None:
            e_graph, run = drawn(e_graph, self.visits, run, serial=False)
        reason = f"{self.fallback[:1].upper()}{self.fallback[1:]}." if self.fallback else ""
        how = "predicted" if self.trace is None else "measured (as written: predicted)"
        page = to_html(
            p_graph,
            e_graph,
            self.all_notes,
            title=self._title,
            summary=summary,
            fallback=reason,
            first=self.overview,
            tables=self.timing,
            marks=(written, run),
            order=self._order,
            critical=f"heavy frame: on the critical path, {how}" if written.critical or run.critical else "",
        )
        return page.replace("</body>", "".join(part._repr_html_() for part in self.parts) + "</body>")

    def _repr_html_(self) -> str:
        # An iframe separates the styles of the page from those of the notebook.
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


_OFF = (
    "fineflow is off: FINEFLOW_DISABLE is set, so optimize returns the object as it is, and every call runs as stock. "
    "Without the variable:"
)
_NOT_YET = "As it is, nothing starts earlier than in stock."
_NOTHING = "Every step needs the one before, so nothing can start earlier than in stock."
_IN_ORDER = "Every request needs the one before, and starts in the runtime as soon as that has ended."
_MORE = (
    "Critical paths, each refusal with its reason, your own functions and both graphs: "
    "fineflow.explain(..., graphs=True), or fineflow explain --graphs"
)


def _limited(limits: Mapping[str, int]) -> Iterator[Section]:
    if limits:
        rows = [(name, f"at most {count(most, 'call')} at a time") for name, most in limits.items()]
        yield "Limits of components (fineflow.engines.limit), over all calls of the process", ("step", "why"), rows


_NAMED = frozenset(
    {"pass", "why", "how", "step", "gain", "what"}
)  # columns that need no heading if the table has no others


def _table(heading: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]], width: int) -> str:
    rows = [*rows] if _NAMED.issuperset(columns[:-1]) or "at" in columns else [tuple(columns), *rows]
    shown = [i for i in range(len(columns) - 1) if any(row[i] for row in rows)]
    widths = [min(56, width // 2, max(len(row[i]) for row in rows)) for i in shown]
    lines = textwrap.wrap(heading, width, subsequent_indent="  ")
    for row in rows:
        line = "".join(f"  {row[i].ljust(room)}" for i, room in zip(shown, widths, strict=True)) + "  "
        if shown and not any(row[i] for i in shown):  # a sentence on all of them
            lines += textwrap.wrap(row[-1], width, initial_indent="  ", subsequent_indent="    ")
            continue
        if len(line) > 2 * width // 3:
            lines.append(line.rstrip())
            line = " " * 8
        lines += textwrap.wrap(row[-1], width, initial_indent=line, subsequent_indent=" " * (len(line) if shown else 4))
    return "\n".join(lines).replace("\u00a0", " ")
