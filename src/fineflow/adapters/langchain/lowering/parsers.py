"""Output parsers of langchain-core: PARSE primitives, and for list-producing ones the rule by which items are final."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from langchain_core.output_parsers import (
    BaseOutputParser,
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    PydanticOutputParser,
    StrOutputParser,
)
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    JsonOutputToolsParser,
    PydanticToolsParser,
)

from fineflow.adapters.core.builder import MESSAGE, TEXT, VALUE, Leaf, Symbol
from fineflow.adapters.core.recognition import NotLowered, Row
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.pydantic_fields import plain_model
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.text.csv_items import CommaSeparated
from fineflow.adapters.text.items import Lines, Markdown, Numbered, Splitter
from fineflow.adapters.text.json_items import JsonFields, JsonItems
from fineflow.ir import Op

Splitters = Mapping[str, Callable[[], Splitter[Any]]]
"""What takes the items out of a text while it comes, by what an item is called."""

_POINTS = NumberedListOutputParser.model_fields["pattern"].default
_BULLETS = MarkdownListOutputParser.model_fields["pattern"].default


def _splitters(parser: BaseOutputParser[Any]) -> Splitters:
    """Of a parser; {} if it makes nothing whose items are known one by one."""
    if isinstance(parser, NumberedListOutputParser):
        return {"points": Numbered} if parser.pattern == _POINTS else {}
    if isinstance(parser, MarkdownListOutputParser):
        return {"bullets": Markdown} if parser.pattern == _BULLETS else {}
    if isinstance(parser, CommaSeparatedListOutputParser):
        return {"values": partial(CommaSeparated, eager=True)}
    if isinstance(parser, PydanticOutputParser):
        return {"fields": partial(JsonFields, JsonOutputParser().parse)}
    if isinstance(parser, JsonOutputParser):
        return {"elements": partial(JsonItems, parser.parse), "fields": partial(JsonFields, parser.parse)}
    return {"lines": Lines} if type(parser).__name__ == "LineListOutputParser" else {}


def _lower_parser(parser: BaseOutputParser[Any], value: Symbol, b: ChainBuilder) -> Symbol:
    if not isinstance(value, Leaf):
        raise NotLowered("it is given a dict, not a text")
    told: dict[str, Any] = {}
    if isinstance(parser, StrOutputParser):
        told["through"] = True  # what it is given in pieces it passes on in pieces
    if isinstance(parser, PydanticOutputParser):
        if not plain_model(parser.pydantic_object):
            raise NotLowered("its model has validators, aliases or types of its own, which are user code")
        told["model"] = parser.pydantic_object
    if splitters := _splitters(parser):
        told.update(items=next(iter(splitters)), splitters=splitters)
    kind = TEXT if isinstance(parser, StrOutputParser) else VALUE
    return b.add(Op.PARSE, {"text": value.ref}, component=parser, kind=kind, **told)


def _lower_tools_parser(parser: JsonOutputToolsParser, value: Symbol, b: ChainBuilder) -> Symbol:
    """What makes objects of the calls in a message: known as a whole, when the message is."""
    if not isinstance(value, Leaf) or value.kind != MESSAGE:
        raise NotLowered("it is not given a chat model's message")
    if isinstance(parser, PydanticToolsParser) and not all(map(plain_model, parser.tools)):
        raise NotLowered("a model of its has validators, aliases or types of its own, which are user code")
    told: dict[str, Any] = {}
    if isinstance(parser, PydanticToolsParser) and parser.first_tool_only and len(parser.tools) == 1:
        told["model"] = parser.tools[0]
    # In calls that stream it gives one list after the other, which stock adds up for what comes behind.
    return b.add(Op.PARSE, {"text": value.ref}, component=parser, kind=VALUE, cumulative=True, **told)


_METHODS = (*RUN, "parse", "parse_result", "aparse_result", "aparse")

ROWS = (
    *(
        Row(kind, _METHODS, _lower_parser, label="parser", reads=("pattern",))
        for kind in (
            StrOutputParser,
            JsonOutputParser,
            CommaSeparatedListOutputParser,
            NumberedListOutputParser,
            MarkdownListOutputParser,
        )
    ),
    *(
        Row(kind, _METHODS, _lower_tools_parser, label="parser", reads=("tools", "first_tool_only"))
        for kind in (JsonOutputToolsParser, JsonOutputKeyToolsParser, PydanticToolsParser)
    ),
    Row(
        PydanticOutputParser,
        (*_METHODS, "_parse_obj", "_parser_exception"),
        _lower_parser,
        label="parser",
        reads=("pydantic_object",),
    ),
)


def classic_rows() -> tuple[Row, ...]:
    """Rows of langchain-classic, where it is installed."""
    try:
        from langchain_classic.retrievers.multi_query import LineListOutputParser
    except ImportError:
        return ()
    return (Row(LineListOutputParser, _METHODS, _lower_parser, label="parser", reads=()),)
