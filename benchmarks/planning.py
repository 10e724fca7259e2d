"""Cost of planning: the first call of an optimized object plans it, later calls look up the cached plan."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.adapters.langchain.calls import ChainCall
from fineflow.adapters.langchain.planning import decide, lower
from fineflow.demo.app import build
from fineflow.options import Options
from fineflow.passes import PASSES, bind
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore

COLD = 0.010  # seconds for a new chain of about 50 primitives
LOOK_UP = 20e-6  # seconds to find the plan of a later call


def assigns() -> Runnable[Any, Any]:
    """Returns a chain of about 50 primitives: nine assigns in a row, each with its own function before its prompt."""
    prompt = ChatPromptTemplate.from_template("Answer in the tone {tone}: {question}")
    chain: Runnable[Any, Any] = RunnablePassthrough()
    for i in range(9):
        tone = _function(i)
        answer = RunnablePassthrough.assign(tone=tone) | prompt | FakeChat() | StrOutputParser()
        chain = chain | RunnablePassthrough.assign(**{f"k{i}": answer})
    return chain


def _function(number: int) -> RunnableLambda[Any, Any]:
    # Compiled again, as the purity verdict on a function is cached with its code.
    scope: dict[str, Any] = {}
    exec(f"def tone{number}(x):\n    return x['question'].strip().split(' ')[0] + ' {number}'\n", scope)
    return RunnableLambda(scope[f"tone{number}"])


def small() -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template("Answer briefly: {question}") | FakeChat() | StrOutputParser()


def assistant() -> Runnable[Any, Any]:
    return build(FakeChat(), FakeVectorStore(), FakeReranker())


CHAINS = {"prompt | model | parser": small, "assistant": assistant, "nine assigns": assigns}


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def planned(chain: Runnable[Any, Any]) -> dict[str, float]:
    """Returns the seconds of every step of planning one chain for the first time."""
    took: dict[str, float] = {}
    took["lower"], (p_graph, lowered) = seconds(lambda: lower(chain, Options(), text_input=True))
    graph = p_graph
    for each in (*PASSES, bind):
        took[each.__name__], graph = seconds(lambda each=each, graph=graph: each(graph))  # type: ignore[misc]
    took["decide"], _ = seconds(lambda: decide(p_graph, graph, lowered))
    return {**took, "all": sum(took.values()), "primitives": len(graph.primitives)}


def looked_up(chain: Runnable[Any, Any], runs: int) -> float:
    """Returns the median seconds to look up the cached plan."""
    mine: Any = fineflow.optimize(chain)

    def look_up() -> Any:
        return mine._self_plan(ChainCall("invoke", chain, {"question": "?"}, None, chain.invoke, sync=True))

    look_up()
    return statistics.median(seconds(lambda: [look_up() for _ in range(1000)])[0] / 1000 for _ in range(runs))


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=20).parse_args(argv)
    fineflow.optimize(assigns())  # imports everything needed, as in every program before its first call
    first = planned(assigns())["all"]
    figures = {}
    for name, make in CHAINS.items():
        runs = [planned(make()) for _ in range(given.runs)]
        figures[name] = {step: statistics.median(run[step] for run in runs) for step in runs[0]}
        figures[name]["cached"] = looked_up(make(), given.runs)
    print(f"Planning new chains, medians of {given.runs} of each. {hardware()}\n")
    rows = [("milliseconds", *figures), ("primitives", *(f"{f['primitives']:.0f}" for f in figures.values()))]
    steps = ("lower", *(each.__name__ for each in (*PASSES, bind)), "decide", "all")
    rows += [(step, *(f"{f[step] * 1e3:.2f}" for f in figures.values())) for step in steps]
    rows.append(("look-up of a cached plan", *(f"{f['cached'] * 1e3:.4f}" for f in figures.values())))
    print(table(rows), end="\n\n")
    largest = figures["nine assigns"]
    count = f"{largest['primitives']:.0f} primitives"
    print(f"The very first plan of the process ({count}): {first * 1e3:.1f} ms\n")
    checks = {
        f"{count} are planned in at most {COLD * 1e3:.0f} ms": largest["all"] <= COLD,
        f"their plan is looked up in at most {LOOK_UP * 1e6:.0f} us": largest["cached"] <= LOOK_UP,
    }
    return finish({"planning": figures, "first_s": first}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
