"""Generators, and functions of packages, that stand in chains: judged by reading them."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Iterator
from types import FunctionType
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableLambda, RunnablePassthrough
from pydantic import BaseModel, field_validator

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, prompt_text

needs_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")

TEXTS = ["one", "two", "three"]


def refuse(message: Any) -> None:
    if "REFUSED" in message.text:
        raise ValueError("refused")


def check(messages: Iterator[Any]) -> Iterator[Any]:
    for message in messages:
        refuse(message)
        yield message


async def acheck(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        refuse(message)
        yield message


def passed(messages: Iterator[Any]) -> Iterator[Any]:
    yield from messages


async def apassed(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield message


def loud(messages: Iterator[Any]) -> Iterator[Any]:
    for message in messages:
        print(message.text)
        yield message


async def aloud(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        print(message.text)
        yield message


async def ahalves(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield message.text[::2]


def halves(messages: Iterator[Any]) -> Iterator[Any]:
    for message in messages:
        yield message.text[::2]


def guarded(message: AIMessage) -> AIMessage:
    refuse(message)
    return message


class Fact(BaseModel):
    place: str
    known_for: str


class Upper(Fact):
    @field_validator("place")
    @classmethod
    def upper(cls, value: str) -> str:
        return value.upper()


def parsed(message: AIMessage, schema: Any) -> Any:
    refuse(message)
    return schema(**json.loads(message.text))


def packaged(func: Any) -> Any:
    """Returns the function as a package would define it."""
    scope = func.__globals__ | {"__name__": "langchain_core.checks"}
    return FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)


def says(messages: Any) -> str:
    prompt = prompt_text(messages)
    if "FACT" not in prompt:
        return prompt
    return "REFUSED" if "DANGER" in prompt else json.dumps({"place": "Torstad", "known_for": f"salt {len(prompt)}"})


STEPS: dict[str, Runnable[Any, Any]] = {
    "a generator": RunnableGenerator(packaged(check), packaged(acheck)) | JsonOutputParser(),
    "a generator with a type": RunnableGenerator(packaged(check), packaged(acheck)).with_types(output_type=AIMessage)
    | JsonOutputParser(),
    "of the user's": RunnableGenerator(passed, apassed) | JsonOutputParser(),
    "a function": RunnableLambda(packaged(guarded)) | JsonOutputParser(),
    "a model": RunnableLambda(functools.partial(packaged(parsed), schema=Fact)).with_types(output_type=Fact),
    "that prints": RunnableGenerator(loud, aloud) | JsonOutputParser(),
}
OPAQUE: dict[str, Runnable[Any, Any]] = {
    "the user's guard": RunnableGenerator(check, acheck) | JsonOutputParser(),
    "that yields other": RunnableGenerator(halves, ahalves) | StrOutputParser(),
    "a model that validates": RunnableLambda(functools.partial(packaged(parsed), schema=Upper)),
}


def asked(text: str, seconds: float = 0) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | FakeChat(answers=says, prefill=seconds)


def chain(step: Runnable[Any, Any], seconds: float = 0) -> Runnable[Any, Any]:
    """Asks for a fact, asks what needs nothing of it, and asks with both."""

    more = RunnablePassthrough.assign(more=asked("more on {question}", seconds) | StrOutputParser())
    fact = RunnablePassthrough.assign(fact=asked("FACT {question}", seconds) | step)
    return fact | more | asked("{fact} {more}", seconds)


@pytest.mark.parametrize("name", [*STEPS, *OPAQUE])
def test_same_answer(name: str) -> None:
    step = {**STEPS, **OPAQUE}[name]
    assert_same(lambda: chain(step), {"question": "one"}, strict=True)


@pytest.mark.parametrize("name", [*STEPS, *OPAQUE])
def test_same_error(name: str) -> None:
    step, value = {**STEPS, **OPAQUE}[name], {"question": "DANGER"}
    assert_same(lambda: chain(step), value, entries=("invoke", "ainvoke"))
    one_by_one = ("invoke", "ainvoke", "stream")  # an async stream that fails leaves tasks of stock's behind
    assert_same(lambda: asked("FACT {question}") | step | asked("on {place}"), value, entries=one_by_one)
    assert_same(lambda: chain(step.with_fallbacks([RunnableLambda(type)])), value, strict=True)


@needs_threads
@pytest.mark.parametrize(("name", "seconds"), [*((name, 2) for name in STEPS), *((name, 3) for name in OPAQUE)])
def test_later_steps_wait_for_none_that_was_read(name: str, seconds: float) -> None:
    fast = fineflow.optimize(chain({**STEPS, **OPAQUE}[name], 1), strict=True)
    assert virtual_threads.run(lambda: fast.invoke({"question": "one"})).seconds == seconds


@needs_threads
@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        *((name, 3 if name == "that prints" else 1) for name in STEPS),
        *((name, 1 if name == "a model that validates" else 3) for name in OPAQUE),
    ],
)
def test_calls_in_a_loop_wait_for_none_that_was_read(name: str, seconds: float) -> None:
    told = asked("FACT {text}", 1) | {**STEPS, **OPAQUE}[name]
    fast = fineflow.optimize(RunnableLambda(lambda texts: [str(told.invoke({"text": each})) for each in texts]))
    assert virtual_threads.run(lambda: fast.invoke(TEXTS)).seconds == seconds


def test_fields_go_on_through_a_generator() -> None:
    fields = asked("FACT {question}") | STEPS["a generator"] | asked("where is {place}")
    shown = " ".join(str(fineflow.explain(fields)).split())
    assert "each field goes on as soon as its value is complete" in shown


def test_fields_of_a_declared_model_are_known() -> None:
    graph = fineflow.explain(asked("FACT {question}") | STEPS["a model"] | RunnableLambda(lambda f: f.place)).p_graph
    assert graph is not None and graph.output.key == "place"


def test_a_plan_says_what_a_generator_does() -> None:
    shown = " ".join(str(fineflow.explain(chain(OPAQUE["that yields other"]), graphs=True)).split())
    assert "yields, and yields something else than what it gets" in shown


def test_a_wrapper_is_not_of_the_package_of_what_it_wraps() -> None:
    @functools.wraps(json.dumps)
    def own(message: Any) -> str:
        refuse(message)
        return str(message.text)

    own.__module__ = "langchain_core.checks"
    shown = " ".join(
        str(fineflow.explain(asked("FACT {question}") | RunnableLambda(own) | asked("on {text}"), graphs=True)).split()
    )
    assert "is pure, but has a raise or assert" in shown


def test_the_type_of_a_chain_is_not_that_of_its_steps() -> None:
    made = RunnableLambda(lambda fact: {"place": fact["place"]}) | RunnableLambda(lambda given: given["place"])
    places = asked("FACT {question}") | JsonOutputParser() | made.with_types(output_type=Fact)
    assert_same(lambda: places | asked("on {text}"), {"question": "one"}, strict=True)
    graph = fineflow.explain(places).p_graph
    assert graph is not None and "model" not in graph.primitives[-1].meta
