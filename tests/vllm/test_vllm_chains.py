"""Chains on vLLM: what the optimized one answers is what stock answers, token by token."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

import pytest

pytest.importorskip("psutil")

from helpers_vllm import LONG, turns
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from fineflow.backends.vllm import VLLMEngine
from fineflow.langchain import ChatEngine, EngineLLM
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeEmbeddings, FakeVectorStore

ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the context. Keep the answer short. {history}"),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)
QUERIES = ChatPromptTemplate.from_messages([("human", "Write three search queries, one per line, for: {question}")])
INPUT = {"question": "What is Torstad known for?", "history": LONG * 40}
TEXTS = ["Torstad is a town. Torstad is known for its salt mines.", "Kelmora Bridge stands in Velm."]


def rag(llm: Any, gate: Gate | None = None) -> Runnable[Any, Any]:
    """Searches for what the model makes of the question, and answers from that."""
    retriever = FakeVectorStore.from_texts(TEXTS, FakeEmbeddings(), gate=gate).as_retriever(search_kwargs={"k": 1})
    return (
        RunnablePassthrough.assign(queries=QUERIES | llm | StrOutputParser())
        | RunnablePassthrough.assign(context=itemgetter("queries") | retriever)
        | RunnablePassthrough.assign(answer=ANSWER | llm | StrOutputParser())
    )


def test_same_answer_from_every_entry_point(engine: VLLMEngine) -> None:
    # No handler: vLLM puts pieces together that are not read at once, so that runs report more or fewer of them.
    batch = [INPUT, {**INPUT, "history": ""}]
    assert_same(lambda: rag(ChatEngine(engine=engine, max_tokens=24)), INPUT, batch=batch, handler=None)


def test_same_completion(engine: VLLMEngine) -> None:
    assert_same(lambda: rag(EngineLLM(engine=engine, max_tokens=24, stop=["."])), INPUT, handler=None)


async def test_many_at_once_answer_as_one_by_one(engine: VLLMEngine) -> None:
    llm = ChatEngine(engine=engine, max_tokens=16)
    inputs = [{**INPUT, "question": f"What is No. {number} known for?"} for number in range(12)]
    stock = [await rag(llm).ainvoke(each) for each in inputs]
    optimized = fineflow.optimize(rag(llm), strict=True)
    assert await asyncio.gather(*(optimized.ainvoke(each) for each in inputs)) == stock


async def test_what_is_known_is_computed_while_the_rest_is_waited_for(engine: VLLMEngine) -> None:
    gate = Gate()
    llm = ChatEngine(engine=engine, max_tokens=8)
    chain = fineflow.optimize(rag(llm, gate), strict=True, eager=True)
    known = ANSWER.format_messages(history=INPUT["history"], context="", question="")[:1]
    tokens = engine.encode(llm.prompt_text(known, open_ended=True))
    await engine.reset_prefix_cache()
    asking = asyncio.ensure_future(chain.ainvoke(INPUT))
    await turns(lambda: engine.cached(tokens) > len(tokens) - 2 * engine.block_size)
    before = engine.cache_statistics()
    gate.open()
    found = await asking
    after = engine.cache_statistics()
    assert before is not None
    assert after is not None
    assert after.hits - before.hits >= len(tokens) - 2 * engine.block_size
    assert found == await rag(llm, gate).ainvoke(INPUT)
