"""Incremental splitter for lists separated by commas; see `fineflow.adapters.text.items`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from enum import Enum
from io import StringIO

from fineflow.adapters.text.items import Checked


class _Field(Enum):
    START, BARE, QUOTED, QUOTE = range(4)  # QUOTE: behind a quote that ends the field, or is the first of two


class CommaSeparated(Checked[str]):
    """CommaSeparatedListOutputParser: one row of csv or more; split at commas and stripped where csv raises.

    As csv may raise at the end of the text still (at a lone carriage return, at a very long field), an item is final
    when its comma has come *and* both ways to parse it agree. They do not about a quoted item, one with blanks before
    its comma, or a newline within the list; from there on all items wait for the end.

    With ``eager``, csv is expected not to raise: quoted items are released too when their comma has come, and
    ``contradicted`` is set if it does raise and items differ.
    """

    def __init__(self, *, eager: bool = False) -> None:
        super().__init__(_comma_separated)
        self._eager = eager
        self._first = True
        self._open: list[str] = []  # what came behind the last comma outside quotes, in pieces
        self._field = _Field.START

    def _scan(self, text: str) -> Iterator[str]:
        start = 0
        for comma in self._commas(text):
            part = "".join([*self._open, text[start:comma]])
            self._open, start = [], comma + 1
            # A comma on both sides: csv reads a blank line, and the end of the text, in another way than an empty item.
            items = _csv_items(f"{part}," if self._first else f",{part},")[0 if self._first else 1 : -1]
            if not self._eager and items != _stripped_items(part):
                raise ValueError("the two ways to parse disagree")
            self._first = False
            yield from items
        self._open.append(text[start:])

    def _commas(self, text: str) -> Iterator[int]:
        """Where the commas outside quotes are."""
        field = self._field
        for at, character in enumerate(text):
            if field is _Field.QUOTED:
                field = _Field.QUOTE if character == '"' else field
            elif field is _Field.QUOTE and character == '"':
                field = _Field.QUOTED
            elif character == ",":
                yield at
                field = _Field.START
            elif character in "\r\n":
                field = _Field.START
            elif field is _Field.START and character == '"':
                field = _Field.QUOTED
            elif field is not _Field.START or character != " ":
                field = _Field.BARE
        self._field = field

    def _items(self, parsed: list[str]) -> list[str]:
        return parsed


def _csv_items(text: str) -> list[str]:
    return [item for row in csv.reader(StringIO(text), skipinitialspace=True) for item in row]


def _stripped_items(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _comma_separated(text: str) -> list[str]:
    try:
        return _csv_items(text)
    except csv.Error:
        return _stripped_items(text)
