"""Calls of LlamaIndex objects have the priority that ``fineflow.identity`` sets, also if they run as stock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import timed_index
from llama_index.core.bridge.pydantic import Field
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from timed_index import fusion

import fineflow
from fineflow.llamaindex import EngineLLM
from fineflow.runtime.queues import request_context
from one_engine import EXPECTED, URGENT, OneAtATime, order


class Asking(CustomQueryEngine):
    """A query engine of the user's own, with an effect of its own: stock runs it."""

    llm: Any
    seen: list[str] = Field(default_factory=list)

    def custom_query(self, query_str: str) -> str:
        self.seen.append(query_str)
        return str(self.llm.complete(query_str))

    async def acustom_query(self, query_str: str) -> str:
        self.seen.append(query_str)
        return str(await self.llm.acomplete(query_str))


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["synthesizer", "own engine", "gaining"])
def test_the_urgent_one_of_twelve_comes_first(kind: str, sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for latency in ("ASK", "EMBED"):
        monkeypatch.setattr(timed_index, latency, 0.0)
    engine = OneAtATime()
    llm = EngineLLM(engine=engine, max_tokens=1)
    if kind == "synthesizer":
        asked = fineflow.optimize(get_response_synthesizer(llm=llm, response_mode="simple_summarize"), strict=True)
        nodes = [NodeWithScore(node=TextNode(text="a passage"))]
        call = lambda text: asked.synthesize(text, nodes)  # noqa: E731
        acall = lambda text: asked.asynthesize(text, nodes)  # noqa: E731
    else:
        made: Any = Asking(llm=llm)
        if kind == "gaining":  # the question is searched for while a model rewrites it
            made = RetrieverQueryEngine.from_args(fusion(use_async=not sync), llm=llm, response_mode="simple_summarize")
        own = fineflow.optimize(made)
        call, acall = own.query, own.aquery

    def one(number: int) -> None:
        with fineflow.identity(priority=5 if number == URGENT else 0):
            if sync:
                call(f"Request {number}?")
            else:
                asyncio.run(acall(f"Request {number}?"))

    assert order(engine, one) == EXPECTED


def test_the_identity_ends_with_its_block() -> None:
    with fineflow.identity(tenant="north", priority=2):
        with fineflow.identity(priority=3):
            assert (request_context.tenant.get(), request_context.priority.get()) == ("north", 3)
        assert (request_context.tenant.get(), request_context.priority.get()) == ("north", 2)
    assert (request_context.tenant.get(), request_context.priority.get()) == ("", 0)


@pytest.mark.parametrize("wrong", [{"tenant": 3}, {"priority": "5"}, {"priority": True}])
def test_a_wrong_identity_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="identity"), fineflow.identity(**wrong):
        pass
