"""Overhead of an optimized chain without any gain: ``prompt | model | parser`` with a model without latency."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.testing.langchain import FakeChat

BOUND = 1.05
_clock = [time.perf_counter]  # seconds; of the processor with --processor
QUESTION = {"question": "What is the capital of France?"}


def once(call: Callable[[Any], Any], calls: int) -> float:
    """Returns the seconds per call, over ``calls`` calls."""
    start = _clock[0]()
    for _ in range(calls):
        call(QUESTION)
    return (_clock[0]() - start) / calls


async def aonce(call: Callable[[Any], Any], calls: int) -> float:
    """Does the same as ``once`` for a coroutine function."""
    start = _clock[0]()
    for _ in range(calls):
        await call(QUESTION)
    return (_clock[0]() - start) / calls


class Instrumented:
    """The chain as it is, while outermost calls are routed; in turns with the same chain while they are not."""

    def __init__(self) -> None:
        fineflow.instrument()
        self._routing: Any = sys.modules["fineflow.instrumentation.instrument"].__dict__["_current"]

    def turn(self, *, on: bool) -> None:
        self._routing.uninstall()
        if on:
            self._routing.hook()


async def compare(
    stock: Any, mine: Any, entry: str, runs: int, calls: int, instrumented: Instrumented | None
) -> tuple[list[float], list[float]]:
    """Returns the seconds per call in each run of both, in turns, so that other load affects both."""
    found: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):  # the first one warms up
        order = (0, 1) if run % 2 else (1, 0)
        for side in order:
            if instrumented is not None:
                instrumented.turn(on=bool(side))
            call = getattr((stock, mine)[side], entry)
            seconds = await aonce(call, calls) if entry == "ainvoke" else once(call, calls)
            if run:
                found[side].append(seconds)
    return found


class State(TypedDict, total=False):
    question: str
    grades: list[str]


def graph(grader: Any) -> Any:
    """Returns a graph of two nodes; the second one may make calls, and has none to make for ``QUESTION``."""

    def first(state: State) -> State:
        return {"question": state["question"]}

    def grade(state: State) -> State:
        return {"grades": [grader.invoke({"question": each}) for each in state.get("grades", ())]} if grader else {}

    made = StateGraph(State)
    made.add_node("first", first)
    made.add_node("grade", grade)
    made.add_edge(START, "first")
    made.add_edge("first", "grade")
    made.add_edge("grade", END)
    return made.compile()


def graphs(chain: Any, runs: int, calls: int, path: Any) -> int:
    """Measures graphs in place of the chain."""
    rows, figures, checks = [("graph of two nodes", "stock", "optimized", "ratio")], {}, {}
    for name, grader, bound in (("nothing to gain", None, BOUND), ("with a function that may gain", chain, 1.15)):
        one, other = asyncio.run(compare(graph(grader), fineflow.optimize(graph(grader)), "invoke", runs, calls, None))
        middle = statistics.median(one), statistics.median(other)
        ratio = statistics.median(b / a for a, b in zip(one, other, strict=True))
        rows.append((name, *(f"{seconds * 1e6:.0f} us" for seconds in middle), f"{ratio:.3f}"))
        figures[name] = {"stock_s": middle[0], "optimized_s": middle[1], "ratio": ratio}
        checks[f"{name}: at most {bound} x stock"] = ratio <= bound
    print(f"invoke of graphs whose nodes call nothing. {hardware()}\n\n{table(rows)}\n")
    return finish({"graphs": figures}, checks, path)


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=60)
    parser.add_argument("--calls", type=positive, default=20, help="calls in a row per measurement (20)")
    parser.add_argument("--instrumented", action="store_true", help="through fineflow.instrument(), not optimize()")
    parser.add_argument("--graphs", action="store_true", help="graphs of LangGraph, not a chain")
    parser.add_argument(
        "--processor", action="store_true", help="seconds of the processor, for machines with other load"
    )
    given = parser.parse_args(argv)
    _clock[0] = time.process_time if given.processor else time.perf_counter
    prompt = ChatPromptTemplate.from_template("Answer briefly: {question}")
    stock = prompt | FakeChat(default="Paris") | StrOutputParser()
    if given.graphs:
        return graphs(stock, given.runs, given.calls, given.json)
    mine = stock if given.instrumented else fineflow.optimize(stock, strict=True)
    instrumented = Instrumented() if given.instrumented else None
    bound = 1.2 if given.instrumented else BOUND
    rows, figures, checks = [("entry point", "stock", "optimized", "ratio")], {}, {}
    for entry in ("invoke", "ainvoke"):
        one, other = asyncio.run(compare(stock, mine, entry, given.runs, given.calls, instrumented))
        middle = statistics.median(one), statistics.median(other)
        # The runs of a pair are adjacent, so ratios of pairs are more reliable than the ratio of the medians.
        ratio = statistics.median(b / a for a, b in zip(one, other, strict=True))
        rows.append((entry, *(f"{seconds * 1e6:.0f} us" for seconds in middle), f"{ratio:.3f}"))
        figures[entry] = {"stock_s": middle[0], "optimized_s": middle[1], "ratio": ratio}
        checks[f"{entry} costs at most {bound} x stock"] = ratio <= bound
    print(f"Nothing to gain: prompt | model | parser, a fake model without latency. {hardware()}")
    print(f"Medians of {given.runs} runs of {given.calls} calls, stock and optimized in turns.\n")
    print(table(rows), end="\n\n")
    return finish({"overhead": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
