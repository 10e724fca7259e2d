"""What tracing handlers set in context variables is there for components that run ahead, as it is in stock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.config import var_child_runnable_config

from fineflow import optimize
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, prompt_text

TRACE: ContextVar[str] = ContextVar("trace", default="none")


class Tracer(BaseCallbackHandler):
    """Has a trace of its own for each call, which is the current one from the start of the outermost run."""

    run_inline = True

    def __init__(self, question: str) -> None:
        self.question = question

    def on_chain_start(self, *args: Any, parent_run_id: Any = None, **kwargs: Any) -> None:
        if parent_run_id is None:
            TRACE.set(f"trace of {self.question}")


def make(log: list[Any], gate: Gate | None = None) -> Runnable[Any, Any]:
    """Two models that do not need each other's answers, one step behind the other."""

    def answer(messages: Any) -> str:
        config = var_child_runnable_config.get() or {}
        seen = (prompt_text(messages), TRACE.get(), config.get("tags"), config.get("metadata"))
        log.append(seen)
        return "yes"

    def ask(text: str) -> Runnable[Any, Any]:
        prompt = ChatPromptTemplate.from_template(f"{text}: {{question}}")
        return prompt | FakeChat(answers=answer, gate=gate) | StrOutputParser()

    steps = RunnablePassthrough.assign(one=ask("one")) | RunnablePassthrough.assign(two=ask("two"))
    return (steps | RunnableLambda(lambda x: x)).with_config(tags=["bound"], metadata={"user": "u1"})


def invoke(chain: Any, question: str) -> Any:
    return chain.invoke({"question": question}, {"callbacks": [Tracer(question)]})


def ainvoke(chain: Any, question: str) -> Any:
    return asyncio.run(chain.ainvoke({"question": question}, {"callbacks": [Tracer(question)]}))


def stream(chain: Any, question: str) -> Any:
    return list(chain.stream({"question": question}, {"callbacks": [Tracer(question)]}))[-1]


def astream(chain: Any, question: str) -> Any:
    async def all_of_it() -> Any:
        return [chunk async for chunk in chain.astream({"question": question}, {"callbacks": [Tracer(question)]})][-1]

    return asyncio.run(all_of_it())


ENTRIES = [invoke, ainvoke, stream, astream]


@pytest.mark.parametrize("call", ENTRIES)
def test_components_ahead_are_in_the_trace_of_the_call(call: Callable[[Any, str], Any]) -> None:
    expected: list[Any] = []
    found: list[Any] = []
    gate = Gate()
    Context().run(call, make(expected), "q")  # the tracer leaves its variable set
    with ThreadPoolExecutor(1) as thread:
        calling = thread.submit(Context().run, call, optimize(make(found, gate), strict=True), "q")
        gate.wait_arrived(2)  # stock asks one model after the other
        gate.open()
        calling.result()
    assert sorted(found) == sorted(expected)
    assert [seen[1:] for seen in found] == [("trace of q", ["bound"], {"user": "u1"})] * 2


async def test_calls_at_once_keep_to_their_own_traces() -> None:
    log: list[Any] = []
    gate = Gate()
    fast = optimize(make(log, gate), strict=True)
    calls = [
        asyncio.create_task(fast.ainvoke({"question": question}, {"callbacks": [Tracer(question)]}))
        for question in "abc"
    ]
    await gate.arrived(6)  # both models of each call are asked before any has answered
    gate.open()
    await asyncio.gather(*calls)
    assert sorted((text[-1], trace) for text, trace, *_ in log) == sorted((q, f"trace of {q}") for q in "abcabc")


def test_a_handler_that_refuses_the_call_is_met_before_any_component_is_called() -> None:
    class Refuses(BaseCallbackHandler):
        raise_error = True

        def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
            raise PermissionError("not now")

    log: list[Any] = []
    with pytest.raises(PermissionError, match="not now"):
        optimize(make(log), strict=True).invoke({"question": "q"}, {"callbacks": [Refuses()]})
    assert log == []
