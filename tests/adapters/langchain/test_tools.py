"""Tools as steps: called early where it is declared what they read, by stock alone otherwise."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableParallel, RunnablePick
from langchain_core.tools import InjectedToolArg, ToolException, tool
from pydantic import BaseModel, field_validator

import fineflow
from fineflow.ir import Effect, Op
from fineflow.testing.differential import ALL, assert_same
from fineflow.testing.gates import Gate, until
from fineflow.testing.langchain import FakeChat

QUESTION = {"question": "the capital of France"}
OBJECT = '{"query": "capital", "count": 2, "reason": "it is asked for"}'
ask = PromptTemplate.from_template


def made(log: list[Any]) -> dict[str, Any]:
    """Tools that note their calls."""

    @tool
    @fineflow.effects(reads="the web")
    def lookup(query: str) -> str:
        """Looks something up."""
        log.append(query)
        return f"all about {query}"

    @tool
    @fineflow.effects(reads="the web")
    async def alookup(query: str, count: int = 1) -> str:
        """Looks something up."""
        log.append(query)
        return f"{count} things about {query}"

    @tool
    @fineflow.effects(reads="the web")
    def failing(query: str) -> str:
        """Raises."""
        log.append(query)
        raise ToolException("nothing found")

    @tool
    def undeclared(query: str) -> str:
        """Of which nothing is known."""
        log.append(query)
        return query

    forgiving = failing.model_copy(update={"handle_tool_error": True})
    return {
        "lookup": lookup,
        "alookup": alookup,
        "failing": failing,
        "forgiving": forgiving,
        "undeclared": undeclared,
    }


def looked_up(name: str, **chat: Any) -> tuple[Runnable[Any, Any], list[Any]]:
    """A model writes what a tool is called with, and then why."""
    log: list[Any] = []
    parts: Any = RunnableParallel(found=RunnablePick("query") | made(log)[name], why=RunnablePick("reason"))
    return ask("{question}") | FakeChat(default=OBJECT, **chat) | JsonOutputParser() | parts, log


def of_all(name: str) -> tuple[Runnable[Any, Any], list[Any]]:
    """A tool is called with an object, and for each of several texts."""
    log: list[Any] = []
    lines: Any = ask("list {question}") | FakeChat(default="a\nb\nc") | StrOutputParser() | (lambda x: x.split("\n"))
    each = lines | made(log)[name].map()
    arguments: Any = RunnableParallel(query=RunnablePick("question"), count=RunnableLambda(lambda x: 4))
    return RunnableParallel(each=each, one=arguments | made(log)["alookup"]), log


@pytest.mark.parametrize("name", ["lookup", "failing", "forgiving", "undeclared"])
def test_the_answer_is_the_same(name: str) -> None:
    # How far the other branch gets when one fails is a race in streams, and another one in batches.
    entries = ("invoke", "ainvoke") if name == "failing" else ALL
    assert_same(lambda: looked_up(name), QUESTION, entries=entries, strict=True, eager=True)


def test_async_tools_are_the_same() -> None:
    entries = ["ainvoke", "astream", "abatch"]
    assert_same(lambda: looked_up("alookup"), QUESTION, entries=entries, strict=True, eager=True)
    assert_same(lambda: of_all("alookup"), QUESTION, entries=entries, strict=True, ordered_log=False)
    assert_same(lambda: looked_up("alookup"), QUESTION, entries=["invoke"], strict=True)  # stock says it cannot


@pytest.mark.parametrize("name", ["lookup", "alookup"])
async def test_it_is_called_when_its_argument_is_written(name: str) -> None:
    gate = Gate()
    chain, log = looked_up(name, token_gate=gate)
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(QUESTION))
    gate.let(2)  # '{"query":' '"capital",'
    await until(lambda: log)
    assert not call.done()
    gate.open()
    assert (await call)["why"] == "it is asked for"
    assert log == ["capital"]


def test_what_is_declared_is_a_primitive_with_that_effect() -> None:
    graph = fineflow.explain(looked_up("lookup")[0]).e_graph
    assert graph is not None
    (found,) = [p for p in graph if p.op is Op.TOOL]
    assert (found.effects.kind, found.effects.resource) == (Effect.READ, "the web")


class Shouted(BaseModel):
    query: str

    @field_validator("query")
    @classmethod
    def shout(cls, value: str) -> str:
        return value.upper()


def others() -> list[Any]:
    @tool
    @fineflow.effects(writes="the web")
    def writes(query: str) -> str:
        """Writes."""
        return query

    @tool
    @fineflow.effects(reads="the web")
    def configured(query: str, config: RunnableConfig) -> str:
        """Sees the config."""
        return query

    @tool
    @fineflow.effects(reads="the web")
    def injected(query: str, user: Annotated[str, InjectedToolArg]) -> str:
        """Gets something else besides."""
        return query

    @tool(args_schema=Shouted)
    @fineflow.effects(reads="the web")
    def validated(query: str) -> str:
        """Has arguments with a validator."""
        return query

    @tool(response_format="content_and_artifact")
    @fineflow.effects(reads="the web")
    def artifact(query: str) -> tuple[str, int]:
        """Returns more than text."""
        return query, 1

    return [writes, configured, injected, validated, artifact, made([])["undeclared"], made([])["lookup"].bind(x=1)]


@pytest.mark.parametrize("number", range(7))
def test_all_others_are_left_to_stock(number: int) -> None:
    graph = fineflow.explain(RunnablePick("question") | others()[number]).p_graph
    assert graph is not None
    assert [p.op for p in graph] == [Op.CALL]
    assert graph.primitives[0].effects.kind is Effect.OPAQUE
