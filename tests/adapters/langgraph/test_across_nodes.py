"""With ``across_nodes`` calls of the next nodes start when the state that they need is known; the rest is stock's."""

from __future__ import annotations

from typing import Any

import pytest
from across_cases import CASES, SECONDS, Parts, optimized, ran

import fineflow
from fineflow.testing import virtual_threads


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_graph_takes_what_its_data_require(name: str, awaits: bool) -> None:
    stock, mine = Parts(awaits=awaits), Parts(awaits=awaits)
    graphs: list[Any] = [CASES[name](stock).compile(), optimized(CASES[name](mine).compile())]
    before, after = (
        virtual_threads.run(lambda graph=graph, parts=parts: ran(graph, parts))
        for graph, parts in zip(graphs, (stock, mine), strict=True)
    )
    assert after.value == before.value
    assert (before.seconds, after.seconds) == pytest.approx(SECONDS[name], rel=0.005)
    assert mine.asked == stock.asked


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
def test_nothing_starts_across_nodes_unless_asked_for() -> None:
    parts = Parts()
    graph = fineflow.optimize(CASES["siblings"](parts).compile(), strict=True)
    assert virtual_threads.run(lambda: ran(graph, parts)).seconds == pytest.approx(2.4, rel=0.005)
