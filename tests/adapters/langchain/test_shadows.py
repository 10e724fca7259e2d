"""Claims of stock where it can be surprised by them: on the thread of the loop that would have to answer."""

from __future__ import annotations

import asyncio

import pytest

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.shadows import Shadows
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.ir import Graph, Ref
from fineflow.runtime.call.late_call import LateCall
from fineflow.runtime.call.streams import Stream

KEY = ("prompt",)


@pytest.fixture
async def here() -> Claiming:
    """Stock's side of a call whose graph works on the leaf "model", without ever coming to an end."""
    leaves, loop = frozenset({"model", "step"}), asyncio.get_running_loop()
    late = LateCall(loop, {}, "stream", lambda: ("query", None), sync=True, streaming=True, facts=None)
    entry, _ = late.call().claims.expect("model", Arguments(KEY), shared=False)
    entry.stream = Stream()
    empty = Graph((), Ref("input"))
    plan = Plan(None, empty, empty, (), frozenset(), {}, Snapshot(()), leaves=leaves)
    return Claiming(late, Shadows(plan, (), sync=True, arguments=Arguments), leaves)


async def test_a_claim_on_the_loops_own_thread_does_not_wait(here: Claiming) -> None:
    """Python may collect an abandoned stream of stock's there, which claims on its way to its end."""
    _, result = here.claim("model", KEY, lambda: "stock's own", lambda entry: True)
    assert result == "stock's own"


async def test_a_stream_on_the_loops_own_thread_is_stocks(here: Claiming) -> None:
    _, mine = here.claim_stream("model", KEY, lambda entry: True)
    assert mine


async def test_feeding_on_the_loops_own_thread_reaches_the_graph(here: Claiming) -> None:
    fed: list[str] = []
    here.call.waiting["step"] = [fed.append]
    here.feed("step", "value")
    assert fed == ["value"]
