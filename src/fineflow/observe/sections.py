"""Tables below a plan: its rewrites, the steps that stay as they were, and why; steps that run early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fineflow.ir.graph import Graph, Note
from fineflow.ir.primitive import Effect, Op, Primitive
from fineflow.ir.spec import bodies, everything
from fineflow.ir.text import tidy

STOCK = "stock"
Section = tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]
"""A table: heading, columns, rows; the last column holds the longest texts."""


def calls(graph: Graph) -> Iterator[Primitive]:
    """Yields the steps of user code and of unrecognised components, bodies included, each once."""
    return (p for p in everything(graph) if p.op is Op.CALL and not p.params.get("stage"))


def opaque(graph: Graph) -> list[Primitive]:
    """Returns those of them that stock runs, because nothing is known about their effects."""
    return [p for p in calls(graph) if p.effects.kind is Effect.OPAQUE]


def stays(p: Primitive) -> bool:
    """Returns True if stock alone runs it, whatever could be gained by running it early."""
    return p.effects.kind is Effect.OPAQUE or (p.effects.kind is not Effect.PURE and p.by_stock)


def sections(graph: Graph | None, notes: Iterable[Note], *, gain: bool = True) -> list[Section]:
    """Returns the non-empty tables below a plan: heading, columns, rows. States nothing twice.

    gain: True if the plan is used; if not, nothing starts earlier.
    """
    found = [] if graph is None else list(calls(graph))
    held = [p for p in found if stays(p)]
    free = [p for p in found if not stays(p) and not p.meta.get("handed")]
    own = {p.name: p.effects.reason for p in held}
    notes = [note for note in notes if note.done or own.get(note.where) != note.reason]
    done = [note for note in notes if note.done and gain]
    tables: list[Section] = [
        ("Each rewrite of the plan", ("pass", "step", "how"), _note_rows(done)),
        ("What stays as it was, and why", ("pass", "step", "why"), _note_rows([n for n in notes if not n.done])),
        (
            "Run by stock itself, exactly when it always was: your own code, and what is not recognised",
            ("step", "why"),
            [(p.name, _why(p, graph, gain)) for p in held if not (gain and p.meta.get("inside"))],
        ),
        (
            "Run by stock itself, while component calls inside them run ahead",
            ("step", "why"),
            [(p.name, _why(p, graph, gain)) for p in held if gain and p.meta.get("inside")],
        ),
        (
            "Your functions without side effects, or declared to read, which may run early",
            ("step", "at", "evidence"),
            [(p.name, _at(p), p.effects.reason or "found pure") for p in free if gain],
        ),
    ]
    return [table for table in tables if table[2]]


def _note_rows(notes: Iterable[Note]) -> list[tuple[str, ...]]:
    """Returns rows of notes; steps with the same note share a row."""
    said: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        said.setdefault((note.source, tidy(note.reason)), []).append(note.where)
    return [(source, _several(list(dict.fromkeys(where))), reason) for (source, reason), where in said.items()]


def _several(names: Sequence[str], most: int = 3) -> str:
    return (
        ", ".join(names) if len(names) <= most else f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    )


def _at(p: Primitive) -> str:
    return str(p.meta.get("where", ""))


def _why(p: Primitive, graph: Graph | None, gain: bool) -> str:
    """Returns the reason, and its cost: the number of steps that could start earlier without this one's effects."""
    reason = tidy(p.effects.reason) or "is not known to be without side effects"
    if where := _at(p):
        kept = "" if p.effects.kind is Effect.UNORDERED else "kept in order: "
        reason = f"{kept}`{p.name.rpartition('/')[2].partition('.')[0]}` at {where} {reason}"
    held = waiting(graph, p.name) if gain and graph is not None and p.name in graph else 0
    return f"{reason}; {held} later step{'s wait' if held > 1 else ' waits'} for it" if held else reason


def waiting(graph: Graph, name: str, *, ordered: bool = True) -> int:
    """Returns the number of models, searches and the like that come after a step by data, or (``ordered``) by order."""
    behind = {name}
    for p in graph:
        if not behind.isdisjoint((*(ref.name for ref in p.args.values()), *(p.after if ordered else ()))):
            behind.add(p.name)
    return sum(p.name in behind and p.name != name and works(p) and not p.by_stock for p in graph)


_PLUMBING = frozenset(
    {Op.RENDER, Op.PREFILL, Op.PARSE, Op.PICK, Op.RECORD, Op.AGGREGATE, Op.CALL, Op.MAP, Op.CONDITION}
)


def works(p: Primitive) -> bool:
    """Returns True if a primitive takes time of its own: a model, a search, reranking, a tool."""
    return p.op not in _PLUMBING or any(works(inner) for _, body in bodies(p) for inner in body)
