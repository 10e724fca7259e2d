"""Faults of fineflow itself: the call succeeds as stock would, and somebody is told."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from fineflow.adapters.langchain.kernels.operations import KERNELS
from fineflow.ir import Op
from fineflow.runtime.call.query import Call
from fineflow.testing.langchain import FakeChat

QUESTION = {"q": "why?"}


def chain() -> Runnable[Any, Any]:
    def ask(text: str) -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | FakeChat(default="because it is so") | StrOutputParser()

    return RunnablePassthrough.assign(a=ask("first {q}")) | RunnablePassthrough.assign(b=ask("second {q}"))


def fault(*args: Any, **kwargs: Any) -> Any:
    for arg in args:
        if asyncio.iscoroutine(arg):
            arg.close()
    raise TypeError("a fault of fineflow")


def calls(runnable: Any, entry: str) -> Any:
    async def all_of(stream: Any) -> list[Any]:
        return [chunk async for chunk in stream]

    if entry == "stream":
        return list(runnable.stream(QUESTION))
    if entry == "astream":
        return asyncio.run(all_of(runnable.astream(QUESTION)))
    return runnable.invoke(QUESTION) if entry == "invoke" else asyncio.run(runnable.ainvoke(QUESTION))


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("where", [Op.RENDER, Op.PREFILL, Op.DECODE, "spawn"])
def test_a_fault_while_running_ahead_costs_nothing_but_time(
    where: Any, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = calls(chain(), entry)
    if where == "spawn":
        monkeypatch.setattr(Call, "task", fault)
    else:
        monkeypatch.setitem(KERNELS, where, fault)
    with pytest.warns(fineflow.FineflowWarning, match="a fault of fineflow; stock did it"):
        assert calls(fineflow.optimize(chain()), entry) == expected
    with pytest.raises(fineflow.PlanningError, match="a fault of fineflow"):
        calls(fineflow.optimize(chain(), strict=True), entry)


def test_a_failure_that_stock_meets_too_is_no_fault() -> None:
    broken = chain() | ChatPromptTemplate.from_template("{nothing}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="nothing"):
            fineflow.optimize(broken, strict=True).invoke(QUESTION)
