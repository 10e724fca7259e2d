"""Planning: the first call of an optimized object plans it, later calls look up the cached plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from benchmarks.micro.calls import small
from benchmarks.micro.measure import Found, calls_of_fineflow, processor_seconds
from fineflow.adapters.langchain.calls import ChainCall
from fineflow.adapters.langchain.planning import decide, lower
from fineflow.demo.app import build
from fineflow.options import Options
from fineflow.passes import PASSES, bind
from fineflow.testing.langchain import FakeChat, FakeReranker, FakeVectorStore

COLD = 0.010  # seconds for a new chain of about 50 primitives
LOOK_UP = 20e-6  # seconds to find the plan of a later call
INPUT = {"question": "Which bridge?"}
TURNS = 4  # plans, for each run


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


def assistant() -> Runnable[Any, Any]:
    return build(FakeChat(), FakeVectorStore(), FakeReranker())


CHAINS = {"prompt | model | parser": small, "assistant": assistant, "nine assigns": assigns}


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


def planned(chain: Runnable[Any, Any]) -> dict[str, float]:
    """Returns the processor seconds of every step of planning one chain for the first time."""
    took: dict[str, float] = {}
    took["lower"], (p_graph, lowered) = seconds(lambda: lower(chain, Options(), text_input=True))
    graph = p_graph
    for each in (*PASSES, bind):
        took[each.__name__], graph = seconds(lambda each=each, graph=graph: each(graph))  # type: ignore[misc]
    took["decide"], _ = seconds(lambda: decide(p_graph, graph, lowered))
    return {**took, "all": sum(took.values()), "primitives": len(graph.primitives)}


def look_up(chain: Runnable[Any, Any]) -> Callable[[], Any]:
    """Returns a function that looks up the cached plan of an optimized chain."""
    mine: Any = fineflow.optimize(chain)

    def found() -> Any:
        return mine._self_plan(ChainCall("invoke", chain, INPUT, None, chain.invoke, sync=True))

    found()
    return found


def measured(runs: int) -> Found:
    """Measures planning and looking up, in calls of stock of a chain: how many a plan costs."""
    found = Found()
    planned(assigns())  # imports everything needed, as in every program before its first call
    stock = small()

    def call() -> float:
        return processor_seconds(lambda: stock.invoke(INPUT), 20)

    call()
    for name, make in CHAINS.items():
        plans, ratios = list[dict[str, float]](), list[float]()
        for _ in range(runs * TURNS):
            plans.append(planned(make()))
            ratios.append(plans[-1]["all"] / call())
        middle = {step: statistics.median(each[step] for each in plans) for step in plans[0]}
        steps = ", ".join(f"{step} {middle[step] * 1e3:.2f}" for step in ("lower", "decide", "all"))
        shown = f"{middle['primitives']:.0f} primitives, ms: {steps}"
        found.add(f"plan, {name}", statistics.median(ratios), "plan / stock call of three steps", shown)
        find = look_up(make())
        both = [(processor_seconds(find, 1000), call()) for _ in range(runs)]
        cached = statistics.median(each for each, _ in both)
        ratio = statistics.median(each / beside for each, beside in both)
        found.add(f"look-up, {name}", ratio, "look-up / stock call of three steps", f"{cached * 1e6:.1f} us")
        found.add(f"calls, look-up, {name}", calls_of_fineflow(find), "calls of fineflow")
        calls = calls_of_fineflow(lambda make=make: planned(make()))
        found.add(f"calls, plan, {name}", calls / middle["primitives"], "calls of fineflow per primitive")
    largest = f"{middle['primitives']:.0f} primitives"
    found.aims[f"{largest} are planned in at most {COLD * 1e3:.0f} ms"] = middle["all"] <= COLD
    found.aims[f"their plan is looked up in at most {LOOK_UP * 1e6:.0f} us"] = cached <= LOOK_UP
    return found
