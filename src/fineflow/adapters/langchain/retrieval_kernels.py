"""How retrieval runs ahead of stock: vectors, searches, reranking, and the union of several searches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.langchain.ahead import Args, LeftToStock, current
from fineflow.adapters.langchain.arguments import Arguments, settings
from fineflow.adapters.langchain.compressors import scorer_of
from fineflow.adapters.langchain.recorder import Recorder
from fineflow.adapters.langchain.retrievers import Ready, with_vector
from fineflow.ir import Primitive
from fineflow.runtime.claims import Entry
from fineflow.runtime.executor import Execution, Work
from fineflow.runtime.threads import in_thread


def embed(p: Primitive, args: Args, run: Execution) -> Awaitable[Any]:
    texts = args["texts"]
    if p.params["of"] == "query":
        vector: Awaitable[Any] = p.component.aembed_query(texts)
        return vector
    return _embed_documents(p, texts, run)


async def _embed_documents(p: Primitive, docs: Sequence[Document], run: Execution) -> dict[str, list[float]]:
    """Vectors of documents by text; texts met before in this query are not embedded again."""
    table = run.call.tables.setdefault(("vectors", id(p.component)), {})
    vectors: dict[str, list[float]] = await _once_each(
        table, [doc.page_content for doc in docs], p.component.aembed_documents, p, run
    )
    return vectors


async def _once_each(table: dict[Any, Any], keys: Sequence[Any], compute: Any, p: Primitive, run: Execution) -> Any:
    """Values by key, computing in stages those that nobody in this query has asked for before."""
    fresh = [key for key in dict.fromkeys(keys) if key not in table]
    size = p.params.get("stages") or len(fresh) or 1
    for start in range(0, len(fresh), size):
        stage = fresh[start : start + size]
        together = run.spawn(compute(stage), p)
        for i, key in enumerate(stage):
            table[key] = (together, i)
    found = {}
    for key in dict.fromkeys(keys):
        together, i = table[key]
        found[key] = (await asyncio.shield(together))[i]
    return found


def search(p: Primitive, args: Args, run: Execution) -> Work:
    current(run)
    query = args["query"]
    vector = args.get("vector")
    if type(query) is not str:
        raise LeftToStock("the query is not a text")

    async def start(entry: Entry) -> Any:
        recorder: Recorder = entry.replay
        recorder.silence()
        retriever = p.component if vector is None else with_vector(p.component, query, vector)
        manager = recorder.retriever(sync=run.call.sync)
        entry.begun = True
        if run.call.sync:
            return await in_thread(lambda: retriever._get_relevant_documents(query, run_manager=manager))
        return await retriever._aget_relevant_documents(query, run_manager=manager)

    entry = run.work(p, Arguments((query, {})), start)
    if entry.replay is None:
        entry.replay = Recorder(p.component)
    return Work(entry, list)


def score(p: Primitive, args: Args, run: Execution) -> Awaitable[Any]:
    """Scores documents as they arrive; the RERANK that selects finds them in the query's table."""
    return _scores(p, args["query"], args["documents"], run)


async def _scores(p: Primitive, query: str, docs: Sequence[Document], run: Execution) -> list[float]:
    scorer = scorer_of(p.component)
    table = run.call.tables.setdefault(("scores", id(scorer), query), {})

    async def compute(texts: list[str]) -> list[float]:
        Recorder(p.component).silence()
        if run.call.sync and getattr(scorer, "engine", None) is None:
            scores: list[float] = await in_thread(lambda: scorer.score(query, texts))
        else:
            scores = await scorer.ascore(query, texts)
        return scores

    found = await _once_each(table, [doc.page_content for doc in docs], compute, p, run)
    return [found[doc.page_content] for doc in docs]


def rerank(p: Primitive, args: Args, run: Execution) -> Any:
    if p.params.get("stage"):
        return score(p, args, run)
    docs, query = list(args["documents"]), args["query"]
    if not docs:
        return []  # stock does not ask the compressor either

    async def start(entry: Entry) -> Any:
        recorder: Recorder = entry.replay
        recorder.silence()
        if p.params["pairwise"]:
            entry.begun = True
            return _select(p.component, docs, await _scores(p, query, docs, run))
        component = p.component
        if "vectors" in args:
            component = _with_vectors(component, args["vectors"])
        entry.begun = True
        if run.call.sync:
            return list(await in_thread(lambda: component.compress_documents(docs, query)))
        return list(await component.acompress_documents(docs, query))

    entry = run.work(p, Arguments((docs, query, settings(p.component))), start)
    if entry.replay is None:
        entry.replay = Recorder(p.component)
    return Work(entry, list)


def _select(compressor: Any, docs: list[Document], scores: list[float]) -> list[Document]:
    if hasattr(compressor, "select"):
        return list(compressor.select(docs, scores))
    ready = compressor.model_copy()
    ready.__dict__["model"] = _Scored(scores)
    return list(ready.compress_documents(docs, ""))


class _Scored:
    """Stands in for a cross-encoder whose scores are there: the reranker's own code selects."""

    def __init__(self, scores: list[float]) -> None:
        self._scores = scores

    def score(self, pairs: Sequence[Any]) -> list[float]:
        return self._scores


def _with_vectors(compressor: Any, vectors: dict[str, list[float]]) -> Any:
    ready = compressor.model_copy()
    ready.__dict__["embeddings"] = Ready(compressor.embeddings, vectors)
    return ready


def aggregate(p: Primitive, args: Args, run: Execution) -> Any:
    """The documents of several searches, as MultiQueryRetriever unites them."""
    lists = [*args["lists"], *([args["original"]] if "original" in args else [])]
    return p.component.unique_union([doc for docs in lists for doc in docs])
