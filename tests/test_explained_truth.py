"""What ``explain`` says of apps that have been called is what their calls show."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.public import community_apps as apps

import fineflow
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
    plan = fineflow.explain(fast)
    early = [row for heading, _, rows in plan.overview if heading.startswith("What starts earlier") for row in rows]
    promised = [row for row in early if "in calls that stream" not in row[-1]]
    gained = expected - took > SHORT
    assert bool(promised) is gained, f"stock {expected:.2f} s, fineflow {took:.2f} s\n{plan}"
    nothing = any(said in str(plan) for said in ("nothing in it started earlier", "Runs as stock", "run as stock"))
    assert nothing is not gained, f"stock {expected:.2f} s, fineflow {took:.2f} s\n{plan}"
    if plan.last is not None:
        assert plan.last.saved == pytest.approx(expected - took, abs=SHORT)
