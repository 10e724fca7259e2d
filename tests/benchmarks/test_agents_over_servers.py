"""The benchmark of agents over real servers compares what it says, here with quicker tools and models."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("langchain_mcp_adapters")

from benchmarks.public import agent_world, agents


def test_agents_over_servers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_world, "TOKEN", 0.002)

    async def both() -> list[agents.Seen]:
        async with agents.world(quicker=20.0) as world:
            streams, asks = agents.SERVERS[0], agents.SERVERS[2]
            return [
                await world.seen("create_agent, middleware", server, entry, traced=traced, optimized=optimized)
                for server, entry, traced in (
                    (streams, "astream", False),
                    (streams, "astream", True),
                    (asks, "ainvoke", False),
                )
                for optimized in (False, True)
            ]

    stock, mine, traced_stock, traced, asked_stock, asked = asyncio.run(both())
    assert agents.differences(asked_stock, asked, asks=False) == "result, checkpoints, bodies"
    assert not agents.differences(asked_stock, asked, asks=True)
    assert not agents.differences(stock, mine, asks=False)
    assert not agents.differences(traced_stock, traced, asks=False)
    assert len(stock.bodies) == 4 and traced.runs and not mine.runs


def test_what_the_ideal_saves() -> None:
    """Of the three messages with calls of tools, as their JSON says."""
    assert agent_world.seconds("coast", early=False) > agent_world.seconds("coast", early=True)
    assert agent_world.seconds("deep", early=False) > agent_world.seconds("coast", early=False)
