"""Output parsers of langchain-core: PARSE primitives, and for list-producing ones the rule by which items are final."""

from __future__ import annotations

from collections.abc import Callable
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
from fineflow.adapters.items import CommaSeparated, Lines, Markdown, Numbered, Splitter
from fineflow.adapters.json_items import JsonItems
from fineflow.adapters.langchain.structure import RUN
from fineflow.ir import Op

SPLITTERS: dict[str, Callable[[Any], Splitter[Any]]] = {
    "lines": lambda parser: Lines(),
    "values": lambda parser: CommaSeparated(eager=True),
    "points": lambda parser: Numbered(),
    "bullets": lambda parser: Markdown(),
    "elements": lambda parser: JsonItems(parser.parse),
}
"""What takes the items out of a text while it comes, by what an item is called."""


def _items(parser: BaseOutputParser[Any]) -> str:
    """What the items of the parser's list are called; "" if it makes no list whose items are known one by one."""
    if isinstance(parser, (NumberedListOutputParser, MarkdownListOutputParser)):
        usual = type(parser).model_fields["pattern"].default
        name = "points" if isinstance(parser, NumberedListOutputParser) else "bullets"
        return name if parser.pattern == usual else ""
    if isinstance(parser, CommaSeparatedListOutputParser):
        return "values"
    if isinstance(parser, JsonOutputParser):
        return "elements"
    return "lines" if type(parser).__name__ == "LineListOutputParser" else ""


def _lower_parser(parser: BaseOutputParser[Any], value: Symbol, b: Builder) -> Symbol:
    if not isinstance(value, Leaf):
        raise NotLowered("parses a record")
    if getattr(parser, "pydantic_object", None) is not None:
        raise NotLowered("a pydantic model may have validators of the user's")
    kind = TEXT if isinstance(parser, StrOutputParser) else VALUE
    items = _items(parser)
    told: dict[str, Any] = {"items": items} if items else {}
    return b.add(Op.PARSE, {"text": value.ref}, component=parser, kind=kind, **told)


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
