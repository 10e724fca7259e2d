"""What is released of a text while it comes, against what stock makes of the whole text.

Random texts, cut at random permits, for every parser and function whose items or fields are known early.
``FINEFLOW_FUZZ=5000`` runs that many examples of each property, other ones each time, instead of the bounded suite.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from langchain_classic.retrievers.multi_query import LineListOutputParser
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    PydanticOutputParser,
    StrOutputParser,
)
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel

from fineflow.adapters.langchain.kernels.common import LeftToStock
from fineflow.adapters.langchain.kernels.models import Source
from fineflow.adapters.langchain.kernels.operations import KERNELS
from fineflow.adapters.langchain.planning import lower
from fineflow.ir import Op, Primitive
from fineflow.options import Options
from fineflow.runtime.call.streams import Stream
from fineflow.testing.langchain import FakeChat
from fuzzing import bounded


class Plan(BaseModel):
    query: str
    number: int = 3
    words: list[str] = []


def lines_of(text: str) -> list[str]:
    """The lines that say something."""
    lines = text.strip().split("\n")
    return [line.strip() for line in lines if line.strip()]


EXACT: dict[str, Any] = {
    "line parser": LineListOutputParser(),
    "numbers": NumberedListOutputParser(),
    "bullets": MarkdownListOutputParser(),
    "split": RunnableLambda(lambda x: x.split("\n")),
    "strip split": RunnableLambda(lambda x: x.strip().split("\n")),
    "split at commas": RunnableLambda(lambda x: x.split(",")),
    "split at two characters": RunnableLambda(lambda x: x.split("\n\n")),
    "words": RunnableLambda(lambda x: x.split()),
    "lines": RunnableLambda(lambda x: x.splitlines()),
    "stripped lines": RunnableLambda(lambda x: x.strip().splitlines()),
    "str.splitlines": RunnableLambda(str.splitlines),
    "lines with something": RunnableLambda(lambda x: [line for line in x.split("\n") if line.strip()]),
    "lines that are not empty": RunnableLambda(lambda x: list(filter(None, x.split("\n")))),
    "stripped parts": RunnableLambda(lambda x: [part.strip() for part in x.split(",")]),
    "function": RunnableLambda(lines_of),
    "content": RunnableLambda(lambda m: m.content.split("\n")),
    "content stripped": RunnableLambda(lambda m: [q for q in m.content.strip().split("\n") if q]),
}
HOPEFUL: dict[str, Any] = {"commas": CommaSeparatedListOutputParser(), "elements": JsonOutputParser()}
OBJECTS: dict[str, Any] = {"json": JsonOutputParser(), "pydantic": PydanticOutputParser(pydantic_object=Plan)}


def primitive(step: Runnable[Any, Any], *, through: bool, fields: bool = False) -> Primitive:
    chain: Any = PromptTemplate.from_template("{x}") | FakeChat()
    chain = chain | StrOutputParser() | step if through else chain | step
    graph = lower(chain, Options(), text_input=True)[0]
    (found,) = [p for p in graph if "splitters" in p.meta]
    return found.with_(params={"items": "fields"}) if fields else found


class Run:
    """Notes what is released, in place of an execution."""

    def __init__(self) -> None:
        self.released: list[tuple[str | None, Any]] = []

    def release(self, p: Primitive, key: str | None, value: Any) -> None:
        self.released.append((key, value))

    def spawn(self, work: Any, p: Primitive) -> Any:
        return work


class Outcome:
    """What came early (items, or fields in order), all that was released, and the value or exception of the whole."""

    def __init__(self, p: Primitive, pieces: Iterable[str], whole: Any) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        run = Run()

        async def read() -> AsyncIterator[str]:
            for piece in pieces:
                yield piece

        async def end() -> Any:
            self.early = self._now(run)
            return whole

        self.early: list[Any] = []
        argument = "value" if p.op is Op.CALL else "text"
        try:
            self.value = asyncio.run(KERNELS[p.op](p, {argument: Source(read, end)}, run))  # type: ignore[arg-type]
        except Exception as error:
            self.error = error
        self.released = self._now(run)
        self.streams = [value for key, value in run.released if key is None]

    @staticmethod
    def _now(run: Run) -> list[Any]:
        found: list[Any] = []
        for key, value in run.released:
            found += value.items if isinstance(value, Stream) else [(key, value)]
        return found


def cut(text: str, permits: Iterable[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in permits), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def near(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts) | st.text(max_size=2), max_size=25).map("".join)


PLACES = st.lists(st.integers(0, 10**6), max_size=30)
TEXTS = near(
    *("a", "query", "é", "😀", ",", ", ", "1. a\n", "\n2.", "- ", "\n* b"),
    *(" ", "\n", "\n\n", "\r", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\xa0", "\u2028"),
)


def check(step: Runnable[Any, Any], text: str, permits: list[int], *, message: bool, hopeful: bool) -> Outcome:
    given: Any = AIMessage(text) if message else text
    found = Outcome(primitive(step, through=not message), cut(text, permits), given)
    (items,) = found.streams
    try:
        expected = step.invoke(given)
    except Exception as error:
        assert type(found.error) is type(error)
        assert items.error is found.error
        return found
    assert found.error is None
    assert repr(found.value) == repr(expected)
    if items.error is None:
        assert repr(items.items) == repr(expected)
    else:
        assert hopeful and (found.early or type(expected) is not list)
        assert isinstance(items.error, LeftToStock)
        assert type(expected) is not list or repr(found.early) != repr(expected[: len(found.early)])
    return found


@pytest.mark.parametrize("kind", EXACT)
@bounded(60)
@given(TEXTS, PLACES)
@example("\n a \n \n b\r\nc,d, \n", list(range(20)))
def test_items_of_any_text(kind: str, text: str, permits: list[int]) -> None:
    early = check(EXACT[kind], text, permits, message="content" in kind, hopeful=False).early
    event("something came early" if early else "nothing came early")


JSON = near('["a"', ', "b"', ",", "]", '"', "\\u00", "e9", "\\", '{"a":', "}", "1", "true", "```json", "```", " ", "[")
COMMAS = near(",", ", ", '"', '""', '",', ', "', "\r", "\n", "a", " ")


@bounded(60)
@given(COMMAS, PLACES, st.booleans())
def test_items_of_any_values(text: str, permits: list[int], message: bool) -> None:
    check(HOPEFUL["commas"], text, permits, message=message, hopeful=True)


@bounded(60)
@given(JSON, PLACES, st.booleans())
@example('["a", "b"]]', [3, 6], True)
@example('["\\ud83d\\ude00", {"b": ["]", "\\""]}]', list(range(40)), True)
def test_items_of_any_json(text: str, permits: list[int], message: bool) -> None:
    check(HOPEFUL["elements"], text, permits, message=message, hopeful=True)


def test_a_text_that_takes_back_its_beginning() -> None:
    """Whoever has consumed items is left to stock, and gets none of the others."""
    text = '["a", foo] ```json ["c", "d"]```'
    found = check(HOPEFUL["elements"], text, list(range(len(text))), message=True, hopeful=True)
    assert found.early == ["a"] and found.value == ["c", "d"]
    (items,) = found.streams
    assert items.items == ["a"] and isinstance(items.error, LeftToStock)


NAMES = st.sampled_from(('"query"', '"number"', '"words"', '"other"', '"quer\\u0079"'))
VALUES = st.sampled_from(
    ('"a"', '"b\\n"', "3", '"4"', "4.0", "true", "null", '["a", "b"]', "[1]", '"\\"}"', '{"q": 1}')
)
FIELDS = st.lists(st.tuples(NAMES, VALUES).map(": ".join), max_size=5).map(", ".join)
HEADS = st.sampled_from(("", "", "```json\n", "```", " \n", "Sure! "))
WELL = ("}", "}\n```", "", ', "quer')  # ended, or cut short, which stock repairs
TAILS = st.sampled_from((*WELL, *WELL, "}]", "} Done."))


@pytest.mark.parametrize("kind", OBJECTS)
@bounded(60)
@given(HEADS, FIELDS, TAILS, PLACES, st.booleans())
@example("", '"query": "a", "query": "b"', "}", [14], True)
@example("", '"query": "a", "number": "4", "words": ["x"]', "}", list(range(50)), True)
def test_fields_of_any_object(kind: str, head: str, body: str, tail: str, permits: list[int], message: bool) -> None:
    parser = OBJECTS[kind]
    text = f"{head}{{{body}{tail}"
    given = AIMessage(text) if message else text
    found = Outcome(primitive(parser, through=not message, fields=True), cut(text, permits), given)
    try:
        expected = parser.invoke(given)
    except Exception as error:
        assert type(found.error) is type(error)
        return
    assert found.error is None
    assert repr(found.value) == repr(expected)
    fields = dict(expected) if isinstance(expected, (dict, BaseModel)) else {}
    keys = [key for key, _ in found.early]
    assert len(set(keys)) == len(keys)
    said = [key for key, _ in json.loads(f"{{{body}}}", object_pairs_hook=list)]
    for key, value in found.early:
        # Malformed JSON aside, one thing can be said too early: a later field of the same name replaces the first.
        assert tail not in WELL or said.count(key) > 1 or repr(fields[key]) == repr(value)
    event("a field came early" if keys else "no field came early")
    if kind == "pydantic":
        assert dict(found.released[len(found.early) :]) == fields  # what others read by name


def test_moments() -> None:
    """A field comes when its value closes, converted ones of a model when the whole is there."""
    text = '{"query": "a", "number": "4", "words": ["x"]}'
    for parser, keys in ((OBJECTS["json"], ["query", "number", "words"]), (OBJECTS["pydantic"], ["query", "words"])):
        found = Outcome(primitive(parser, through=False, fields=True), [text], AIMessage(text))
        assert [key for key, _ in found.early] == keys


Step = Callable[[Any], Any]
UNKNOWN: dict[str, Step] = {
    "limited": lambda x: x.split("\n", 1),
    "first": lambda x: x.split("\n")[0],
    "lower": lambda x: x.lower().split("\n"),
    "nothing to split at": lambda x: x.split(""),
    "of an attribute": lambda x: x.name.split("\n"),
    "another condition": lambda x: [line for line in x.split("\n") if line.lower()],
    "numbers": lambda x: [float(number) for number in x.split(",")],
    "content of a text": lambda x: x.content.split("\n"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_functions_that_only_resemble(kind: str) -> None:
    chain: Any = PromptTemplate.from_template("{x}") | FakeChat() | StrOutputParser() | RunnableLambda(UNKNOWN[kind])
    graph = lower(chain, Options(), text_input=True)[0]
    assert not any("items" in p.params for p in graph)


def test_a_function_of_messages_needs_a_message() -> None:
    chain: Any = PromptTemplate.from_template("{x}") | FakeChat() | RunnableLambda(lambda x: x.split("\n"))
    graph = lower(chain, Options(), text_input=True)[0]
    assert not any("items" in p.params for p in graph)
