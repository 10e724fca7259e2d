"""Document QA with naive RAG (Ayo, Figure 2c): a document comes with each question.

Chunks of 256 tokens that overlap by 30 are embedded and indexed; the top 3 are found; tree mode: an answer from each
chunk, and one from these three.
"""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from benchmarks.apps.app import INSTRUCTIONS, App, document, question, scripted
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World, splitter
from fineflow.langchain import SearchIndex

SIZE, OVERLAP, KEPT, LENGTH = 256, 30, 3, 9000
LEAF, ANSWER = 24, 32
LEAVES = "Read the passage and answer. Question: {question} Passage: {passage}"
COMBINING = "Combine these answers to one. Question: {question} Answers: {answers}"
CUT = splitter(SIZE, OVERLAP)


def build(world: World) -> Runnable[Any, Any]:
    found = SearchIndex(search_kwargs={"k": KEPT})
    leaves = RunnableLambda(passages) | world.ask(LEAVES, system=INSTRUCTIONS).map() | RunnableLambda("\n".join)
    return (
        RunnablePassthrough.assign(index=itemgetter("documents") | world.indexing(CUT))
        | RunnablePassthrough.assign(found=found)
        | RunnablePassthrough.assign(answers=leaves)
        | world.ask(COMBINING, system=INSTRUCTIONS)
    )


def tuned(world: World) -> Runnable[Any, Any]:
    """The question is embedded while the chunks are; the leaves are asked concurrently."""
    index, leaf = world.indexing(CUT), world.ask(LEAVES, system=INSTRUCTIONS)
    combine = world.ask(COMBINING, system=INSTRUCTIONS)

    async def run(x: dict[str, Any]) -> str:
        vector = world.embeddings.aembed_query(x["question"])
        store, vector = await asyncio.gather(index.ainvoke(x["documents"]), vector)
        docs = await store.asimilarity_search_by_vector(vector, KEPT)
        answers = await asyncio.gather(*map(leaf.ainvoke, passages({**x, "found": docs})))
        return await combine.ainvoke({**x, "answers": "\n".join(answers)})

    return RunnableLambda(run)


def passages(x: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the input of each leaf."""
    return [{"question": x["question"], "passage": doc.page_content} for doc in x["found"]]


def chunks(documents: list[Document]) -> list[int]:
    """Returns the tokens of each chunk."""
    return [count(doc.page_content) for doc in CUT.split_documents(documents)]


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 4
    sizes = chunks(x["documents"])
    chunk = sum(sizes) // len(sizes)
    vectors = path.batch("vectors of chunks and question", "embedder", [(len(sizes) + 1, None)])
    prompt = [(system + asked + 9, None), (chunk + 2, vectors)]
    leaves = [path.write(f"answer from chunk {i}", prompt, LEAF, cached=system) for i in range(KEPT)]
    path.write("answer", [(system + asked + 9, None), *((LEAF, each) for each in leaves)], ANSWER, cached=system)


APP = App(
    "naive_rag",
    "document QA, naive RAG: chunks of 256/30, top 3, tree",
    build,
    tuned,
    lambda number, seed: {"question": question(number, seed), "documents": document(number, seed, LENGTH)},
    scripted({"Read the passage": LEAF, "Combine these": ANSWER}),
    limit,
)
