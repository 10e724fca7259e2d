"""Sentences about what running ahead gains: in a graph, inside its steps, and in the calls so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fineflow.ir import Graph, Note, Op
from fineflow.ir.meta import INSIDE
from fineflow.ir.text import duration, shortened
from fineflow.observe.overview import LEAST, starts_early
from fineflow.observe.sections import works
from fineflow.runtime.call.visits import Visit


def gains_of_lowering(notes: Sequence[Note]) -> list[str]:
    """Returns reorderings inside a step, which the edges of a graph do not show."""
    return [
        f"{shortened(note.where)}: {note.reason}." for note in notes if note.done and note.source in ("lower", INSIDE)
    ]


def so_far(visits: Mapping[str, Visit]) -> str:
    """Says what running component calls inside of steps side by side saves, by their runs in this process."""
    saved = [(name, visit.saved) for name, visit in visits.items() if (visit.saved or 0.0) >= LEAST]
    if not saved:
        return "In its runs so far, no component calls inside of its steps ran side by side."
    told = listed([f"{duration(seconds or 0.0)} of {shortened(name)}" for name, seconds in saved])
    return f"In its runs so far, component calls side by side save {told}."


def gains(graph: Graph, written: Graph | None) -> Iterator[str]:
    working = [p.name for p in graph if works(p) and not p.params.get("stage") and p.op is not Op.PARTIAL_PREFILL]
    early = len(set(starts_early(graph, written)).intersection(working))
    streams = [p.name for p in graph if p.op is Op.MAP and any(ref.stream for ref in p.args.values())]
    if early:
        what = count(len(working), "step") + " that take time (models, searches, reranking)"
        wait, them = ("waits", "it") if early == 1 else ("wait", "them")
        yield f"Of {what}, {early} no longer {wait} for everything before {them}."
    for names, when in _by_streaming(graph, streams):
        start = "starts" if len(names) == 1 else "start"
        yield f"{listed(names)} {start} on each item while the rest of the list is still being written{when}."
    fields = [p.name for p in graph if any(ref.stream and ref.key is not None for ref in p.args.values())]
    for names, when in _by_streaming(graph, fields):
        start, reads = ("starts", "it reads") if len(names) == 1 else ("start", "they read")
        yield f"{listed(names)} {start} when the fields that {reads} are written, while the rest still comes{when}."
    if prefills := [p.name for p in graph if p.op is Op.PARTIAL_PREFILL]:
        yield f"The beginning of {count(len(prefills), 'prompt')} is prefilled while the rest is being computed."


def _by_streaming(graph: Graph, names: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Groups consumers of what a model writes by the calls in which that happens."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(", in calls that stream" if _only_streamed(graph, name) else "", []).append(name)
    for when, group in groups.items():
        yield group, when


def _only_streamed(graph: Graph, name: str) -> bool:
    """Returns True if the model whose text a primitive consumes is read in pieces only in calls that stream."""
    sources = [graph[ref.name] for ref in graph[name].args.values() if ref.stream and ref.name in graph]
    return any(bool(p.meta.get("only_streamed")) or _only_streamed(graph, p.name) for p in sources)


def by_entry(stock: Sequence[str]) -> Iterator[str]:
    if stock:
        run = "runs" if len(stock) == 1 else "run"
        yield (
            f"{' and '.join(filter(None, (', '.join(stock[:-1]), stock[-1])))} {run} as stock, through your own "
            "object: there nothing can start earlier than stock starts it."
        )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
