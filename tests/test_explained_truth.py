"""What ``explain`` says of apps that have been called is what their calls show."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from benchmarks.public import community_apps as apps
from benchmarks.public import langgraph_apps as graphs

import fineflow
from fineflow.explanation import Explanation
from fineflow.testing import virtual_threads

pytest.importorskip("langchain_openai")

pytestmark = [
    pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
]
CALLS = 4  # the first one is not measured
SHORT = 0.05  # seconds, where a request takes one


def seconds(made: Any, value: Any) -> float:
    return virtual_threads.run(lambda: made.invoke(value)).seconds


@pytest.mark.parametrize("name", apps.PATHS)
def test_an_app_gains_if_and_only_if_explain_says_so(name: str) -> None:
    module, services = apps.load(name), apps.load("services")

    def made() -> Any:
        return module.build(services.chat_model(module.says, 1), services.vector_store(module.TEXTS, apps.SEARCH))

    stock, fast = made(), fineflow.optimize(made(), strict=True)
    for _ in range(CALLS):
        expected, took = seconds(stock, module.INPUT), seconds(fast, module.INPUT)
    _assert_true(fineflow.explain(fast), expected, took)


@pytest.mark.parametrize("case", graphs.CASES, ids=lambda case: f"{case.graph} {case.value}")
def test_a_graph_gains_if_and_only_if_explain_says_so(case: graphs.Case) -> None:
    module, services = graphs.load(case.graph), graphs.load("graph_services")
    if "stream" not in case.entries:
        pytest.skip("has no sync nodes")
    took = dict[bool, float]()
    for optimized in (False, True):
        graph = module.build(services.Services(module.says))
        graph = fineflow.optimize(graph, strict=True) if optimized else graph
        for number in range(CALLS):
            config = {"configurable": {"thread_id": str(number)}}
            call = partial(graph.stream, getattr(module, case.value), config)
            took[optimized] = virtual_threads.run(lambda call=call: list(call())).seconds
    _assert_true(fineflow.explain(graph), took[False], took[True])


def _assert_true(plan: Explanation, expected: float, took: float) -> None:
    """Compares a plan with the seconds of the last call in stock and with fineflow."""
    early = [row for heading, _, rows in plan.overview if heading.startswith("What starts earlier") for row in rows]
    depends = [row for row in early if "calls that stream" in row[-1] or "comes in pieces" in row[-1]]
    promised = [row for row in early if row not in depends]
    gained = expected - took > SHORT
    assert gained or not promised, f"stock {expected:.2f} s, fineflow {took:.2f} s\n{plan}"
    assert promised or depends or not gained, f"stock {expected:.2f} s, fineflow {took:.2f} s\n{plan}"
    nothing = any(said in str(plan) for said in ("nothing in it started earlier", "Runs as stock", "run as stock"))
    assert not (nothing and gained), f"stock {expected:.2f} s, fineflow {took:.2f} s\n{plan}"
    if plan.last is not None:
        assert plan.last.saved == pytest.approx(expected - took, abs=SHORT)
