"""Runs functions that ask a model, as stock runs them and optimized, in virtual time."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

ASKED: list[str] = []
LOG: list[str] = []
CACHE: dict[str, str] = {}


class Asked(FakeChat):
    """Fails for texts that end with "fail"."""

    def answer(self, messages: Any, stop: Any = None) -> str:
        text = messages[-1].content
        ASKED.append(text)
        if text.endswith("fail"):
            raise ValueError(f"no answer to {text}")
        return f"re {text}"


llm = Asked(prefill=1.0)


def ask(text: Any) -> str:
    return str(llm.invoke(str(text)).content)


async def aask(text: Any) -> str:
    return str((await llm.ainvoke(str(text))).content)


def observed(func: Any, value: Any, *, optimized: bool) -> Any:
    ASKED.clear()
    LOG[:] = ["begun"]
    CACHE.clear()
    app: Any = RunnableLambda(func)
    app = fineflow.optimize(app, strict=True, eager=True) if optimized else app

    def call() -> Any:
        try:
            return asyncio.run(app.ainvoke(value)) if inspect.iscoroutinefunction(func) else app.invoke(value)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    ran = virtual_threads.run(call)
    return (ran.value, list(LOG), dict(CACHE)), sorted(ASKED), ran.seconds
