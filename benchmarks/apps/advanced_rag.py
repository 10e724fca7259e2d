"""Document QA with advanced RAG (Ayo, Figure 2d): a document comes with each question.

The core LLM expands the question into 3 queries; each finds 16 chunks; the reranker keeps the top 3 of all. Refine
mode: an answer from the first chunk, refined by each other one.
"""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from benchmarks.apps.app import INSTRUCTIONS, App, about, document, fresh, prose, question, scripted
from benchmarks.apps.naive_rag import CUT, LENGTH
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World
from fineflow.langchain import SearchIndex

EXPANSIONS, FOUND, KEPT = 3, 16, 3
QUERY, ANSWER = 16, 32
EXPANDING = "Write 3 better search queries, one a line. Question: {question}"
FIRST = "Answer the question. Question: {question} Passage: {passage}"
BETTER = "Refine the answer by the passage. Question: {question} Passage: {passage} Answer: {answer}"


def build(world: World) -> Runnable[Any, Any]:
    from langchain_classic.retrievers.multi_query import LineListOutputParser

    expand = ChatPromptTemplate.from_messages([("system", INSTRUCTIONS), ("human", EXPANDING)])
    search = RunnableLambda(searches) | SearchIndex(search_kwargs={"k": FOUND}).map() | RunnableLambda(merged)

    first = RunnablePassthrough.assign(passage=RunnableLambda(part0)) | world.ask(FIRST, system=INSTRUCTIONS)
    refine = world.ask(BETTER, system=INSTRUCTIONS)
    return (
        RunnablePassthrough.assign(index=itemgetter("documents") | world.indexing(CUT))
        | RunnablePassthrough.assign(queries=expand | world.llm | LineListOutputParser())
        | RunnablePassthrough.assign(found=search)
        | RunnablePassthrough.assign(kept=world.reranking(KEPT, texts))
        | RunnablePassthrough.assign(answer=first)
        | RunnablePassthrough.assign(passage=RunnableLambda(part1))
        | RunnablePassthrough.assign(answer=refine)
        | RunnablePassthrough.assign(passage=RunnableLambda(part2))
        | refine
    )


def tuned(world: World) -> Runnable[Any, Any]:
    """Queries are written and embedded while the chunks are; searches run concurrently."""
    from langchain_classic.retrievers.multi_query import LineListOutputParser

    expand = ChatPromptTemplate.from_messages([("system", INSTRUCTIONS), ("human", EXPANDING)])
    queries = expand | world.llm | LineListOutputParser()
    first, refine = world.ask(FIRST, system=INSTRUCTIONS), world.ask(BETTER, system=INSTRUCTIONS)
    index, reranker = world.indexing(CUT), world.reranker(KEPT)

    async def vectors(x: dict[str, Any]) -> list[list[float]]:
        return await asyncio.gather(*map(world.embeddings.aembed_query, await queries.ainvoke(x)))

    async def run(x: dict[str, Any]) -> str:
        store, found = await asyncio.gather(index.ainvoke(x["documents"]), vectors(x))
        docs = await asyncio.gather(*(store.asimilarity_search_by_vector(vector, FOUND) for vector in found))
        kept = texts(await reranker.acompress_documents(merged(docs), x["question"]))
        answer = await first.ainvoke({**x, "passage": kept[0]})
        for passage in kept[1:]:
            answer = await refine.ainvoke({**x, "passage": passage, "answer": answer})
        return answer

    return RunnableLambda(run)


def searches(x: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the input of each search."""
    return [{"index": x["index"], "question": query} for query in x["queries"]]


def merged(found: list[list[Document]]) -> list[Document]:
    """Returns what all searches found."""
    return [doc for docs in found for doc in docs]


def texts(docs: Any) -> list[str]:
    return [doc.page_content for doc in docs]


def part0(x: dict[str, Any]) -> str:
    return x["kept"][0]


def part1(x: dict[str, Any]) -> str:
    return x["kept"][1]


def part2(x: dict[str, Any]) -> str:
    return x["kept"][2]


def expanded(prompt: str) -> str:
    return "\n".join(prose(f"{about(prompt)} {i}", QUERY) for i in range(EXPANSIONS))


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 4
    pieces = [doc.page_content for doc in CUT.split_documents(x["documents"])]
    chunk = sum(map(count, pieces)) // len(pieces)
    queries = expanded(x["question"]).split("\n")
    prompt = [(system + asked + 11, None)]
    lines = path.write("queries", prompt, QUERY * EXPANSIONS, cached=system, items=[QUERY] * EXPANSIONS)
    parts = [(len(pieces), None), *((1, line) for line in lines.items)]
    vectors = path.batch("vectors of chunks and queries", "embedder", parts)
    scores = path.batch("scores", "reranker", list(zip(fresh(pieces, queries, FOUND), vectors.items[1:], strict=True)))
    known = (system + asked + 9, None)
    answer = path.write("answer", [known, (chunk, scores)], ANSWER, cached=system)
    for i in range(1, KEPT):
        prompt = [(system + asked + 13, None), (chunk, scores), (ANSWER, answer)]
        answer = path.write(f"answer, refined by chunk {i}", prompt, ANSWER, cached=system)


APP = App(
    "advanced_rag",
    "document QA, advanced RAG: 3 expansions of 16 chunks, reranked to 3, refine",
    build,
    tuned,
    lambda number, seed: {"question": question(number, seed), "documents": document(number, seed, LENGTH)},
    scripted({"Write 3 better": expanded, "Answer the": ANSWER, "Refine the": ANSWER}),
    limit,
)
