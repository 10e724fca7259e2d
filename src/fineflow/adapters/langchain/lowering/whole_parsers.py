"""Lowers output parsers whose value is known only once the text is complete; ``parsers`` has those with items."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum, EnumMeta
from types import FunctionType
from typing import Any

from langchain_core.output_parsers import BaseOutputParser, XMLOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputToolsParser

from fineflow.adapters.analysis import analyse
from fineflow.adapters.analysis.pydantic_fields import plain_model
from fineflow.adapters.core.builder import VALUE, Leaf, Symbol
from fineflow.adapters.core.installers import module_of, of_package
from fineflow.adapters.core.recognition import NamedRow, Row
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.python.bytecode import decode
from fineflow.ir import Op

_CLASSIC = "langchain_classic.output_parsers"
_METHODS = (*RUN, "parse", "parse_result", "aparse_result", "aparse")


def _nothing(parser: Any) -> str:
    return ""


def _own_enum(parser: Any) -> str:
    """Returns why looking up a member of the parser's enum could run user code; "" if it cannot."""
    kind = parser.enum
    plain = type(kind) is EnumMeta and kind._missing_.__func__ is Enum._missing_.__func__  # type: ignore[attr-defined]
    if plain and all(type(member.value) is str for member in kind):
        return ""
    return "its enum has code of its own, or values that are no texts"


def _own_model(parser: Any) -> str:
    return "" if plain_model(parser.pydantic_object) else "its model has validators, aliases or custom types"


def _lowering(refusal: Callable[[Any], str] = _nothing, *, added: bool = False) -> Callable[..., Symbol]:
    """Returns the lowering of a parser to one PARSE.

    refusal: returns why a parser is left to stock. added: in calls that stream, stock adds up its pieces.
    """

    def lower(parser: Any, value: Symbol, b: ChainBuilder) -> Symbol:
        if not isinstance(value, Leaf):
            raise NotLowered("its input is a dict, not a text")
        if why := refusal(parser):
            raise NotLowered(why)
        given: dict[str, Any] = {"added": True} if added and not b.invoked else {}
        return b.add(Op.PARSE, {"text": value.ref}, component=parser, kind=VALUE, **given)

    return lower


def _lower_combining(parser: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    others = (row for row in (*ROWS, *CLASSIC) if row.label == "parser")
    known = [row for row in others if not (isinstance(row, NamedRow) and row.name == "CombiningOutputParser")]
    for part in parser.parsers:
        row = next((row for row in known if row.matches(part)), None)
        if row is None:
            raise NotLowered(f"its part {type(part).__name__} is not recognised")
        row.lower(part, value, b.body())  # refuses what may not run ahead
    return _lowering()(parser, value, b)


def _lower_fixing(parser: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers an ``OutputFixingParser`` to the parser that it wraps: what follows gets on with the first attempt.

    Stock calls the parser itself, and the model that fixes the text if that fails. Then no value of the graph is used.
    """
    before = len(b.primitives)
    with b.inside("parser", ""):
        made = b.lower(parser.parser, value)
    of_calls = isinstance(parser.parser, JsonOutputToolsParser)  # its parse method, which stock calls, only raises
    if of_calls or any(p.by_stock for p in b.primitives[before:]):
        raise NotLowered(f"it wraps a {type(parser.parser).__name__}, which is left to stock")
    return made


def _lower_own(parser: BaseOutputParser[Any], value: Symbol, b: ChainBuilder) -> Symbol:
    """Lowers a parser of the user's own whose ``parse`` is a pure function of the text."""
    func = vars(next(kind for kind in type(parser).__mro__ if "parse" in vars(kind)))["parse"]
    if type(func) is not FunctionType or of_package(module_of(func)):
        raise NotLowered("is not recognised: runs through its own methods")
    if _reads_self(func):
        raise NotLowered(f"its parse method reads {func.__code__.co_varnames[0]}, whose attributes can change")
    verdict = analyse(functools.partial(func, None))
    if not (verdict.pure or b.assume_pure) or verdict.raises:
        raise NotLowered(f"its parse method {verdict.reason if not verdict.pure else 'has a raise or assert'}")
    return _lowering()(parser, value, b)


def _reads_self(func: FunctionType) -> bool:
    """Returns True if a method uses its first parameter."""
    code = func.__code__
    if not code.co_argcount or code.co_varnames[0] in code.co_cellvars or "__class__" in code.co_freevars:
        return True
    name = code.co_varnames[0]
    return any(i.value == name for i in decode(code) if i.name.startswith(("LOAD_FAST", "LOAD_DEREF")))


def _classic(module: str, name: str, lower: Any = None) -> NamedRow:
    found = lower or _lowering()
    return NamedRow(
        BaseOutputParser, _METHODS, found, label="parser", reads=None, module=f"{_CLASSIC}.{module}", name=name
    )


ROWS = (Row(XMLOutputParser, _METHODS, _lowering(added=True), label="parser", reads=("parser", "encoding_matcher")),)

CLASSIC = (
    _classic("enum", "EnumOutputParser", _lowering(_own_enum)),
    _classic("datetime", "DatetimeOutputParser"),
    _classic("boolean", "BooleanOutputParser"),
    _classic("regex", "RegexParser"),
    _classic("regex_dict", "RegexDictParser"),
    _classic("structured", "StructuredOutputParser"),
    _classic("yaml", "YamlOutputParser", _lowering(_own_model)),
    _classic("combining", "CombiningOutputParser", _lower_combining),
    _classic("fix", "OutputFixingParser", _lower_fixing),
)
LAST = (
    Row(
        BaseOutputParser,
        (*RUN, "parse_result", "aparse_result", "aparse"),
        _lower_own,
        label="parser",
        reads=None,
        calls=("parse",),
    ),
)
"""Comes after the rows of all known parsers."""
