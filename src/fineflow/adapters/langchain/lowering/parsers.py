"""Lowers langchain-core's output parsers to PARSE primitives, with the rule by which items become final."""

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

from fineflow.adapters.analysis.pydantic_fields import plain_model
from fineflow.adapters.core.builder import TEXT, VALUE, Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.text.csv_items import CommaSeparated
from fineflow.adapters.text.items import Lines, Markdown, Numbered, Splitter
from fineflow.adapters.text.json_items import JsonFields, JsonItems
from fineflow.ir import Op

Splitters = Mapping[str, Callable[[], Splitter[Any]]]
"""Factories of the splitters that take items out of a text while it is written, by the name of an item."""

_POINTS = NumberedListOutputParser.model_fields["pattern"].default
_BULLETS = MarkdownListOutputParser.model_fields["pattern"].default


def _splitters(parser: BaseOutputParser[Any]) -> Splitters:
    """Returns a parser's splitters; {} if its items cannot be known one by one."""
    if isinstance(parser, NumberedListOutputParser):
        return {"points": Numbered} if parser.pattern == _POINTS else {}
    if isinstance(parser, MarkdownListOutputParser):
        return {"bullets": Markdown} if parser.pattern == _BULLETS else {}
    if isinstance(parser, CommaSeparatedListOutputParser):
        return {"values": CommaSeparated}
    if isinstance(parser, PydanticOutputParser):
        return {"fields": partial(JsonFields, JsonOutputParser().parse)}
    if isinstance(parser, JsonOutputParser):
        return {"elements": partial(JsonItems, parser.parse), "fields": partial(JsonFields, parser.parse)}
    return {"lines": Lines} if type(parser).__name__ == "LineListOutputParser" else {}


def _lower_parser(parser: BaseOutputParser[Any], value: Symbol, b: ChainBuilder) -> Symbol:
    if not isinstance(value, Leaf):
        raise NotLowered("its input is a dict, not a text")
    params: dict[str, Any] = {}
    if isinstance(parser, StrOutputParser):
        params["through"] = True  # streams its input on, piece by piece
    if isinstance(parser, PydanticOutputParser):
        if not plain_model(parser.pydantic_object):
            raise NotLowered("its model has validators, aliases or custom types, which are user code")
        params["model"] = parser.pydantic_object
    if splitters := _splitters(parser):
        params.update(items=next(iter(splitters)), splitters=splitters)
    kind = TEXT if isinstance(parser, StrOutputParser) else VALUE
    return b.add(Op.PARSE, {"text": value.ref}, component=parser, kind=kind, **params)


def _lower_tools_parser(parser: JsonOutputToolsParser, value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers a parser that makes objects of a message's tool calls: known as a whole, once the message is."""
    if not isinstance(value, Leaf):
        raise NotLowered("its input is a dict, not a message")
    if isinstance(parser, PydanticToolsParser) and not all(map(plain_model, parser.tools)):
        raise NotLowered("one of its models has validators, aliases or custom types, which are user code")
    params: dict[str, Any] = {}
    if isinstance(parser, PydanticToolsParser) and parser.first_tool_only and len(parser.tools) == 1:
        params["model"] = parser.tools[0]
    # In streaming calls it emits ever larger lists, which stock adds up for later steps.
    return b.add(Op.PARSE, {"text": value.ref}, component=parser, kind=VALUE, cumulative=True, **params)


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
    """Returns the rows of langchain-classic, which is imported."""
    try:
        from langchain_classic.retrievers.multi_query import LineListOutputParser
    except ImportError:
        return ()
    return (Row(LineListOutputParser, _METHODS, _lower_parser, label="parser", reads=()),)
