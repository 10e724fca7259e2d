"""The configurations of Ayo's repository (its ``examples``), whose README reports seconds before and after.

Naive RAG (example 0): 666 passages, top 20, reranked to 2, an answer of 10 tokens. Advanced RAG (example 1): the same
with 3 queries in JSON. And an app of two LLM steps of 512 and 1,024 tokens, for which the README reports nothing.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from benchmarks.apps.app import INSTRUCTIONS, App, about, fresh, prose, question, scripted
from benchmarks.harness.limits import Path, count
from benchmarks.harness.setting import PAPER
from benchmarks.harness.world import World
from fineflow.engines import BatchProfile
from fineflow.langchain import SearchIndex

PASSAGES, WORDS, QUERIES, FOUND, KEPT, ANSWER = 666, 60, 3, 20, 2, 10
QUERY = 36  # tokens of a query: the repository's log shows some 130 steps for three of them
SETTING = replace(
    PAPER,
    source="Ayo's repository: one engine of each kind. Embedding and reranking from the times in its logs (128 texts "
    "0.158 s, 26 texts 0.053 s; 60 pairs 0.116 s, 20 pairs 0.047 s), Llama-2-7B from Table 3 of the paper. Its store "
    "takes 0.35 s for 666 vectors, ours no time.",
    embedder=BatchProfile(0.0255, 0.00104, 128),
    reranker=BatchProfile(0.0125, 0.00172, 64),
    llms=1,
)
EXPANDING = "Revise the question into 3 more refined ones, as a JSON list. Question: {question}"
ANSWERING = "Answer the question. Question: {question} Context: {context}"


def build(world: World) -> Runnable[Any, Any]:
    queries = ChatPromptTemplate.from_messages([("system", INSTRUCTIONS), ("human", EXPANDING)]) | world.llm
    search = RunnableLambda(searches) | SearchIndex(search_kwargs={"k": FOUND}).map() | RunnableLambda(merged)
    return (
        RunnablePassthrough.assign(index=itemgetter("documents") | world.indexing())
        | RunnablePassthrough.assign(queries=queries | JsonOutputParser())
        | RunnablePassthrough.assign(found=search)
        | RunnablePassthrough.assign(context=world.reranking(KEPT))
        | world.ask(ANSWERING, system=INSTRUCTIONS)
    )


def tuned(world: World) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages([("system", INSTRUCTIONS), ("human", EXPANDING)])
    queries, index = prompt | world.llm | JsonOutputParser(), world.indexing()
    answer, reranked = world.ask(ANSWERING, system=INSTRUCTIONS), world.reranking(KEPT)

    async def vectors(x: dict[str, Any]) -> list[list[float]]:
        return await asyncio.gather(*map(world.embeddings.aembed_query, await queries.ainvoke(x)))

    async def run(x: dict[str, Any]) -> str:
        store, found = await asyncio.gather(index.ainvoke(x["documents"]), vectors(x))
        docs = await asyncio.gather(*(store.asimilarity_search_by_vector(each, FOUND) for each in found))
        context = await reranked.ainvoke({**x, "found": merged(docs)})
        return await answer.ainvoke({**x, "context": context})

    return RunnableLambda(run)


def build_naive(world: World) -> Runnable[Any, Any]:
    return (
        RunnablePassthrough.assign(index=itemgetter("documents") | world.indexing())
        | RunnablePassthrough.assign(found=SearchIndex(search_kwargs={"k": FOUND}))
        | RunnablePassthrough.assign(context=world.reranking(KEPT))
        | world.ask(ANSWERING, system=INSTRUCTIONS)
    )


def tuned_naive(world: World) -> Runnable[Any, Any]:
    index, answer, reranked = world.indexing(), world.ask(ANSWERING, system=INSTRUCTIONS), world.reranking(KEPT)

    async def run(x: dict[str, Any]) -> str:
        vector = world.embeddings.aembed_query(x["question"])
        store, found = await asyncio.gather(index.ainvoke(x["documents"]), vector)
        docs = await store.asimilarity_search_by_vector(found, FOUND)
        return await answer.ainvoke({**x, "context": await reranked.ainvoke({**x, "found": docs})})

    return RunnableLambda(run)


def build_two_steps(world: World) -> Runnable[Any, Any]:
    first = world.ask("Please answer the following question: {question}")
    second = world.ask("Original question: {question} Initial answer: {answer} Please enrich and expand it.")
    return RunnablePassthrough.assign(answer=first) | second


def searches(x: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the input of each search."""
    return [{"index": x["index"], "question": query} for query in x["queries"]]


def merged(found: list[list[Document]]) -> list[Document]:
    """Returns what all searches found."""
    return [doc for docs in found for doc in docs]


def asked(number: int, seed: int) -> dict[str, Any]:
    passages = [Document(f"Passage {i}: {prose(f'{seed} {number} {i}', WORDS)}.") for i in range(PASSAGES)]
    return {"question": question(number, seed), "documents": passages}


def expanded(prompt: str) -> str:
    return json.dumps([prose(f"{about(prompt)} {i}", QUERY) for i in range(QUERIES)])


def limit(path: Path, x: dict[str, Any]) -> None:
    size, system = count(x["question"]), count(INSTRUCTIONS) + 4
    prompt = [(system + size + 14, None)]
    lines = path.write("queries", prompt, QUERY * QUERIES, cached=system, items=[QUERY] * QUERIES)
    found = fresh([doc.page_content for doc in x["documents"]], json.loads(expanded(x["question"])), FOUND)
    parts = [(PASSAGES, None), *((1, line) for line in lines.items)]
    vectors = path.batch("vectors of passages and queries", "embedder", parts)
    scores = path.batch("scores", "reranker", list(zip(found, vectors.items[1:], strict=True)))
    context = KEPT * (WORDS + 2)
    path.write("answer", [(system + size + 8, None), (context, scores)], ANSWER, cached=system)


def limit_naive(path: Path, x: dict[str, Any]) -> None:
    size, system = count(x["question"]), count(INSTRUCTIONS) + 4
    vectors = path.batch("vectors of passages and question", "embedder", [(PASSAGES + 1, None)])
    scores = path.batch("scores", "reranker", [(FOUND, vectors)])
    context = KEPT * (WORDS + 2)
    path.write("answer", [(system + size + 8, None), (context, scores)], ANSWER, cached=system)


def limit_two_steps(path: Path, x: dict[str, Any]) -> None:
    size = count(x["question"])
    answer = path.write("answer", [(size + 8, None)], 512)
    path.write("enriched answer", [(size + 6, None), (512, answer), (7, answer)], 1024)


_SAYS = scripted({"Revise the": expanded, "Initial answer": 1024, "Please answer": 512, "Answer the": ANSWER})

ADVANCED = App(
    "repository_advanced",
    "Ayo's repository, example 1: 666 passages, 3 queries, top 20 each, reranked to 2, 10 tokens",
    build,
    tuned,
    asked,
    _SAYS,
    limit,
    SETTING,
    published=(7.40, 3.17),
)
NAIVE = App(
    "repository_naive",
    "Ayo's repository, example 0: 666 passages, top 20, reranked to 2, 10 tokens",
    build_naive,
    tuned_naive,
    asked,
    _SAYS,
    limit_naive,
    SETTING,
    published=(3.72, 1.97),
)
TWO_STEPS = App(
    "repository_two_steps",
    "Ayo's repository: an answer of 512 tokens, enriched to 1,024",
    build_two_steps,
    build_two_steps,
    lambda number, seed: {"question": question(number, seed)},
    _SAYS,
    limit_two_steps,
    SETTING,
)
