"""While tools run, a model on an engine prefills the beginning of its next prompt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from agent_cases import FOUR, Agent, ran
from benchmarks.peers.plain import plain
from langchain.agents.middleware import wrap_model_call
from langchain_core.tools import tool

from fineflow.cost_model.costs import costs
from fineflow.testing import virtual_threads
from fineflow.testing.leaks import settled

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
EIGHT = [*FOUR, *FOUR]  # some 220 tokens


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    costs.forget()
    yield
    costs.forget()


def undeclared(agent: Agent) -> Any:
    @tool
    def look_up(topic: str, reason: str = "") -> str:
        """Looks a topic up in the archive."""
        agent.note(topic)
        time.sleep(agent.seconds)
        return f"A page about {topic}."

    return [look_up]


def both(entry: str, *calls: Any, **made: Any) -> tuple[Agent, Agent, float]:
    """Returns the two agents, and by how many seconds the optimized one is quicker."""
    stock, mine = (Agent(*calls, tools=undeclared, **made) for _ in range(2))
    expected = ran(stock, entry)
    costs.forget()
    found = ran(mine, entry, optimized=True)
    assert plain(found[0]) == plain(expected[0])
    return stock, mine, expected[1] - found[1]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_the_calls_are_in_the_cache_when_the_next_prompt_comes(entry: str, left_before: Any) -> None:
    stock, mine, gained = both(entry, EIGHT)
    assert mine.engine.cache_statistics().hits - stock.engine.cache_statistics().hits >= 200
    assert gained > 0.02  # seconds
    assert not mine.early
    assert not settled(before=left_before)


@pytest.mark.parametrize(
    ("calls", "made"),
    [(FOUR[:1], {}), (EIGHT, {"can_prefill": False}), (EIGHT, {"seconds": 0.0})],
    ids=["too short", "without a cache", "quick tools"],
)
def test_it_costs_nothing_where_it_cannot_pay(calls: Any, made: Any) -> None:
    stock, mine, gained = both("invoke", calls, **made)
    assert gained > -0.002
    if made.get("seconds", 1.0):
        assert mine.engine.cache_statistics() == stock.engine.cache_statistics()


def test_messages_that_the_users_code_may_change_are_not_prefilled() -> None:
    @wrap_model_call
    def mine_alone(request: Any, handler: Any) -> Any:
        return handler(request)

    stock, mine, _ = both("invoke", EIGHT, middleware=[mine_alone])
    assert mine.engine.cache_statistics() == stock.engine.cache_statistics()
