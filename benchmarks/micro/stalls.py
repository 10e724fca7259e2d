"""How long one callback holds the loop of the caller in the first calls of an app, its plan included."""

from __future__ import annotations

import statistics
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from benchmarks.micro.measure import Found
from benchmarks.micro.planning import INPUT, assigns
from fineflow.testing.langchain import FakeChat
from fineflow.testing.stalls import held

CALLS = 20
LONGEST = 0.005  # seconds


def many_models(models: int = 25) -> Runnable[Any, Any]:
    """Returns a chain whose last model reads what all others answer."""
    prompt = ChatPromptTemplate.from_template("{question}")
    parts = {f"k{i}": prompt | FakeChat(default="yes") | StrOutputParser() for i in range(models - 1)}
    return RunnablePassthrough.assign(**parts) | prompt | FakeChat(default="done") | StrOutputParser()


def longest(app: Runnable[Any, Any]) -> float:
    """Returns the most seconds of processor time of one callback in the first calls of an app."""

    async def calls() -> None:
        for _ in range(CALLS):
            await app.ainvoke(INPUT)

    return held(calls, warm=False).seconds


def measured(runs: int) -> Found:
    """Measures new apps, stock and optimized in turns."""
    found = Found()
    longest(fineflow.optimize(many_models()))  # imports everything needed
    for name, make in {"25 models": many_models, "nine assigns": assigns}.items():
        both = [(longest(make()), longest(fineflow.optimize(make(), strict=True, eager=True))) for _ in range(runs)]
        stock, mine = (statistics.median(side) for side in zip(*both, strict=True))
        ratio = statistics.median(b / a for a, b in both)
        shown = f"{stock * 1e3:.1f} and {mine * 1e3:.1f} ms"
        found.add(f"longest callback, first calls, {name}", ratio, "fineflow / stock", shown)
        found.aims[f"first calls of {name} hold the loop for at most {LONGEST * 1e3:.0f} ms"] = mine <= LONGEST
    return found
