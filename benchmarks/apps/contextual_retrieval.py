"""Contextual retrieval (Ayo, Figure 2e): a light LLM says of each chunk, seen with its 4 neighbours, where it belongs.

Its sentence goes before the chunk, which is then indexed. 32 chunks are found and reranked to 3, from which the core
LLM answers in one request.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from benchmarks.apps.app import INSTRUCTIONS, App, document, question, scripted
from benchmarks.apps.naive_rag import CUT
from benchmarks.harness.limits import Path, count
from benchmarks.harness.setting import PAPER, lighter
from benchmarks.harness.world import World, joined
from fineflow.langchain import SearchIndex

LENGTH, NEIGHBOURS, FOUND, KEPT = 6000, 4, 32, 3
CONTEXT, ANSWER = 24, 64
SITUATING = "Situate the chunk in its surroundings. Surroundings: {around} Chunk: {chunk}"
ANSWERING = "Answer the question. Question: {question} Passages: {context}"


def build(world: World) -> Runnable[Any, Any]:
    contexts = RunnableLambda(seen) | world.ask(SITUATING, system=INSTRUCTIONS, small=True).map()
    return (
        RunnablePassthrough.assign(chunks=RunnableLambda(cut))
        | RunnablePassthrough.assign(contexts=contexts)
        | RunnablePassthrough.assign(index=RunnableLambda(situated) | world.indexing())
        | RunnablePassthrough.assign(found=SearchIndex(search_kwargs={"k": FOUND}))
        | RunnablePassthrough.assign(context=world.reranking(KEPT))
        | world.ask(ANSWERING, system=INSTRUCTIONS)
    )


def tuned(world: World) -> Runnable[Any, Any]:
    """The question is embedded meanwhile, and each chunk as soon as its context is written."""
    situate = world.ask(SITUATING, system=INSTRUCTIONS, small=True)
    answer, reranker = world.ask(ANSWERING, system=INSTRUCTIONS), world.reranker(KEPT)

    async def run(x: dict[str, Any]) -> str:
        x = {**x, "chunks": cut(x)}
        store = world.indexing().new_store()

        async def one(given: dict[str, str]) -> tuple[str, list[float]]:
            text = f"{await situate.ainvoke(given)}\n{given['chunk']}"
            (vector,) = await world.embeddings.aembed_documents([text])
            return text, vector

        vector = asyncio.ensure_future(world.embeddings.aembed_query(x["question"]))
        pairs = await asyncio.gather(*map(one, seen(x)))
        for i, (text, its) in enumerate(pairs):
            store.store[str(i)] = {"id": str(i), "vector": its, "text": text, "metadata": {}}  # type: ignore[attr-defined]
        docs = await store.asimilarity_search_by_vector(await vector, FOUND)
        kept = await reranker.acompress_documents(docs, x["question"])
        return await answer.ainvoke({**x, "context": joined(list(kept))})

    return RunnableLambda(run)


def cut(x: dict[str, Any]) -> list[str]:
    return [doc.page_content for doc in CUT.split_documents(x["documents"])]


def seen(x: dict[str, Any]) -> list[dict[str, str]]:
    """Returns each chunk with its neighbours."""
    texts, half = x["chunks"], NEIGHBOURS // 2
    found = []
    for i, chunk in enumerate(texts):
        near = texts[max(0, i - half) : i] + texts[i + 1 : i + 1 + half]
        found.append({"chunk": chunk, "around": "\n".join(near)})
    return found


def situated(x: dict[str, Any]) -> list[Document]:
    return [Document(f"{context}\n{chunk}") for context, chunk in zip(x["contexts"], x["chunks"], strict=True)]


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 4
    texts = cut(x)
    contexts = []
    for i, given in enumerate(seen({"chunks": texts})):
        tokens = system + 8 + count(given["chunk"]) + count(given["around"])
        contexts.append(path.write(f"context of chunk {i}", [(tokens, None)], CONTEXT, cached=system, on="small"))
    parts = [(1, None), *((1, each) for each in path.beside(contexts))]
    vectors = path.batch("vectors of chunks and question", "embedder", parts)
    scores = path.batch("scores", "reranker", [(min(FOUND, len(texts)), vectors)])
    chunk = CONTEXT + sum(map(count, texts)) // len(texts)
    path.write("answer", [(system + asked + 8, None), (KEPT * chunk, scores)], ANSWER, cached=system)


APP = App(
    "contextual_retrieval",
    "contextual retrieval: 4 neighbours, 32 chunks reranked to 3, one answer",
    build,
    tuned,
    lambda number, seed: {"question": question(number, seed), "documents": document(number, seed, LENGTH)},
    scripted({"Situate the": CONTEXT, "Answer the": ANSWER}),
    limit,
    setting=replace(PAPER, small=lighter(PAPER.llm)),
)
