"""Queries that a model writes in any list format are searched while it still writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
)
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnablePick

import fineflow
from fineflow.ir import Op
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

QUESTION = {"question": "the capital of France"}
FORMATS: dict[str, tuple[Any, str]] = {
    "values": (CommaSeparatedListOutputParser(), "capital of France, town of France, cheese"),
    "points": (NumberedListOutputParser(), "1. capital of France\n2. town of France\n3. cheese"),
    "bullets": (MarkdownListOutputParser(), "- capital of France\n- town of France\n- cheese"),
    "elements": (JsonOutputParser(), '["capital of France", "town of France", "cheese"]'),
}


def chain(kind: str, **chat: Any) -> tuple[Runnable[Any, Any], FakeVectorStore]:
    parser, text = FORMATS[kind]
    store = FakeVectorStore.from_texts(["Paris is the capital", "Lyon is a town", "cheese"], FakeEmbeddings())
    queries = PromptTemplate.from_template("{question}") | FakeChat(default=text, **chat) | parser
    return RunnablePick("question") | MultiQueryRetriever(retriever=store.as_retriever(), llm_chain=queries), store


@pytest.mark.parametrize("kind", FORMATS)
def test_the_documents_are_the_same(kind: str) -> None:
    graph = fineflow.explain(chain(kind)[0]).e_graph
    assert graph is not None
    assert [p.params["items"] for p in graph if p.op is Op.PARSE] == [kind]
    assert any(p.op is Op.PARTIAL_DECODE for p in graph)
    assert_same(lambda: chain(kind)[0], QUESTION, strict=True)


@pytest.mark.parametrize("kind", FORMATS)
async def test_the_first_query_is_searched_before_the_last_is_written(kind: str) -> None:
    gate, arrived = Gate(), asyncio.Event()
    runnable, store = chain(kind, token_gate=gate)
    call = asyncio.create_task(fineflow.optimize(runnable, strict=True).ainvoke(QUESTION))
    gate.let(7)  # "1." "capital" "of" "France" "2." "town" "of": past the first item in every format

    async def searched() -> None:
        while not store.meter.calls:
            await asyncio.sleep(0)
        arrived.set()

    await asyncio.wait_for(searched(), 10)
    assert arrived.is_set()
    assert not call.done()
    gate.open()
    assert len(await call) == 3


def test_malformed_json_is_the_same() -> None:
    FORMATS["broken"] = (JsonOutputParser(), '["capital", oh] ```json\n["town"]\n```')
    try:
        assert_same(lambda: chain("broken")[0], QUESTION, entries=["invoke", "ainvoke"])
    finally:
        del FORMATS["broken"]
