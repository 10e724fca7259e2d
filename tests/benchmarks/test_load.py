"""The benchmarks of the runtime under load, small: they run, and nothing is left of any call."""

from __future__ import annotations

import asyncio

import pytest

import fineflow
from benchmarks import queries, soak
from fineflow.api import plan
from fineflow.options import Options
from fineflow.testing.leaks import Left, settled


def test_many_queries_at_once_leave_nothing() -> None:
    chain = queries.chain()
    assert len(plan(chain, Options(), True).e_graph.primitives) == queries.PRIMITIVES
    mine = fineflow.optimize(chain, strict=True)
    asyncio.run(queries.ask(mine, 100))  # asserts the answers
    assert settled() == Left()


def test_memory_of_queries_in_flight_is_bounded() -> None:
    assert queries.memory(50, optimized=True) < 150 * 1024


def test_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--seconds", "4", "--runs", "2", "--seed", "7", "--threads", "3", "--coroutines", "8"]) == 0
    shown = capsys.readouterr().out
    assert "seed 7" in shown and "MISS" not in shown
