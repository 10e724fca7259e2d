"""Parsers whose value is known once the text is complete: what follows or stands beside them runs ahead."""

from __future__ import annotations

import enum
from operator import itemgetter
from typing import Any

import pytest
from langchain_classic.output_parsers import (
    BooleanOutputParser,
    CombiningOutputParser,
    DatetimeOutputParser,
    EnumOutputParser,
    OutputFixingParser,
    RegexDictParser,
    RegexParser,
    ResponseSchema,
    StructuredOutputParser,
    YamlOutputParser,
)
from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import (
    BaseOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
    StrOutputParser,
    XMLOutputParser,
)
from langchain_core.output_parsers.openai_tools import JsonOutputToolsParser
from langchain_core.runnables import RunnablePassthrough
from pipelines import QUESTION, ask, echo, same
from pydantic import BaseModel, Field, field_validator

import fineflow
from fineflow.ir import Op
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Found(BaseModel):
    number: int


class Lines(BaseOutputParser[list[str]]):
    """As in LangChain's documentation."""

    def parse(self, text: str) -> list[str]:
        lines = text.strip().split("\n")
        return list(filter(None, lines))


def _schemas() -> StructuredOutputParser:
    return StructuredOutputParser.from_response_schemas([ResponseSchema(name="a", description="x")])


PARSERS: dict[str, tuple[Any, str]] = {
    "xml": (lambda: XMLOutputParser(parser="xml"), "<a><b>1</b><b>2</b></a>"),
    "enum": (lambda: EnumOutputParser(enum=Color), " red\n"),
    "datetime": (DatetimeOutputParser, "2024-01-02T03:04:05.000006Z"),
    "boolean": (BooleanOutputParser, "YES"),
    "regex": (lambda: RegexParser(regex=r"(\w+), (\w+)", output_keys=["a", "b"]), "one, two"),
    "regex dict": (lambda: RegexDictParser(output_key_to_format={"a": "Action"}), "Action: look"),
    "structured": (_schemas, '```json\n{"a": "1"}\n```'),
    "yaml": (lambda: YamlOutputParser(pydantic_object=Found), "number: 3"),
    "combining": (
        lambda: CombiningOutputParser(parsers=[_schemas(), RegexParser(regex="(.*)", output_keys=["b"])]),
        '```json\n{"a": "1"}\n```\n\ntwo',
    ),
    "fixing": (lambda: fixing(JsonOutputParser()), '{"number": 3}'),
    "own": (Lines, "one\ntwo\n\n"),
}


def fixing(parser: Any) -> Any:
    return OutputFixingParser.from_llm(llm=FakeChat(default='{"number": 4}'), parser=parser)


def pipeline(parser: Any, text: str, *, seconds: float = 0.0) -> Any:
    """A parsed answer, a search that does not need it, and an answer from both."""
    store = FakeVectorStore.from_texts(["Paris", "Rome"], FakeEmbeddings(), latency=seconds)
    return (
        RunnablePassthrough.assign(x=ask("one {question}") | FakeChat(default=text, prefill=seconds) | parser)
        | RunnablePassthrough.assign(context=itemgetter("question") | store.as_retriever())
        | ask("{x} {context}")
        | FakeChat(answers=echo, prefill=seconds)
        | StrOutputParser()
    )


def seconds_of(make: Any) -> tuple[float, float]:
    stock = virtual.run(make().ainvoke(QUESTION))
    found = virtual.run(fineflow.optimize(make(), strict=True).ainvoke(QUESTION))
    assert found.value == stock.value
    return stock.seconds, found.seconds


@pytest.mark.parametrize("kind", PARSERS)
def test_the_answer_is_that_of_stock(kind: str) -> None:
    make, text = PARSERS[kind]
    same(lambda: pipeline(make(), text))


@pytest.mark.parametrize("kind", PARSERS)
def test_steps_around_a_parser_overlap(kind: str) -> None:
    make, text = PARSERS[kind]
    assert seconds_of(lambda: pipeline(make(), text, seconds=1)) == (3, 2)


@pytest.mark.parametrize("kind", PARSERS)
def test_a_text_that_does_not_parse_fails_as_in_stock(kind: str) -> None:
    make, _ = PARSERS[kind]
    same(lambda: pipeline(make(), "<neither this, nor that"), entries=("invoke", "ainvoke"))


# --- a parser with a model that fixes the text


def test_the_first_attempt_runs_ahead_and_stock_fixes_the_text() -> None:
    """The search still overlaps. What needs the parsed value waits for stock."""
    same(lambda: pipeline(fixing(JsonOutputParser()), "no JSON"))
    assert seconds_of(lambda: pipeline(fixing(JsonOutputParser()), "no JSON", seconds=1)) == (3, 2)


def test_a_parser_that_fails_in_the_first_attempt_of_fallbacks() -> None:
    """No fault of fineflow's: with strict=True the call would raise."""

    def make() -> Any:
        tried = FakeChat(default="no JSON") | JsonOutputParser()
        answered = tried.with_fallbacks([FakeChat(default='{"number": 3}') | JsonOutputParser()])
        return ask("{question}") | answered | ask("{number}") | FakeChat(answers=echo)

    same(make)


def test_fields_of_a_parser_that_fixes_are_read_by_name() -> None:
    parser = fixing(PydanticOutputParser(pydantic_object=Found))

    def make() -> Any:
        found = ask("{question}") | FakeChat(default='{"number": 3}') | parser
        return found | (lambda found: f"n{found.number}") | ask("{x}") | FakeChat(answers=echo)

    same(make)


def test_the_model_that_fixes_is_called_once() -> None:
    model = FakeChat(default='{"number": 4}')
    parser = OutputFixingParser.from_llm(llm=model, parser=JsonOutputParser())
    fineflow.optimize(pipeline(parser, "no JSON"), strict=True).invoke(QUESTION)
    assert model.meter.calls == 1


# --- what stays opaque


class Grade(enum.Enum):
    GOOD = "good"

    @classmethod
    def _missing_(cls, value: object) -> Grade:
        return cls.GOOD


class Strict(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _small(cls, value: int) -> int:
        return value % 10


class Remembering(BaseOutputParser[str]):
    seen: list[str] = Field(default_factory=list)

    def parse(self, text: str) -> str:
        self.seen.append(text)
        return text


class Raising(BaseOutputParser[str]):
    @property
    def _type(self) -> str:
        return "raising"

    def parse(self, text: str) -> str:
        if "no" in text:
            raise OutputParserException(text)
        return text


class Streaming(XMLOutputParser):
    def parse(self, text: str) -> Any:
        return super().parse(text.strip())


@pytest.mark.parametrize(
    "parser",
    [
        EnumOutputParser(enum=Grade),
        YamlOutputParser(pydantic_object=Strict),
        Remembering(),
        Raising(),
        Streaming(parser="xml"),
        fixing(Remembering()),
        fixing(JsonOutputToolsParser()),
        CombiningOutputParser(parsers=[RegexParser(regex="(.*)", output_keys=["b"]), Raising()]),
    ],
    ids=lambda parser: type(parser).__name__,
)
def test_what_may_run_user_code_is_left_to_stock(parser: Any) -> None:
    graph = fineflow.explain(ask("{question}") | FakeChat() | parser | ask("{x}") | FakeChat()).p_graph
    assert graph is not None
    assert not [p for p in graph if p.op is Op.PARSE]


def test_pieces_of_a_streamed_element_are_added_up_by_stock() -> None:
    """In calls that stream, the sum of the pieces is what later steps get; it need not be the parsed text."""

    def make() -> Any:
        model = FakeChat(default="<a><b>1</b><c><b>2</b></c><b>3</b></a>")
        return ask("{question}") | model | XMLOutputParser(parser="xml") | ask("{a}") | FakeChat(answers=echo)

    same(make)
