"""Runs reranking ahead of stock, and combines the documents of several searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.langchain.arguments import Arguments, settings
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current, documents, unbounded
from fineflow.adapters.langchain.kernels.vectors import DocumentVectors, Tables, once_each
from fineflow.adapters.langchain.lowering.retrieval.compressors import scorer_of
from fineflow.adapters.langchain.lowering.retrieval.retriever_lists import COMBINED
from fineflow.adapters.langchain.models.local import LocalCrossEncoder
from fineflow.adapters.langchain.run_recorder import RunRecorder
from fineflow.adapters.langchain.stores.facts import Ready
from fineflow.cost_model.costs import costs
from fineflow.ir import Primitive
from fineflow.runtime import events
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import CarriedExit
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.workers import in_thread


class Scores(Tables):
    """Scores of one call, by scorer, query and text."""


async def _scores(p: Primitive, query: str, docs: Sequence[Document], run: Execution) -> list[float]:
    scorer = scorer_of(p.component)
    if scorer is None:
        raise LeftToStock("its model no longer scores each pair on its own")
    table = run.call.memory(Scores)[id(scorer), query]

    async def compute(texts: list[str]) -> list[float]:
        RunRecorder(p.component).silence()
        begun = events.now()
        if run.call.sync and getattr(scorer, "engine", None) is None:
            scores: list[float] = await in_thread(lambda: scorer.score(query, texts))
        else:
            scores = await scorer.ascore(query, texts)
        if p.engine and p.meta.get("foreign"):  # otherwise the queue in front of the engine measures it
            costs.observe(p.engine, p.op, len(texts), events.now() - begun)
            costs.observe_size(p.engine, p.op, p.name, len(texts))
        return scores

    found = await once_each(table, [doc.page_content for doc in docs], compute, p, run)
    return [found[doc.page_content] for doc in docs]


def rerank(p: Primitive, args: Args, run: Execution) -> Any:
    if stage := p.params.get("stage"):
        # The RERANK that selects documents finds the scores in the table.
        unbounded(run)
        found = documents([args["documents"]] if stage == "one" else args["documents"])
        return run.spawn(_scores(p, args["query"], found, run), p)
    docs, query = documents(args["documents"]), args["query"]
    if not docs:
        return []  # stock does not call the compressor either

    async def start(entry: Entry) -> Any:
        recorder: RunRecorder = entry.reports
        recorder.silence()
        if p.params["pairwise"]:
            entry.running()
            scores = await _scores(p, query, docs, run)
            scorer = scorer_of(p.component)
            if isinstance(scorer, LocalCrossEncoder) and not scorer.orders(scores, p.component.top_n):
                texts = [doc.page_content for doc in docs]
                scores = await run.spawn(scorer.ascore_alone(query, texts), p, in_slot=True)
            return _select(p.component, docs, scores)
        component = p.component
        if "vectors" in args:
            component = await _with_vectors(component, args["vectors"])
        async with run.slot(p, entry):
            entry.running()
            if run.call.sync:
                return list(await in_thread(lambda: component.compress_documents(docs, query)))
            return list(await component.acompress_documents(docs, query))

    entry = run.work(p, Arguments((docs, query, settings(p.component))), start, in_slot=False)
    if entry.reports is None:
        entry.reports = RunRecorder(p.component)
    return Work(entry, documents)


def _select(compressor: Any, docs: list[Document], scores: list[float]) -> list[Document]:
    if hasattr(compressor, "select"):
        return list(compressor.select(docs, scores))
    ready = compressor.model_copy()
    ready.__dict__["model"] = _Scored(scores)
    return list(ready.compress_documents(docs, ""))


class _Scored:
    """Replaces a cross-encoder whose scores are known, so that the reranker's own code selects."""

    def __init__(self, scores: list[float]) -> None:
        self._scores = scores

    def score(self, pairs: Sequence[Any]) -> list[float]:
        return self._scores


async def _with_vectors(compressor: Any, vectors: DocumentVectors) -> Any:
    """Returns the compressor with its vectors ready; if making them failed, it meets the exception there."""
    ready = compressor.model_copy()
    try:
        ready.__dict__["embeddings"] = Ready(compressor.embeddings, await vectors.get())
    except Exception as error:
        failure = error.error if isinstance(error, CarriedExit) else error
        ready.__dict__["embeddings"] = Ready(compressor.embeddings, {}, failure)
    return ready


def aggregate(p: Primitive, args: Args, run: Execution) -> Any:
    """Combines the documents of several searches as their retriever does."""
    current(run)
    if p.params["how"] == "unique":
        lists = [*args["lists"], *([args["original"]] if "original" in args else [])]
        return p.component.unique_union([doc for docs in lists for doc in docs])
    found = list(args.values())
    if not all(type(docs) is list and all(isinstance(doc, Document) for doc in docs) for docs in found):
        raise LeftToStock("one of its retrievers did not return a list of documents")
    try:
        return COMBINED[p.params["how"]](p.component, found)
    except Exception as error:
        raise LeftToStock(f"stock will fail at this, too ({type(error).__name__}: {error})") from error
