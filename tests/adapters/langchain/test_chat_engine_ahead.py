"""Chains with tools and structured output on an engine run ahead, with the same answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputToolsParser, PydanticToolsParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import tool
from pydantic import BaseModel, field_validator

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.text.tool_formats import HERMES
from fineflow.ir import Effect, Op
from fineflow.protocols import ToolCall
from fineflow.testing.differential import assert_same
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate


class Answer(BaseModel):
    """An answer."""

    city: str
    year: int


class Checked(Answer):
    """With code of the user's."""

    @field_validator("city")
    @classmethod
    def upper(cls, value: str) -> str:
        return value.upper()


@tool
def look_up(city: str, year: int = 0) -> str:
    """Looks up."""
    return f"{city} in {year}"


FOUND = {"city": "Torstad", "year": 1902}


def said(prompt: str) -> str:
    """A call of the first tool, or JSON where the prompt asks for it, else a few words about the last line."""
    last = prompt.rstrip().splitlines()[-2]
    if (offered := re.search(r'<tools>\n.*?"name": "(\w+)"', prompt)) and "<tool>\n" not in prompt:
        call = HERMES.write([ToolCall("", offered[1], FOUND)])
        begun = next((n for n in range(len(call), 0, -1) if prompt.endswith(call[:n])), 0)
        return call[begun:] if begun else f"Let me see. {call}"
    if "JSON" in last:
        return json.dumps(FOUND)
    return f"About {last} it is known"


def model(**settings: Any) -> ChatEngine:
    return ChatEngine(engine=GatedLLM(said, **settings))


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def facts(llm: ChatEngine) -> Runnable[Any, Any]:
    """Two answers side by side, and what came in."""
    named = {name: ask(f"{name}: {{x}}") | llm | StrOutputParser() for name in ("history", "geography")}
    return RunnablePassthrough.assign(**named)


def together(step: Callable[[ChatEngine], Runnable[Any, Any]], **settings: Any) -> Any:
    """A chain in which the step follows two answers and is followed by another one."""

    def make() -> Runnable[Any, Any]:
        llm = model(**settings)
        return facts(llm) | ask("{history} {geography} {x} as JSON") | step(llm)

    return make


SHAPES: dict[str, Any] = {
    "bound tools": together(lambda llm: llm.bind_tools([look_up])),
    "a call that has to be made": together(lambda llm: llm.bind_tools([look_up, Answer], tool_choice="look_up")),
    "a call and its text": together(lambda llm: llm.bind_tools([look_up]) | StrOutputParser()),
    "a call, parsed": together(
        lambda llm: (
            llm.bind_tools([look_up])
            | JsonOutputToolsParser(first_tool_only=True)
            | itemgetter("args")
            | ask("{city}: {year}")
            | llm
        )
    ),
    "calls, parsed": together(
        lambda llm: (
            llm.bind_tools([look_up])
            | JsonOutputToolsParser()
            | RunnableLambda(lambda c: c[0]["args"])
            | ask("{city}")
            | llm
        )
    ),
    "a model made of a call": together(
        lambda llm: (
            llm.bind_tools([Answer])
            | PydanticToolsParser(tools=[Answer], first_tool_only=True)
            | RunnableLambda(lambda answer: {"city": answer.city})
            | ask("{city}")
            | llm
        )
    ),
    "a call of a tool": together(
        lambda llm: llm.bind_tools([look_up]) | RunnableLambda(lambda m: look_up.invoke(m.tool_calls[0]["args"]))
    ),
    "bound settings": together(lambda llm: llm.bind(stop=["known"], max_tokens=3, logprobs=True)),
    "logprobs": together(
        lambda llm: llm.bind(logprobs=True, top_logprobs=2) | RunnableLambda(lambda m: m.response_metadata)
    ),
    "by schema": together(
        lambda llm: llm.with_structured_output(Answer) | RunnableLambda(lambda answer: answer.city),
        constraints={"schema"},
    ),
    "by a call": together(
        lambda llm: (
            llm.with_structured_output(Answer, method="function_calling") | RunnableLambda(lambda answer: answer.city)
        )
    ),
    "by JSON": together(lambda llm: llm.with_structured_output(Answer, method="json_mode")),
    "a dict": together(lambda llm: llm.with_structured_output(Answer.model_json_schema()) | ask("{city}") | llm),
    "a dict by schema": together(
        lambda llm: llm.with_structured_output(Answer.model_json_schema()) | ask("{city} {year}") | llm,
        constraints={"schema"},
    ),
    "with the raw message": together(lambda llm: llm.with_structured_output(Answer, include_raw=True)),
    "with code of the user's": together(lambda llm: llm.with_structured_output(Checked)),
    "side by side": lambda: (
        lambda llm: RunnableParallel(
            structured=ask("{x} as JSON") | llm.with_structured_output(Answer),
            called=ask("{x}") | llm.bind_tools([look_up]),
            text=ask("{x}") | llm | StrOutputParser(),
        )
    )(model()),
}


@pytest.mark.parametrize(
    "fields", [{"output_version": "v1"}, {"disable_streaming": "tool_calling"}, {"logprobs": True}]
)
def test_same_answer_whatever_the_model_is_told(fields: dict[str, Any]) -> None:
    def make() -> Runnable[Any, Any]:
        llm = ChatEngine(engine=GatedLLM(said), **fields)
        called = llm.bind_tools([look_up]) | JsonOutputToolsParser(first_tool_only=True) | itemgetter("args")
        return facts(llm) | ask("{history} {geography} {x}") | called | ask("{city}") | llm.bind_tools([Answer])

    assert_same(make, {"x": "Kelmora"})


def test_prompts_with_other_tools_begin_otherwise() -> None:
    """The same messages with different tools have no beginning in common, though their templates look alike."""

    def make() -> Runnable[Any, Any]:
        llm = model()
        rules = ChatPromptTemplate.from_messages([("system", "Rules. " * 60), ("human", "{history} {x}")])
        branches = {"a": rules | llm.bind_tools([look_up]), "b": rules | llm.bind_tools([Answer]), "c": rules | llm}
        return facts(llm) | RunnableParallel(branches)  # type: ignore[arg-type]

    assert_same(make, {"x": "Kelmora"})
    plan = fineflow.explain(make(), input={"x": "Kelmora"})
    assert plan.e_graph is not None
    assert not [p.name for p in plan.e_graph if p.params.get("shares")]


@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str) -> None:
    assert_same(SHAPES[shape], {"x": "Kelmora"})


@pytest.mark.parametrize("text", ["no call", '<tool_call>\n{"name": "Answer", "arguments": {"city": 1}}\n</tool_call>'])
@pytest.mark.parametrize("method", ["function_calling", "json_mode"])
def test_same_failure(text: str, method: Any) -> None:
    def make() -> Runnable[Any, Any]:
        llm = ChatEngine(engine=GatedLLM(lambda prompt: text if "fail" in prompt else "fine"))
        return facts(llm) | ask("{history} {geography} fail") | llm.with_structured_output(Answer, method=method)

    assert_same(make, {"x": "Kelmora"}, batch=[{"x": "Kelmora"}])


@pytest.mark.parametrize(
    ("shape", "ops"),
    [
        ("a call, parsed", {Op.PARSE, Op.DECODE}),
        ("by a call", {Op.PARSE}),
        ("by schema", {Op.PARSE}),
        ("a dict", {Op.PARSE}),
    ],
)
def test_nothing_of_it_is_opaque(shape: str, ops: set[Op]) -> None:
    plan = fineflow.explain(SHAPES[shape](), input={"x": "Kelmora"})
    assert plan.p_graph is not None
    assert ops <= {p.op for p in plan.p_graph}
    assert not plan.fallback
    assert not [p.name for p in plan.p_graph if p.effects.kind is Effect.OPAQUE]


async def test_a_model_behind_a_call_runs_before_stock_asks_for_it() -> None:
    """What follows the parsed call is asked while stock still waits for a slow branch beside it."""
    gate = Gate()
    quick, slow = model(), ChatEngine(engine=GatedLLM(said, name="slow", gate=gate))
    called = ask("{x}") | quick.bind_tools([look_up]) | JsonOutputToolsParser(first_tool_only=True) | itemgetter("args")
    late = RunnableParallel(a=called, b=ask("{x}") | slow | StrOutputParser())
    answered = RunnablePassthrough.assign(c=itemgetter("a") | ask("{city}: {year}") | quick | StrOutputParser())
    chain = fineflow.optimize(late | answered | ask("{b} {c}") | quick | StrOutputParser(), strict=True)
    engine: Any = quick.engine
    running = asyncio.ensure_future(chain.ainvoke({"x": "Kelmora"}))
    async with asyncio.timeout(20):
        while len(engine.samplings) < 2:
            await asyncio.sleep(0)
    gate.open()
    assert (await running).startswith("About About Kelmora it is known About Torstad: 1902 it is known")
    assert len(engine.samplings) == 3


def test_what_is_bound_stands_in_front_of_prompts_that_are_prefilled() -> None:
    """The beginning of a prompt that is prefilled ahead has the tools of the model that will decode from it."""
    gate = Gate()
    engine = GatedLLM(said)
    warmed: list[str] = []

    async def prefill(tokens: Any, *, priority: int = 0) -> None:
        warmed.append("".join(map(chr, tokens)))
        gate.open()

    engine.prefill = prefill  # type: ignore[method-assign]
    llm = ChatEngine(engine=engine).bind_tools([look_up])
    slow = ChatEngine(engine=GatedLLM("It is late.", name="slow", gate=gate))
    rules = "Answer from what follows. " * 20
    prompt = ChatPromptTemplate.from_messages(
        [("system", rules), MessagesPlaceholder("history"), ("human", "{late} {x}")]
    )
    chain = RunnablePassthrough.assign(late=ask("{x}") | slow | StrOutputParser()) | prompt | llm
    answer = fineflow.optimize(chain).invoke({"x": "Kelmora", "history": [("human", "Hello")]})
    assert [call["name"] for call in answer.tool_calls] == ["look_up"]
    (known,) = warmed
    whole = ChatEngine(engine=engine).prompt_text(
        prompt.invoke({"x": "Kelmora", "history": [("human", "Hello")], "late": "It is late."}).to_messages(),
        tools=[look_up],
    )
    assert known.startswith("<tools>")
    assert whole.startswith(known)
