"""RAG-fusion: four queries, each searched, results fused by reciprocal rank."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from benchmarks.apps.app import INSTRUCTIONS, App, prose, question, scripted
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World

QUERIES, FOUND, KEPT = 4, 8, 4
QUERY, ANSWER = 14, 48
PASSAGES = [f"Passage {i}: {prose(f'fusion {i}', 120)}." for i in range(96)]
EXPANDING = "Generate 4 search queries related to it, one a line: {question}"
ANSWERING = "Answer from this context. Question: {question} Context: {context}"


def build(world: World) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages([("system", INSTRUCTIONS), ("human", EXPANDING)])
    queries = prompt | world.llm | StrOutputParser() | RunnableLambda(lines)
    retriever = world.store().as_retriever(search_kwargs={"k": FOUND})
    fused = queries | retriever.map() | RunnableLambda(fuse)
    return {"context": fused, "question": itemgetter("question")} | world.ask(ANSWERING, system=INSTRUCTIONS)


def tuned(world: World) -> Runnable[Any, Any]:
    """Stock searches all queries concurrently; so does this, with one embedding request for all of them."""
    prompt = ChatPromptTemplate.from_messages([("system", INSTRUCTIONS), ("human", EXPANDING)])
    queries = prompt | world.llm | StrOutputParser() | RunnableLambda(lines)
    store, answer = world.store(), world.ask(ANSWERING, system=INSTRUCTIONS)

    async def run(x: dict[str, Any]) -> str:
        vectors = await asyncio.gather(*map(world.embeddings.aembed_query, await queries.ainvoke(x)))
        found = await asyncio.gather(*(store.asimilarity_search_by_vector(vector, FOUND) for vector in vectors))
        return await answer.ainvoke({**x, "context": fuse(list(found))})

    return RunnableLambda(run)


def lines(text: str) -> list[str]:
    return text.split("\n")


def fuse(results: list[list[Document]], k: int = 60) -> str:
    scores: dict[str, float] = {}
    for docs in results:
        for rank, doc in enumerate(docs):
            scores[doc.page_content] = scores.get(doc.page_content, 0.0) + 1 / (rank + k)
    best = sorted(scores, key=lambda text: -scores[text])
    return "\n".join(best[:KEPT])


def expanded(prompt: str) -> str:
    return "\n".join(prose(f"{prompt} {i}", QUERY) for i in range(QUERIES))


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 4
    prompt = [(system + asked + 10, None)]
    written = path.write("queries", prompt, QUERY * QUERIES, cached=system, items=[QUERY] * QUERIES)
    vectors = path.batch("vectors of queries", "embedder", [(1, line) for line in written.items])
    found = path.wait("search", path.setting.search, vectors)
    context = KEPT * (count(PASSAGES[0]) + 1)
    path.write("answer", [(system + asked + 9, None), (context, found)], ANSWER, cached=system)


APP = App(
    "rag_fusion",
    "RAG-fusion: 4 queries, results fused by rank",
    build,
    tuned,
    lambda number, seed: {"question": question(number, seed)},
    scripted({"Generate 4": expanded, "Answer from": ANSWER}),
    limit,
    passages=PASSAGES,
)
