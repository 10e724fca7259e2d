"""Document QA with advanced RAG in LlamaIndex: ``QueryFusionRetriever``, a reranker, ``refine`` over 3 chunks."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import Refine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import Document, QueryBundle

from benchmarks.apps.app import INSTRUCTIONS, App, about, fresh, prose, scripted
from benchmarks.apps.naive_rag_llamaindex import CUT, texts
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World
from fineflow.llamaindex import DocumentQA

EXPANSIONS, FOUND, KEPT = 3, 16, 3
QUERY, ANSWER = 16, 32
SIZES = {"context_window": 2048, "max_tokens": 128}
EXPANDING = INSTRUCTIONS + "\nWrite {num_queries} better search queries, one a line. Question: {query}\nQueries:"
FIRST = PromptTemplate(INSTRUCTIONS + "\nAnswer the question. Question: {query_str}\nPassage: {context_str}\nAnswer:")
BETTER = PromptTemplate(
    INSTRUCTIONS
    + "\nRefine the answer. Question: {query_str}\nPassage: {context_msg}\nAnswer so far: {existing_answer}\n"
)


def build(world: World) -> DocumentQA:
    llm, reranker = world.index_llm(**SIZES), world.index_reranker(KEPT)

    def engine(index: Any) -> BaseQueryEngine:
        retriever = QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=FOUND)],
            llm=llm,
            query_gen_prompt=EXPANDING,
            mode=FUSION_MODES.RECIPROCAL_RANK,
            similarity_top_k=EXPANSIONS * FOUND,
            num_queries=EXPANSIONS + 1,
            use_async=False,
        )
        synthesizer = Refine(llm=llm, text_qa_template=FIRST, refine_template=BETTER)
        return RetrieverQueryEngine(retriever, synthesizer, node_postprocessors=[reranker])

    return DocumentQA([CUT], world.index_embedding, engine)


class ByHand:
    """The same with asyncio: queries are written and embedded while the chunks are, and searched concurrently."""

    def __init__(self, world: World) -> None:
        self.llm, self.reranker = world.index_llm(**SIZES), world.index_reranker(KEPT)
        self.qa, self.embedding = build(world), world.index_embedding

    async def _queries(self, question: str) -> list[QueryBundle]:
        text = await self.llm.acomplete(EXPANDING.format(num_queries=EXPANSIONS, query=question))
        queries = [line for line in text.text.split("\n") if line.strip()]
        vectors = await asyncio.gather(*map(self.embedding.aget_query_embedding, queries))
        return [QueryBundle(query, embedding=vector) for query, vector in zip(queries, vectors, strict=True)]

    async def _question(self, question: str) -> list[QueryBundle]:
        return [QueryBundle(question, embedding=await self.embedding.aget_query_embedding(question))]

    async def aquery(self, documents: list[Document], question: str) -> Any:
        index = VectorStoreIndex([], **self.qa.settings)
        building = self.qa._ainsert(index, documents)
        _, first, more = await asyncio.gather(building, self._question(question), self._queries(question))
        retriever = index.as_retriever(similarity_top_k=FOUND)
        found = await asyncio.gather(*map(retriever.aretrieve, [*first, *more]))
        fused = QueryFusionRetriever([retriever], llm=self.llm)._reciprocal_rerank_fusion(
            {(bundle.query_str, i): nodes for i, (bundle, nodes) in enumerate(zip([*first, *more], found, strict=True))}
        )
        kept = await self.reranker.apostprocess_nodes(fused[: EXPANSIONS * FOUND], query_str=question)
        synthesizer = Refine(llm=self.llm, text_qa_template=FIRST, refine_template=BETTER)
        return await synthesizer.asynthesize(question, kept)


def tuned(world: World) -> ByHand:
    return ByHand(world)


def expanded(prompt: str) -> str:
    return "\n".join(prose(f"{about(prompt)} {i}", QUERY) for i in range(EXPANSIONS))


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 1
    pieces = [node.get_content() for node in CUT.get_nodes_from_documents(x["documents"])]
    chunk = sum(map(count, pieces)) // len(pieces)
    queries = expanded(x["question"]).split("\n")
    prompt = [(system + asked + 11, None)]
    lines = path.write("queries", prompt, QUERY * EXPANSIONS, cached=system, items=[QUERY] * EXPANSIONS)
    parts = [(len(pieces) + 1, None), *((1, line) for line in lines.items)]
    vectors = path.batch("vectors of chunks and queries", "embedder", parts)
    found = fresh(pieces, [x["question"], *queries], FOUND)
    scores = path.batch("scores", "reranker", list(zip(found, vectors.items, strict=True)))
    answer = path.write("answer", [(system + asked + 6, None), (chunk, scores)], ANSWER, cached=system)
    for i in range(1, KEPT):
        prompt = [(system + asked + 6, None), (chunk, scores), (ANSWER, answer)]
        answer = path.write(f"answer, refined by chunk {i}", prompt, ANSWER, cached=system)


APP = App(
    "advanced_rag_llamaindex",
    "the same in LlamaIndex: query fusion, reranker, refine",
    build,
    tuned,
    texts,
    scripted({"better search queries": expanded, "Refine the": ANSWER, "Answer the": ANSWER}),
    limit,
    streams=False,
)
