"""Incremental splitter for lists separated by commas; see `fineflow.adapters.text.items`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from enum import Enum
from io import StringIO

from fineflow.adapters.text.items import CheckedItems


class _Field(Enum):
    START, BARE, QUOTED, QUOTE = range(4)  # QUOTE: after a quote that ends the field, or is the first of two


class CommaSeparated(CheckedItems[str]):
    """CommaSeparatedListOutputParser: one or more csv rows; split at commas and stripped if csv raises.

    An item is released at its comma. csv may still raise at the end of the text (on a lone carriage return, a very long
    field): ``contradicted`` is set if it does and items differ.
    """

    def __init__(self) -> None:
        super().__init__(_comma_separated)
        self._first = True
        self._open: list[str] = []  # text after the last comma outside quotes, in pieces
        self._field = _Field.START

    def _scan(self, text: str) -> Iterator[str]:
        start = 0
        for comma in self._commas(text):
            part = "".join([*self._open, text[start:comma]])
            self._open, start = [], comma + 1
            # A comma on both sides: csv reads a blank line, or the end of the text, differently from an empty item.
            items = _csv_items(f"{part}," if self._first else f",{part},")[0 if self._first else 1 : -1]
            self._first = False
            yield from items
        self._open.append(text[start:])

    def _commas(self, text: str) -> Iterator[int]:
        """Yields the positions of the commas outside quotes."""
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
