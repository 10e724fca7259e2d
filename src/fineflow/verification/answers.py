"""What a call answered, in comparable form, and how two answers differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any

from fineflow.verification.canonical import Fields, as_lines, canonical, chunk_types, concatenated

_LINES, _WIDTH = 24, 160  # of a diff in a report
_BEFORE = 40  # characters that are shown before the first difference of a long line


class Incomparable(Exception):
    """An answer cannot be compared. The text says why."""


@dataclass(frozen=True)
class Answer:
    """value: what was returned, or the sum of the chunks. error: type and text of what was raised. chunks: their
    number, which may differ, as a model's server cuts its stream as it likes; None if the call does not stream. kinds:
    type names of the chunks, by key.
    """

    value: Any = None
    error: Mapping[str, Any] | None = None
    chunks: int | None = None
    kinds: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, fields: Fields) -> Answer:
        """Returns the answer of a call that returned. Raises Incomparable."""
        return cls(_form(value, fields))

    @classmethod
    def raised(cls, error: BaseException, chunks: Sequence[Any] | None, fields: Fields) -> Answer:
        """Returns the answer of a call that raised, after ``chunks`` if it streamed. Raises Incomparable."""
        try:
            text = str(error)
        except Exception as failed:
            raise Incomparable("it raised an exception without a text") from failed
        form = {"type": type(error).__qualname__, "message": canonical(text)}
        before = cls() if chunks is None else cls.streamed(chunks, fields)
        return cls(before.value, form, before.chunks, before.kinds)

    @classmethod
    def streamed(cls, chunks: Sequence[Any], fields: Fields) -> Answer:
        """Returns the answer of a call that streamed. Raises Incomparable."""
        if not chunks:
            return cls(chunks=0)
        try:
            total, kinds = concatenated(chunks), chunk_types(chunks)
        except Exception as failed:
            raise Incomparable(f"its chunks cannot be added ({type(failed).__name__})") from failed
        return cls(_form(total, fields), None, len(chunks), kinds)


def _form(value: Any, fields: Fields) -> Any:
    kinds = value if isinstance(value, list | tuple) else [value]
    kinds = [*value.values()] if isinstance(value, Mapping) else kinds
    if any(hasattr(each, "__next__") or hasattr(each, "__anext__") for each in kinds):
        raise Incomparable("its answer is an iterator, which only its reader may read")
    try:
        return canonical(value, fields)
    except Incomparable:
        raise
    except Exception as failed:
        raise Incomparable(f"its answer has no comparable form ({type(failed).__name__})") from failed


@dataclass(frozen=True)
class Comparison:
    """How answers are compared. structure: why only the structure of values counts; "" if all of it does. exactly: keys
    of the answer that are compared exactly all the same.
    """

    structure: str = ""
    exactly: frozenset[str] = frozenset()

    def __str__(self) -> str:
        if not self.structure:
            return "exactly"
        keys = f"; {', '.join(sorted(self.exactly))} exactly" if self.exactly else ""
        return f"by structure, as {self.structure}{keys}"


def differences(stock: Answer, ours: Answer, how: Comparison) -> dict[str, str]:
    """Returns the parts that differ, each with a short diff."""
    structure = bool(how.structure)
    found: dict[str, str] = {}
    if stock.error != ours.error and (not structure or _kind(stock) != _kind(ours)):
        found["exception"] = _diff(stock.error, ours.error)
    if stock.kinds != ours.kinds and not found:
        found["chunk types"] = _diff(stock.kinds, ours.kinds)
    if "exception" in found:  # how far a stream got before it says no more
        return found
    if structure:
        one, other = _keys(stock.value, how.exactly), _keys(ours.value, how.exactly)
        if one != other:
            found["value"] = _diff(one, other)
        if lines := list(unlike(stock.value, ours.value)):
            found["structure"] = _short(lines)
    elif stock.value != ours.value:
        found["value"] = _diff(stock.value, ours.value)
    if found and stock.chunks is not None:
        found[next(iter(found))] += f"\nchunks: {stock.chunks} of stock, {ours.chunks} of fineflow"
    return found


def _keys(form: Any, names: frozenset[str]) -> dict[str, Any]:
    """Returns some keys of a canonical form, of a dict or an object."""
    fields = form.get("items", form) if isinstance(form, dict) else {}
    return {name: fields[name] for name in names if name in fields} if isinstance(fields, dict) else {}


def _kind(answer: Answer) -> Any:
    return None if answer.error is None else answer.error["type"]


def _diff(stock: Any, ours: Any) -> str:
    lines = list(difflib.unified_diff(as_lines(stock), as_lines(ours), "stock", "fineflow", lineterm="", n=1))
    return _short([*lines[:2], *_around(lines[2:])])


def _around(lines: Sequence[str]) -> Iterator[str]:
    """Cuts what long lines that replace each other begin with in common."""
    removed: list[str] = []
    for sign, grouped in groupby(lines, key=lambda line: line[:1]):
        group = list(grouped)
        if sign == "-":
            removed = group
            continue
        if sign == "+":
            pairs = list(zip_longest(removed, group))
            yield from (_cut(one, other) for one, other in pairs if one is not None)
            yield from (_cut(other, one) for one, other in pairs if other is not None)
        else:
            yield from (*removed, *group)
        removed = []
    yield from removed


def _cut(line: str, other: str | None) -> str:
    if other is None or len(line) <= _WIDTH:
        return line
    common = next((i for i, (a, b) in enumerate(zip(line[1:], other[1:], strict=False)) if a != b), len(line) - 1)
    return line if common <= _BEFORE else f"{line[0]}…{line[1 + common - _BEFORE :]}"


def _short(lines: Sequence[str]) -> str:
    shown = [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…" for line in lines[:_LINES]]
    more = len(lines) - len(shown)
    return "\n".join([*shown, f"… {more} more lines"] if more else shown)


def unlike(stock: Any, ours: Any, at: str = "answer") -> Iterator[str]:
    """Yields where the structure of two canonical forms differs: types, keys, and what is empty on one side only.

    None is like anything: a model may leave a field out. Of lists, each item has to be like one of the other list.
    """
    if stock is None or ours is None:
        return
    if _sort(stock) != _sort(ours):
        yield f"{at}: {_sort(stock)} of stock, {_sort(ours)} of fineflow"
    elif isinstance(stock, dict):
        for key in sorted(stock.keys() | ours.keys()):
            if key == "type" and stock.get(key) != ours.get(key):
                yield f"{at}: {stock.get(key)} of stock, {ours.get(key)} of fineflow"
            elif key not in stock or key not in ours:
                yield f"{at}: only {'stock' if key in stock else 'fineflow'} has {key!r}"
            else:
                yield from unlike(stock[key], ours[key], f"{at}.{key}")
    elif isinstance(stock, list) and stock:
        for mine, others, side in ((stock, ours, "stock"), (ours, stock, "fineflow")):
            for number, item in enumerate(mine):
                if not any(next(unlike(item, other), None) is None for other in others):
                    yield f"{at}[{number}]: the other side has no such item as that of {side}"


def _sort(form: Any) -> str:
    if isinstance(form, str | list):
        return f"{'' if form else 'empty '}{'text' if isinstance(form, str) else 'list'}"
    if isinstance(form, int | float) and not isinstance(form, bool):
        return "number"
    return type(form).__name__
