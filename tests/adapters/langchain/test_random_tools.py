"""Random chains of models on engines, with tools, structured output and functions that change what they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputToolsParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from pydantic import BaseModel
from test_chat_engine_ahead import Answer, look_up, said

from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.testing.differential import assert_same
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate

Log = list[Any]


class Turns(Gate):
    """Lets others go first, some turns of the event loop."""

    def __init__(self, turns: int) -> None:
        super().__init__(opened=True)
        self.turns = turns

    async def wait(self, timeout: float = 10.0) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def as_input(value: Any) -> dict[str, Any]:
    """What the next step is asked with."""
    if isinstance(value, AIMessage):
        value = [value.text, [(call["name"], call["args"]) for call in value.tool_calls]]
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):  # parts of a record come in the order of their times where stock streams
        value = [(key, as_input(value[key])) for key in sorted(value)]
    return {"x": str(value)}


def changing(log: Log) -> Runnable[Any, Any]:
    """A function with a side effect that changes the call that it is given, if there is one."""

    def change(value: Any) -> Any:
        log.append(str(as_input(value)))
        if isinstance(value, AIMessage) and value.tool_calls:
            value.tool_calls[0]["args"]["city"] = "Nelbury"
        if isinstance(value, list) and value:
            value[0]["args"]["city"] = "Nelbury"
        return value

    return RunnableLambda(change)


Step = Callable[[ChatEngine, Log], Runnable[Any, Any]]

# Each is given {"x": text}.
STEPS: dict[str, Step] = {
    "text": lambda llm, log: ask("{x}") | llm | StrOutputParser(),
    "message": lambda llm, log: ask("{x}") | llm,
    "called": lambda llm, log: ask("{x}") | llm.bind_tools([look_up]),
    "called by name": lambda llm, log: ask("{x}") | llm.bind_tools([Answer, look_up], tool_choice="look_up"),
    "called, text": lambda llm, log: ask("{x}") | llm.bind_tools([look_up]) | StrOutputParser(),
    "calls": lambda llm, log: ask("{x}") | llm.bind_tools([look_up]) | JsonOutputToolsParser(return_id=True),
    "calls, changed": lambda llm, log: ask("{x}") | llm.bind_tools([look_up]) | JsonOutputToolsParser() | changing(log),
    "changed": lambda llm, log: ask("{x}") | llm.bind_tools([look_up]) | changing(log),
    "changed, parsed": lambda llm, log: (
        ask("{x}") | llm.bind_tools([look_up]) | changing(log) | JsonOutputToolsParser()
    ),
    "structured": lambda llm, log: ask("{x} as JSON") | llm.with_structured_output(Answer),
    "dict": lambda llm, log: ask("{x} as JSON") | llm.with_structured_output(Answer.model_json_schema()),
    "raw": lambda llm, log: ask("{x} as JSON") | llm.with_structured_output(Answer, include_raw=True),
    "short": lambda llm, log: ask("{x}") | llm.bind(max_tokens=2, logprobs=True),
    "called, cut off": lambda llm, log: ask("{x}") | llm.bind_tools([look_up]).bind(max_tokens=3),
}

Spec = list[tuple[list[str], bool]]
"""For each stage: the steps side by side, and whether a function of the user's comes behind."""

specs = st.lists(
    st.tuples(st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=3), st.booleans()), min_size=1, max_size=3
)


def built(spec: Spec, turns: list[int], held: bool) -> tuple[Runnable[Any, Any], Log]:
    log: Log = []
    engines = [
        GatedLLM(said, name=f"llm{i}", token_gate=Turns(n), constraints=["schema"] * held) for i, n in enumerate(turns)
    ]
    models = [ChatEngine(engine=engine) for engine in engines]
    chain: Any = RunnablePassthrough()
    for number, (names, noted) in enumerate(spec):
        steps = [STEPS[name](models[(number + i) % len(models)], log) for i, name in enumerate(names)]
        if len(steps) == 1:
            chain = chain | steps[0] | RunnableLambda(as_input)
        else:
            keyed: Any = {f"k{i}": step | RunnableLambda(as_input) for i, step in enumerate(steps)}
            chain = chain | RunnableParallel(keyed) | RunnableLambda(as_input)
        if noted:
            chain = chain | RunnableLambda(lambda value: log.append(str(value)) or value)
    return chain, log


@pytest.mark.parametrize(
    "entries", [("ainvoke", "astream"), ("invoke", "stream"), ("abatch", "batch")], ids=lambda e: e[0]
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(specs, st.lists(st.integers(0, 6), min_size=1, max_size=3), st.booleans())
def test_same_answer(entries: tuple[str, ...], spec: Spec, turns: list[int], held: bool) -> None:
    assert_same(lambda: built(spec, turns, held), {"x": "Kelmora"}, entries=entries, ordered_log=False)
