"""What requests cost, in spans and metrics: tokens by model, those of caches and of reasoning, requests in vain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from telemetry_kit import attributes, telemetry

import fineflow
from fineflow.testing import virtual

TOKENS = "gen_ai.client.token.usage"


@fineflow.external
class Telling(BaseChatModel):
    model_name: str = "figures"

    @property
    def _llm_type(self) -> str:
        return "telling"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(1.0)
        if messages[-1].text == "bad":
            raise ValueError("bad")
        usage: Any = {"input_tokens": 3000, "output_tokens": 50, "total_tokens": 3050}
        usage["input_token_details"] = {"cache_read": 2000, "cache_creation": 900}
        usage["output_token_details"] = {"reasoning": 20}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("yes", usage_metadata=usage))])


def asking(*texts: str) -> Any:
    model = Telling()

    async def each(_: int) -> list[Any]:
        return [(await model.ainvoke(text)).content for text in texts]

    return fineflow.optimize(RunnableLambda(each), strict=True)


def test_tokens_by_model() -> None:
    with telemetry() as kept:
        virtual.run(asking("a", "b").ainvoke(1))
    told = [found for span in kept.spans if "gen_ai.usage.input_tokens" in (found := attributes(span))]
    assert [each["gen_ai.usage.cache_creation.input_tokens"] for each in told] == [900, 900]
    assert [each["gen_ai.usage.reasoning.output_tokens"] for each in told] == [20, 20]
    points = {point.attributes["gen_ai.token.type"]: point for point in kept.metrics()[TOKENS]}
    assert {kind: (point.count, point.sum) for kind, point in points.items()} == {
        "input": (2, 6000),
        "output": (2, 100),
    }
    about = {name: value for name, value in points["input"].attributes.items() if name != "gen_ai.token.type"}
    assert about == {"gen_ai.operation.name": "chat", "gen_ai.request.model": "figures"}
    counted = {point.attributes["fineflow.type"]: point.value for point in kept.metrics()["fineflow.engine.tokens"]}
    assert counted == {"input": 6000, "cached": 4000, "written": 1800, "output": 100, "reasoning": 40}


def test_requests_in_vain() -> None:
    with telemetry() as kept, pytest.raises(ValueError, match="bad"):
        virtual.run(asking("bad", "b", "c").ainvoke(1))
    (point,) = kept.metrics()["fineflow.requests.in_vain"]
    assert (point.value, point.attributes["fineflow.model"]) == (2, "figures")
