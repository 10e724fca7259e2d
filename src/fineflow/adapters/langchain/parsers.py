"""Output parsers of langchain-core: PARSE primitives, and for list-producing ones the rule by which items are final."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.output_parsers import (
    BaseOutputParser,
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    StrOutputParser,
)

from fineflow.adapters.base import TEXT, VALUE, Builder, Leaf, NotLowered, Row, Symbol
from fineflow.adapters.langchain.structure import RUN
from fineflow.ir import Op


class Lines:
    """Incremental ``text.strip().split("\\n")`` without empty lines.

    A line is final when its newline *and* a later non-blank character have come: before that, stock's ``strip`` of
    the whole text could still take blanks off its end, or drop it.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._started = False

    def push(self, text: str) -> Iterator[str]:
        """The lines that this piece of text makes final."""
        self._pending += text
        if not self._started:
            self._pending = self._pending.lstrip()
            self._started = bool(self._pending)
        settled = len(self._pending.rstrip())
        cut = self._pending.rfind("\n", 0, settled)
        if cut >= 0:
            lines, self._pending = self._pending[:cut], self._pending[cut + 1 :]
            yield from filter(None, lines.split("\n"))

    def close(self) -> Iterator[str]:
        """The lines that the end of the text makes final."""
        yield from filter(None, self._pending.rstrip().split("\n"))


def _lower_parser(parser: BaseOutputParser[Any], value: Symbol, b: Builder) -> Symbol:
    if not isinstance(value, Leaf):
        raise NotLowered("parses a record")
    if getattr(parser, "pydantic_object", None) is not None:
        raise NotLowered("a pydantic model may have validators of the user's")
    kind = TEXT if isinstance(parser, StrOutputParser) else VALUE
    items: dict[str, Any] = {"items": "lines"} if type(parser).__name__ == "LineListOutputParser" else {}
    return b.add(Op.PARSE, {"text": value.ref}, component=parser, kind=kind, **items)


def _same(parser: Any, shadows: Any) -> Any:
    return parser


_METHODS = (*RUN, "parse", "parse_result", "aparse_result", "aparse")

ROWS = tuple(
    Row(kind, _METHODS, _lower_parser, _same, "parser")
    for kind in (
        StrOutputParser,
        JsonOutputParser,
        CommaSeparatedListOutputParser,
        NumberedListOutputParser,
        MarkdownListOutputParser,
    )
)


def classic_rows() -> tuple[Row, ...]:
    """Rows of langchain-classic, where it is installed."""
    try:
        from langchain_classic.retrievers.multi_query import LineListOutputParser
    except ImportError:
        return ()
    return (Row(LineListOutputParser, _METHODS, _lower_parser, _same, "parser"),)
