"""Document QA with naive RAG in LlamaIndex, whose users the papers compare with: ``tree_summarize`` over 3 chunks.

As users write it, LlamaIndex asks about one chunk after the other (``use_async`` is off by default).
"""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import TreeSummarize
from llama_index.core.schema import Document, QueryBundle

from benchmarks.apps.app import INSTRUCTIONS, App, document, question, scripted
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World
from fineflow.llamaindex import DocumentQA

SIZE, OVERLAP, KEPT, LENGTH = 256, 30, 3, 9000
LEAF, ANSWER = 24, 32
SUMMING = PromptTemplate(INSTRUCTIONS + "\nQuestion: {query_str}\nPassages: {context_str}\nAnswer:")
CUT = SentenceSplitter(chunk_size=SIZE, chunk_overlap=OVERLAP, tokenizer=str.split)


def application(world: World, *, use_async: bool) -> DocumentQA:
    # So small that each chunk fills a prompt: one request for each, and one for their answers.
    llm = world.index_llm(context_window=540, max_tokens=64)

    def engine(index: Any) -> BaseQueryEngine:
        tree = TreeSummarize(llm=llm, summary_template=SUMMING, use_async=use_async)
        return RetrieverQueryEngine(index.as_retriever(similarity_top_k=KEPT), response_synthesizer=tree)

    return DocumentQA([CUT], world.index_embedding, engine)


def build(world: World) -> DocumentQA:
    return application(world, use_async=False)


class ByHand:
    """The same with asyncio: the question is embedded while the chunks are, and all leaves are asked concurrently."""

    def __init__(self, world: World) -> None:
        self.qa = application(world, use_async=True)
        self.embedding = world.index_embedding

    async def aquery(self, documents: list[Document], question: str) -> Any:
        index = VectorStoreIndex([], **self.qa.settings)
        vector = self.embedding.aget_query_embedding(question)
        found, _ = await asyncio.gather(vector, self.qa._ainsert(index, documents))
        return await self.qa.query_engine_factory(index).aquery(QueryBundle(question, embedding=found))


def tuned(world: World) -> ByHand:
    return ByHand(world)


def texts(number: int, seed: int) -> dict[str, Any]:
    whole = document(number, seed, LENGTH)[0].page_content
    return {"question": question(number, seed), "documents": [Document(text=whole, id_=f"{seed}-{number}")]}


def says(prompt: str) -> str:
    # A leaf reads a chunk, the root reads the answers of the leaves.
    return scripted({"Part ": LEAF, "Passages: ": ANSWER})(prompt)


def chunks(documents: list[Document]) -> list[int]:
    """Returns the tokens of each chunk."""
    return [count(node.get_content()) for node in CUT.get_nodes_from_documents(documents)]


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 1
    sizes = chunks(x["documents"])
    chunk = sum(sizes) // len(sizes)
    vectors = path.batch("vectors of chunks and question", "embedder", [(len(sizes) + 1, None)])
    leaves = [
        path.write(f"answer from chunk {i}", [(system + asked + 4, None), (chunk, vectors)], LEAF, cached=system)
        for i in range(KEPT)
    ]
    path.write("answer", [(system + asked + 4, None), *((LEAF, each) for each in leaves)], ANSWER, cached=system)


APP = App(
    "naive_rag_llamaindex",
    "the same in LlamaIndex: tree_summarize",
    build,
    tuned,
    texts,
    says,
    limit,
    streams=False,
)
