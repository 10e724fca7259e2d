"""Structured output of the providers' own classes: recognised, with its gain, and the same as stock in all else."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langgraph.graph import START, StateGraph
from providers import FAILS, FILTERED, INVALID, PROVIDERS, REFUSED, ProviderServer, model_of
from pydantic import BaseModel, Field

import fineflow

TEXTS = ["one", "two", "three"]
METHODS = ("function_calling", "json_schema", "json_mode")


class Grade(BaseModel):
    """How good a text is."""

    score: int = Field(description="from 0 to 9")
    reason: str


class Checked(TypedDict):
    """How good a text is."""

    score: int
    reason: str


@pytest.fixture(scope="module")
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as found:
        yield found


def structured(provider: str, server: ProviderServer, method: str, schema: Any = Grade, **options: Any) -> Any:
    """Returns a grader of texts; skips the test if the provider has no such form."""
    model = model_of(provider, server.url)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of methods that stand for others
            made = model.with_structured_output(schema, method=method, **options)
    except (TypeError, ValueError) as error:
        pytest.skip(f"{provider} refuses this form: {error}")
    return ChatPromptTemplate.from_template("Grade {text}.") | made


def shown(value: Any) -> Any:
    """Returns an answer without ids, which some packages draw."""
    if isinstance(value, BaseMessage):
        return shown(value.model_dump())
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items() if key != "id"}
    if isinstance(value, list):
        return [shown(part) for part in value]
    return repr(value) if isinstance(value, BaseException) else value


def outcome(call: Callable[[Any], Any], value: Any) -> Any:
    """Returns what a call returns, or raises, comparably."""
    try:
        return shown(call(value))
    except Exception as error:
        return type(error), str(error)


def same_with(
    server: ProviderServer, app: Any, value: Any, together: int, *, after: int = 0, awaits: bool = False
) -> Any:
    """Returns the answer of an app; the optimized one gives the same, with that many requests under way at once.

    after: requests that are answered before. awaits: by ``ainvoke``.
    """

    def call(app: Any) -> Any:
        return outcome(lambda value: asyncio.run(app.ainvoke(value)) if awaits else app.invoke(value), value)

    server.restart()
    stock = call(app)
    assert server.most == 1
    asked = sorted(server.prompts)
    server.restart(opened=False)
    fast, found = fineflow.optimize(app, eager=True), list[Any]()
    thread = threading.Thread(target=lambda: found.append(call(fast)))
    thread.start()
    server.gate.let(after)
    server.gate.wait_arrived(after + together)
    server.gate.open()
    thread.join(20)
    assert found == [stock]
    assert sorted(server.prompts) == asked
    return stock


def loop(grader: Any) -> Any:
    """A function that grades one text after the other."""

    async def agrade(texts: list[str]) -> list[Any]:
        return [await grader.ainvoke({"text": text}) for text in texts]

    return RunnableLambda(lambda texts: [grader.invoke({"text": text}) for text in texts], agrade)


def making(model: Any, **options: Any) -> Any:
    """A function that makes its grader for each text anew."""

    def grade(texts: list[str]) -> list[Any]:
        prompt = ChatPromptTemplate.from_template("Grade {text}.")
        return [(prompt | model.with_structured_output(Grade, **options)).invoke({"text": text}) for text in texts]

    return RunnableLambda(grade)


def node(grader: Any) -> Any:
    """A graph with such a function."""

    class State(TypedDict):
        texts: list[str]
        grades: list[Any]

    def grade(state: State) -> dict[str, Any]:
        grades = []
        for text in state["texts"]:
            grades.append(grader.invoke({"text": text}))
        return {"grades": grades}

    graph = StateGraph(State)
    graph.add_node("grade", grade)
    graph.add_edge(START, "grade")
    return graph.compile()


def chain(grader: Any) -> Any:
    """Two graders in a row that need nothing from each other."""
    second = RunnableLambda(lambda given: {"text": given["other"]}) | grader
    return RunnablePassthrough.assign(first=grader) | RunnablePassthrough.assign(second=second)


@pytest.mark.parametrize("options", [{}, {"include_raw": True}, {"strict": True}], ids=["plain", "raw", "strict"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_graders_of_a_loop_ask_together(
    server: ProviderServer, provider: str, method: str, options: dict[str, Any], awaits: bool
) -> None:
    grader = structured(provider, server, method, **options)
    grades = same_with(server, loop(grader), TEXTS, 3, awaits=awaits)
    assert [each["parsed"] if "include_raw" in options else each for each in grades] == [
        Grade(score=len(f"Grade {text}."), reason="yes") for text in TEXTS
    ]


SHAPES = {
    "loop": (loop, TEXTS, 3),
    "node": (node, {"texts": TEXTS, "grades": []}, 3),
    "chain": (chain, {"text": "one", "other": "two"}, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_in_nodes_and_chains(server: ProviderServer, provider: str, method: str, shape: str) -> None:
    grader = structured(provider, server, method, Checked)
    make, value, together = SHAPES[shape]
    same_with(server, make(grader), value, together)


@pytest.mark.parametrize("include_raw", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_graders_made_in_the_function(server: ProviderServer, provider: str, method: str, include_raw: bool) -> None:
    structured(provider, server, method)  # skips the test
    model = model_of(provider, server.url)
    grades = same_with(server, making(model, method=method, include_raw=include_raw), TEXTS, 3)
    assert [(each["parsed"] if include_raw else each).score for each in grades] == [10, 10, 12]


@pytest.mark.parametrize("fault", [REFUSED, INVALID, FILTERED, FAILS])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_needs_an_answer_is_not_asked_without_one(
    server: ProviderServer, provider: str, method: str, fault: str
) -> None:
    grader = structured(provider, server, method)

    def ask(texts: list[str]) -> list[Any]:
        first = grader.invoke({"text": texts[0]})
        return [first, grader.invoke({"text": first.reason}), grader.invoke({"text": f"{first.reason}, again"})]

    same_with(server, RunnableLambda(ask), [fault], 1)
    same_with(server, RunnableLambda(ask), TEXTS, 2, after=1)


@pytest.mark.parametrize("include_raw", [False, True])
@pytest.mark.parametrize("fault", [REFUSED, INVALID, FILTERED, FAILS])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_faults_are_stocks(server: ProviderServer, provider: str, method: str, fault: str, include_raw: bool) -> None:
    grader = structured(provider, server, method, include_raw=include_raw)
    same_with(server, RunnableLambda(lambda texts: [grader.invoke({"text": text}) for text in texts]), [fault], 1)
    server.restart()
    app, texts = loop(grader), ["one", fault, "two"]
    assert outcome(fineflow.optimize(app, eager=True).invoke, texts) == outcome(app.invoke, texts)
