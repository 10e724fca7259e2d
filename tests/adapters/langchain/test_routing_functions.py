"""Functions that return a runnable: which one is found out ahead, and only that one runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick
from pipelines import ENTRIES, ask, echo, same

import fineflow
from fineflow.ir import Effect, Graph, Op
from fineflow.testing.differential import observe
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.sweep

MATH = {"question": "two and two", "topic": "math"}
ART = {"question": "two and two", "topic": "art"}


def say(text: str, model: Any = None) -> Any:
    return ask(text) | (model or FakeChat(answers=echo)) | StrOutputParser()


def p_graph(chain: Any) -> Graph:
    made = fineflow.explain(chain).p_graph
    assert made is not None
    return made


def routing(one: Any = None, other: Any = None) -> Any:
    """The routing that LangChain's documentation recommends."""
    math_chain, general = one or say("math {question}"), other or say("general {question}")

    def route(info: Any) -> Any:
        if "math" in info["topic"].lower():
            return math_chain
        else:
            return general

    return RunnableLambda(route)


def _value_or(chain: Any) -> Any:
    return RunnableLambda(lambda x: chain if x["topic"] == "math" else "as it is")


def _kept(one: Any, other: Any) -> Any:
    def route(x: Any) -> Any:
        found = one
        if x["topic"] != "math":
            found = other
        return found

    return RunnableLambda(route)


def _again() -> Any:
    """A function that returns a chain of which it is a step, until it has been there often enough."""
    done = say("done {question}")

    def route(x: Any) -> Any:
        return done if x["question"].count("?") > 3 else longer

    router = RunnableLambda(route)
    longer = RunnablePassthrough.assign(question=say("{question}?")) | router
    return router


def _states(count: int) -> Any:
    """Functions that return each other, each of them all the others."""
    names = [f"state{number}" for number in range(count)]
    states: dict[str, Any] = {}
    for name in names:
        arms = "".join(f"    if x['question'] == '{other}': return {other}\n" for other in names if other != name)
        exec(f"def route(x):\n{arms}    return x", states)
        states[name] = RunnableLambda(states["route"])
    return states[names[0]]


def _raising(x: Any) -> Any:
    raise ValueError("in the arm")


def _logging(log: list[Any]) -> Any:
    return RunnableLambda(lambda x: log.append(sorted(x)) or x)


def test_a_condition_over_what_it_may_return() -> None:
    graph = p_graph(RunnablePassthrough.assign(topic=say("topic {question}")) | routing())
    (condition,) = [p for p in graph if p.op is Op.CONDITION]
    assert list(condition.body) == ["if 1", "then 1", "if 2", "then 2", "else"]
    assert not any(p.effects.kind is Effect.OPAQUE for p in graph)
    assert [str(ref) for ref in condition.args.values()][-1] == "route.call[value]"


@pytest.mark.parametrize(
    "use",
    [
        lambda chain, x: chain.invoke(x),
        lambda chain, x: chain.name or chain,
        lambda chain, x: chain | chain,
        lambda chain, x: x if chain else chain,
        lambda chain, x: [chain],
        lambda chain, x: x.append(chain),
    ],
)
def test_a_function_that_does_anything_else_with_it_is_stocks(use: Callable[[Any, Any], Any]) -> None:
    chain = say("{question}")
    (call,) = p_graph(RunnableLambda(lambda x: use(chain, x)))
    assert call.effects.kind is Effect.OPAQUE


def test_functions_that_return_each_other_are_planned_up_to_a_depth() -> None:
    graph = p_graph(_states(8))
    assert Effect.OPAQUE in {p.effects.kind for p in graph}
    assert len(str(fineflow.explain(_states(8)))) < 200_000


SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "alone": lambda log: routing(),
    "after a model": lambda log: RunnablePassthrough.assign(a=say("{question}")) | routing(),
    "before a model": lambda log: routing() | say("after {x}"),
    "in an assign": lambda log: (
        RunnablePassthrough.assign(a=routing()) | RunnablePassthrough.assign(b=say("{a} {question}"))
    ),
    "a value": lambda log: _value_or(say("math {question}")),
    "kept in a variable": lambda log: _kept(say("one {question}"), say("other {question}")),
    "the same twice": lambda log: _kept(*[say("one {question}")] * 2),
    "records": lambda log: (
        routing(RunnableParallel(a=say("a {question}"), b=RunnablePick("topic")), RunnablePassthrough())
        | RunnableLambda(lambda x: sorted(x))
    ),
    "messages": lambda log: (
        routing(ask("a {question}") | FakeChat(answers=echo), ask("b {question}") | FakeChat(answers=echo))
        | FakeChat(answers=echo)
    ),
    "opaque arms": lambda log: routing(_logging(log) | say("math {question}"), _logging(log)) | RunnableLambda(str),
    "a failing arm": lambda log: routing(say("{question}") | _raising, say("{missing}")),
    "in itself": lambda log: routing(routing(), routing(say("{topic}"))),
    "again and again": lambda log: RunnablePassthrough.assign(a=say("{question}")) | _again(),
    "configured": lambda log: routing().with_config(tags=["t"], run_name="router"),
    "named": lambda log: RunnableLambda(routing().func, name="router"),
    "mapped": lambda log: RunnableLambda(lambda x: [x, {**x, "topic": "law"}]) | routing().map(),
}


@pytest.mark.parametrize("input", [MATH, ART], ids=["first", "other"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str, input: Any) -> None:
    def make() -> Any:
        log: list[Any] = []
        return SHAPES[shape](log), log

    same(make, input)


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_not_returned_never_runs(entry: str) -> None:
    one, other = FakeChat(answers=echo), FakeChat(answers=echo)
    chain = fineflow.optimize(routing(say("{question}", one), say("{question}", other)), strict=True, eager=True)
    assert observe(chain, entry, [ART] if "batch" in entry else ART).error is None
    assert [model.meter.calls for model in (one, other)] == [0, 1]


async def test_what_it_returns_runs_ahead_of_stock() -> None:
    first, second = Gate(), Gate()
    chain = RunnablePassthrough.assign(a=say("{question}", FakeChat(gate=first))) | RunnablePassthrough.assign(
        b=routing(say("{question}", FakeChat(gate=second)))
    )
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(MATH))
    await asyncio.gather(first.arrived(1), second.arrived(1))
    second.open()
    first.open()
    assert (await call)["b"] == "ok"


async def test_a_runnable_that_was_put_in_later_is_found() -> None:
    chains = [say("one {question}"), say("other {question}")]
    chosen = chains[0]

    def route(x: Any) -> Any:
        return chosen

    chain = fineflow.optimize(RunnableLambda(route), strict=True, eager=True)
    assert await chain.ainvoke(MATH) == "[human: one two and two]"
    chosen = chains[1]
    assert await chain.ainvoke(MATH) == "[human: other two and two]"
    assert chain.invoke(MATH) == "[human: other two and two]"
