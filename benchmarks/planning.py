"""What planning costs: the first call of an optimized object plans it, later calls look the plan up."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.adapters.langchain.plan import decide, lower
from fineflow.demo.app import build
from fineflow.options import Options
from fineflow.passes import PASSES, bind
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore

BOUND = 0.010  # seconds for a chain of about 50 primitives


def chains() -> dict[str, Runnable[Any, Any]]:
    """What is planned: from the smallest to one of about 50 primitives."""
    prompt = ChatPromptTemplate.from_template("Answer briefly: {question}")
    one = prompt | FakeChat() | StrOutputParser()
    many: Runnable[Any, Any] = RunnablePassthrough()
    for i in range(12):
        many = many | RunnablePassthrough.assign(**{f"k{i}": prompt | FakeChat() | StrOutputParser()})
    store = FakeVectorStore()
    return {"prompt | model | parser": one, "assistant": build(FakeChat(), store, FakeReranker()), "12 assigns": many}


def timed(call: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """Median seconds, and what was returned."""
    seconds = []
    value = None
    for _ in range(runs):
        start = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), value


def plan(chain: Runnable[Any, Any], runs: int) -> dict[str, float]:
    """Seconds of every step of planning, and of the look-up of a plan that is there."""
    took: dict[str, float] = {}
    took["lower"], (p_graph, objects) = timed(lambda: lower(chain, Options(), text_input=True), runs)
    graph = p_graph
    for each in (*PASSES, bind):
        took[each.__name__], graph = timed(lambda each=each, graph=graph: each(graph), runs)  # type: ignore[misc]
    took["decide"], _ = timed(lambda: decide(p_graph, graph, objects), runs)
    took["all"] = sum(took.values())
    took["primitives"] = len(graph.primitives)
    mine: Any = fineflow.optimize(chain)
    question = {"question": "?"}
    mine._self_plan(question, {}, sync=True)
    took["cached"] = timed(lambda: [mine._self_plan(question, {}, sync=True) for _ in range(1000)], runs)[0] / 1000
    return took


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=20).parse_args(argv)
    figures = {name: plan(chain, given.runs) for name, chain in chains().items()}
    print(f"Planning, medians of {given.runs} runs. {hardware()}\n")
    steps = ("lower", *(each.__name__ for each in (*PASSES, bind)), "decide", "all")
    rows = [("milliseconds", *figures), ("primitives", *(f"{f['primitives']:.0f}" for f in figures.values()))]
    rows += [(step, *(f"{f[step] * 1e3:.2f}" for f in figures.values())) for step in steps]
    rows.append(("look-up of a cached plan", *(f"{f['cached'] * 1e3:.4f}" for f in figures.values())))
    print(table(rows), end="\n\n")
    largest = max(figures.values(), key=lambda f: f["primitives"])
    text = f"{largest['primitives']:.0f} primitives are planned in at most {BOUND * 1e3:.0f} ms"
    return finish({"planning": figures}, {text: largest["all"] <= BOUND}, given.json)


if __name__ == "__main__":
    sys.exit(main())
