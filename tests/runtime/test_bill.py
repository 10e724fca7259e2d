"""Tokens of requests by model, and what they cost by the user's prices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

import fineflow
from fineflow.langchain import FineflowCallbackHandler

EACH = fineflow.Usage(1, 100, 2000, 900, 50, 20)


@fineflow.external
class Telling(BaseChatModel):
    model_name: str

    @property
    def _llm_type(self) -> str:
        return "telling"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        usage: Any = {"input_tokens": 3000, "output_tokens": 50, "total_tokens": 3050}
        usage["input_token_details"] = {"cache_read": 2000, "cache_creation": 900}
        usage["output_token_details"] = {"reasoning": 20}
        answer = AIMessage("yes", usage_metadata=usage, response_metadata={"model_name": self.model_name})
        return ChatResult(generations=[ChatGeneration(message=answer)])


def chain(name: str) -> Any:
    ask = ChatPromptTemplate.from_template("{x}") | Telling(model_name=name) | StrOutputParser()
    return RunnablePassthrough.assign(a=ask) | RunnablePassthrough.assign(b=ask)


@pytest.fixture
def priced() -> Iterator[None]:
    fineflow.prices({"priced": {"input": 10, "read": 1, "written": 12.5, "output": 30}, "simple": {"input": 10}})
    yield
    fineflow.prices({})


def test_statistics_have_the_tokens_of_each_model(priced: None) -> None:
    for streams in (False, True):
        name = f"counted {streams}"
        app = fineflow.optimize(chain(name), strict=True)
        assert list(app.stream({"x": 1})) if streams else app.invoke({"x": 1})
        assert fineflow.statistics().models[name] == EACH + EACH
    assert "counted True: 2 requests, tokens: 200 input, 4,000 read from the cache, 1,800 written to it" in str(
        fineflow.statistics()
    )


def test_a_handler_has_those_of_what_runs_as_it_is(priced: None) -> None:
    handler = FineflowCallbackHandler()
    chain("priced").invoke({"x": 1}, {"callbacks": [handler]})
    assert handler.report().models == {"priced": EACH + EACH}
    line = "priced: 2 requests, tokens: 200 input, 4,000 read from the cache, 1,800 written to it, 100 output (40 of"
    assert line in " ".join(str(handler.report()).split())
    assert "cost: 0.0315" in str(handler.report())
    assert "cost: 0.0315" in handler.report().to_html()
    handler.clear()
    assert not handler.report().models


def test_prices(priced: None) -> None:
    assert EACH.cost("priced") == pytest.approx((100 * 10 + 2000 * 1 + 900 * 12.5 + 50 * 30) / 1e6)
    assert EACH.cost("simple") == pytest.approx(3000 * 10 / 1e6)
    assert EACH.cost("another") is None


@pytest.mark.parametrize(
    ("table", "error", "says"),
    [
        ([], TypeError, "expected a mapping"),
        ({"m": 3}, TypeError, "prices of 'm' are a mapping"),
        ({"m": {"inputs": 3}}, ValueError, "input, read, written, output; got 'inputs'"),
        ({"m": {"input": -1}}, ValueError, "number from 0 on; got -1"),
        ({"m": {"input": float("nan")}}, ValueError, "number from 0 on; got nan"),
    ],
)
def test_wrong_prices(table: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fineflow.prices(table)


def test_a_plan_tells_what_a_call_is_going_to_cost(priced: None) -> None:
    app = chain("priced and planned")
    assert "Requests of one call" not in str(fineflow.explain(app))  # nothing is known of its tokens yet
    fineflow.optimize(app, strict=True).invoke({"x": 1})
    fineflow.prices({"priced and planned": {"input": 10, "read": 1, "written": 12.5, "output": 30}})
    ((_, columns, rows),) = [
        each for each in fineflow.explain(app).timing if each[0].startswith("Requests of one call")
    ]
    tokens = "100", "2,000", "900", "50"
    assert dict(zip(columns[:2], rows[0], strict=False)) == {"model": "priced and planned", "requests": "2"}
    assert rows == (("priced and planned", "2", *tokens, "0.01575", "0.0315"),)


def test_a_timeline_has_a_line_for_each_model(priced: None) -> None:
    fineflow.prices({"on a timeline": {"input": 10, "read": 1, "written": 12.5, "output": 30}})
    app = fineflow.optimize(chain("on a timeline"), strict=True)
    with fineflow.record() as recording:
        app.invoke({"x": 1})
    page = recording.timeline().html()
    assert "on a timeline: 2 requests, tokens: 200 input, 4,000 read from the cache" in page
    assert "cost: 0.0315" in page
