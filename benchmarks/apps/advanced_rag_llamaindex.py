"""Document QA with advanced RAG in LlamaIndex: ``QueryFusionRetriever``, a reranker, ``refine`` over 3 chunks."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import Refine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

from benchmarks.apps.app import INSTRUCTIONS, App, count, prose, scripted
from benchmarks.apps.naive_rag_llamaindex import CUT, chunks, texts
from benchmarks.harness.limits import Path
from benchmarks.harness.world import World
from fineflow.llamaindex import DocumentQA

EXPANSIONS, FOUND, KEPT = 3, 16, 3
QUERY, ANSWER = 16, 32
EXPANDING = INSTRUCTIONS + "\nWrite {num_queries} better search queries, one a line. Question: {query}\nQueries:"
FIRST = PromptTemplate(INSTRUCTIONS + "\nAnswer the question. Question: {query_str}\nPassage: {context_str}\nAnswer:")
BETTER = PromptTemplate(
    INSTRUCTIONS + "\nRefine the answer. Question: {query_str}\nPassage: {context_msg}\nAnswer so far: {existing_answer}\n"
)


def application(world: World, *, use_async: bool) -> DocumentQA:
    llm = world.index_llm(context_window=2048, max_tokens=128)
    reranker = world.index_reranker(KEPT)

    def engine(index: Any) -> BaseQueryEngine:
        retriever = QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=FOUND)],
            llm=llm,
            query_gen_prompt=EXPANDING,
            mode=FUSION_MODES.RECIPROCAL_RANK,
            similarity_top_k=EXPANSIONS * FOUND,
            num_queries=EXPANSIONS + 1,
            use_async=use_async,
        )
        synthesizer = Refine(llm=llm, text_qa_template=FIRST, refine_template=BETTER)
        return RetrieverQueryEngine(retriever, synthesizer, node_postprocessors=[reranker])

    return DocumentQA([CUT], world.index_embedding, engine)


def build(world: World) -> DocumentQA:
    return application(world, use_async=False)


def tuned(world: World) -> DocumentQA:
    """With ``use_async=True``: queries are embedded and searched concurrently."""
    return application(world, use_async=True)


def expanded(prompt: str) -> str:
    return "\n".join(prose(f"{prompt} {i}", QUERY) for i in range(EXPANSIONS))


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 1
    sizes = chunks(x["documents"])
    chunk = sum(sizes) // len(sizes)
    prompt = [(system + asked + 11, None)]
    lines = path.write("queries", prompt, QUERY * EXPANSIONS, cached=system, items=[QUERY] * EXPANSIONS)
    parts = [(len(sizes) + 1, None), *((1, line) for line in lines.items)]
    vectors = path.batch("vectors of chunks and queries", "embedder", parts)
    # The question and three queries find different chunks or the same ones: all of them together at least 16.
    scores = path.batch("scores", "reranker", [(FOUND, vectors.items[0]), (1, vectors.items[-1])])
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
