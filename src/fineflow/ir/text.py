"""Graphs as text: one primitive per line, deterministic, 120 columns wide unless told otherwise.

Primitives are numbered in program order and referred to by number, because names are paths and often long:

     2  category/llm.decode   3   decode(cache=1)   on llm   external   after 1   max_tokens=256

``...`` after a reference means that its items are consumed one by one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

from fineflow.ir.graph import Graph
from fineflow.ir.primitive import Effect, Primitive, Ref
from fineflow.ir.spec import bodies

WIDTH = 120
"""Columns of a text whose reader is not known: a notebook, a file, a log."""

_NAMES, _DEPTHS = 58, 5  # maximum widths of the columns for name and depth, which grow with their content
_INTERNAL = frozenset({"how", "key", "pairwise", "received", "unless_constant", "unread", "verdict"})  # not for display
_EMPTY: tuple[object, ...] = ("", (), [], {}, None)
_SHORT = 40
_HEADINGS = ("name", "depth")


def name_of(obj: Any) -> str:
    """Returns the name of an object for display: a function's own, that of the class of others."""
    if type(obj) in (FunctionType, MethodType):
        return str(obj.__qualname__).rpartition("<locals>.")[2]
    return type(obj).__name__


@dataclass(frozen=True, slots=True)
class Marks:
    """Timing marks of primitives in a drawing, by full name (see ``inside``).

    seconds: duration of each. critical: those on the critical path.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    critical: frozenset[str] = frozenset()

    def of(self, name: str) -> str:
        """Returns the duration for display, or "" if it is not known."""
        return duration(self.seconds[name]) if name in self.seconds else ""


NO_MARKS = Marks()


def inside(outer: str, heading: str, name: str = "") -> str:
    """Returns the full name of a primitive in a body: name of the outer primitive, heading of the body, own name."""
    return f"{outer} > {heading} > {name}"


def shortened(name: str) -> str:
    """Returns the name of a step for readers: ``grade`` for a function ``grade`` at a node ``grade``."""
    name = name.removesuffix(".call")
    outer, slash, last = name.rpartition("/")
    same = slash and outer.rpartition("/")[2].rpartition(" → ")[2] == last
    return outer if same else name


def duration(seconds: float) -> str:
    """Formats seconds: ``1.52 s``, ``30 ms``, ``0.4 ms``."""
    if seconds >= 0.9995:
        return f"{seconds:.2f} s" if seconds < 99.995 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.00995 or not seconds else f"{seconds * 1e3:.1f} ms"


def format_graph(graph: Graph, *, title: str = "", marks: Marks | None = None, width: int = WIDTH) -> str:
    """Formats a graph: name, depth, operation with its inputs, engine, effects (unless pure), order edges.

    With ``marks`` also durations, and for user functions their location and whether they are pure.

    Bodies of maps and conditions are indented below their primitive. A line over ``width`` columns continues indented
    on the next. Of the parameters only short plain values are shown; ``stock`` marks steps that stock runs itself.
    """
    count = len(graph.primitives)
    heading = f"{count} primitive{'' if count == 1 else 's'}, reads {', '.join(graph.inputs) or 'nothing'}"
    lines = [f"{title}: {heading}" if title else heading]
    rows = [_Row(0, "#", _HEADINGS, ("operation, engine, effects, order edges",)), *_rows(graph, "", 0, marks)]
    columns = zip(*(row.columns() for row in rows if row.cells), strict=True)
    limits = min(_NAMES, width // 2), _DEPTHS
    widths = [min(limit, max(map(len, column))) for limit, column in zip(limits, columns, strict=True)]
    for row in rows:
        lines += row.lines(widths, width)
    lines.append(f"output: {_ref(graph.output, _numbers(graph, ''))}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: its number (or a heading), the cells of the table, and the text after them."""

    indent: int
    label: str
    cells: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def columns(self) -> tuple[str, ...]:
        """Returns the cells, the first prefixed by indentation and number, so that the next columns are aligned."""
        label = f"{'  ' * (1 + 2 * self.indent)}{self.label:>2}"
        return (f"{label}  {self.cells[0]}", *self.cells[1:]) if self.cells else (label,)

    def lines(self, widths: Sequence[int], width: int) -> list[str]:
        cells = self.columns()
        if not self.cells:
            return [" " * (2 + 4 * self.indent) + self.label]
        table = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return wrap(table, self.more, hang=" " * (10 + 4 * self.indent), width=width)


def printable(text: str) -> str:
    """Returns a text for a terminal: what would steer it, or turn the direction of the line, as an escape sequence.

    Names are the user's, or come from a server: control characters (except line ends and tabs), format characters such
    as U+202E, and surrogates without a partner, which cannot be encoded.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(map(_printable, text))


def _printable(character: str) -> str:
    steers = unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\n\t\u200d"  # joins emoji
    return ascii(character)[1:-1] if steers else character


def wrap(line: str, more: Iterable[str], hang: str, width: int = WIDTH) -> list[str]:
    """Appends the pieces to ``line``, two spaces apart, breaking between words at the maximum width in columns."""
    lines, room = [], line
    for piece in more:
        if len(room) + 2 + len(piece) > width and room.strip():
            lines.append(room.rstrip())
            room = hang + piece
        else:
            room += "  " + piece
        while len(room) > width and (cut := _cut(room, len(hang) + 1, width)) > 0:
            lines.append(room[:cut].rstrip())
            room = hang + room[cut:].lstrip()
    return [*lines, room.rstrip()]


def _cut(line: str, least: int, width: int) -> int:
    """Returns where to break a line: at the last space that fits, or after a word that is too long; -1: nowhere."""
    fits = line.rfind(" ", least, width)
    return fits if fits > 0 else line.find(" ", width)


def _rows(graph: Graph, prefix: str, indent: int, marks: Marks | None, place: str = "") -> Iterator[_Row]:
    numbers = _numbers(graph, prefix)
    for p in graph:
        args = ", ".join(f"{arg.removeprefix('key:')}={_ref(ref, numbers)}" for arg, ref in p.args.items())
        cells = (p.name, str(p.depth) if p.depth >= 0 else "")
        marked = () if marks is None else _marked(p, marks, place + p.name)
        yield _Row(indent, numbers[p.name], cells, (f"{p.op}({args})", *_remarks(p, numbers), *marked))
        arms = bodies(p)
        for heading, body in arms:
            inner = f"{numbers[p.name]}." if len(arms) == 1 else f"{numbers[p.name]}.{heading.replace(' ', '')}."
            yield _Row(indent + 1, f"{heading}:")
            yield from _rows(body, inner, indent + 1, marks, place + inside(p.name, heading))
            yield _Row(indent + 1, f"gives {_ref(body.output, _numbers(body, inner))}")


def _numbers(graph: Graph, prefix: str) -> dict[str, str]:
    return {p.name: f"{prefix}{number}" for number, p in enumerate(graph, start=1)}


def _ref(ref: Ref, numbers: Mapping[str, str]) -> str:
    text = numbers.get(ref.name, ref.name)
    text = text if ref.key is None else f"{text}[{ref.key}]"
    return f"{text}..." if ref.stream else text


def _remarks(p: Primitive, numbers: Mapping[str, str]) -> Iterator[str]:
    if p.engine:
        yield f"on {p.engine}"
    if p.effects.kind is not Effect.PURE:
        yield tidy(str(p.effects))
    read = {ref.name for ref in p.args.values()}
    if after := [numbers.get(name, name) for name in p.after if name not in read]:
        yield "after " + ", ".join(after)
    if p.by_stock:
        yield "stock"
    for key, value in p.params.items():
        shown = format_value(value, 100)
        if key not in _INTERNAL and not key.startswith("_") and value not in _EMPTY and len(shown) <= _SHORT:
            yield f"{key}={shown}"


def _marked(p: Primitive, marks: Marks, name: str) -> Iterator[str]:
    if where := str(p.meta.get("where", "")):
        yield f"pure, {where}" if p.effects.kind is Effect.PURE else where
    if told := [each for each in (marks.of(name), "critical" if name in marks.critical else "") if each]:
        yield ", ".join(told)


def format_value(value: object, room: int = 40) -> str:
    """Formats a parameter: plain values as they are, clipped to ``room`` characters, others by their type.

    Never contains an address, so that the text is deterministic.
    """
    text = _plain(value)
    return text if len(text) <= room else text[: room - 1] + "…"


def tidy(text: str) -> str:
    """Removes the addresses that tell resources of one class apart: they differ from run to run."""
    return re.sub(r"@(0x)?[0-9a-f]{6,}\b", "", text)


def _plain(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, str | bool | int | float | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        inner = ", ".join(_plain(item) for item in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_plain(item) for item in value)) + "}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_plain(key)}: {_plain(item)}" for key, item in value.items()) + "}"
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return f"<{name if isinstance(name, str) else type(value).__name__}>"
