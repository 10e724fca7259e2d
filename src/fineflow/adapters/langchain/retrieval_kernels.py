"""How retrieval runs ahead of stock: vectors, searches, reranking, and the union of several searches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.langchain.ahead import Args, LeftToStock, current, is_text
from fineflow.adapters.langchain.arguments import Arguments, settings
from fineflow.adapters.langchain.compressors import scorer_of
from fineflow.adapters.langchain.ingest import texts_of
from fineflow.adapters.langchain.recorder import Recorder
from fineflow.adapters.langchain.retriever_lists import COMBINED
from fineflow.adapters.langchain.stores import Ready, again, own_function, same_if, with_vector
from fineflow.ir import Primitive
from fineflow.runtime import events
from fineflow.runtime.claims import Entry
from fineflow.runtime.costs import costs
from fineflow.runtime.executor import Execution, Work
from fineflow.runtime.threads import in_thread


def embed(p: Primitive, args: Args, run: Execution) -> Any:
    if p.params["of"] == "query":
        vector = QueryVector(p, args["texts"], run)
        if is_text(args["texts"]) and any(run.graph[n].after for n in run.graph.users.get(p.name, ())):
            vector.begin()  # the search has something else to wait for, so that it will not be there before stock
        return vector
    if p.meta.get("claimed"):
        return _vectors_to_write(p, texts_of(args["texts"]), run)
    return _embed_documents(p, args["texts"], run)


class QueryVector:
    """The vector of a query, which the first search that needs it has embedded: once per text and call.

    Not the vector itself, so that the search is known to be under way when stock gets to it, and nobody embeds again.
    """

    def __init__(self, p: Primitive, text: Any, run: Execution) -> None:
        self._p, self._text, self._run = p, text, run

    @property
    def embeddings(self) -> Any:
        return self._p.component

    def begin(self) -> asyncio.Future[list[float]]:
        """Has the query embedded, if nobody has so far."""
        table = self._run.call.tables.setdefault(("query vectors", id(self.embeddings)), {})
        if self._text not in table:
            table[self._text] = self._run.spawn(self.embeddings.aembed_query(self._text), self._p)
        vector: asyncio.Future[list[float]] = table[self._text]
        return vector

    async def get(self) -> list[float]:
        """The vector. Raises LeftToStock if it cannot be had: stock will meet the reason."""
        try:
            vector = await asyncio.shield(self.begin())
        except Exception as error:
            raise LeftToStock(f"the query could not be embedded ({type(error).__name__}: {error})") from error
        return vector


async def _embed_documents(p: Primitive, docs: Sequence[Document], run: Execution) -> dict[str, list[float]]:
    """Vectors of documents by text; texts met before in this query are not embedded again."""
    table = run.call.tables.setdefault(("vectors", id(p.component)), {})
    vectors: dict[str, list[float]] = await _once_each(
        table, [doc.page_content for doc in docs], p.component.aembed_documents, p, run
    )
    return vectors


def _vectors_to_write(p: Primitive, texts: list[str], run: Execution) -> Work:
    """Vectors for a store's own writing method, which claims them in the order of the texts."""

    async def start(entry: Entry) -> Any:
        entry.begun = True
        table: dict[Any, Any] = {}
        found = await _once_each(table, texts, p.component.aembed_documents, p, run)
        return [found[text] for text in texts]

    return Work(run.work(p, Arguments(texts), start), list)


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
    vector: QueryVector | None = args.get("vector")
    if not is_text(query):
        raise LeftToStock("the query is not a text")
    if not p.meta.get("assumed") and (why := own_function(p.component)):
        raise LeftToStock(why)
    twins, twin = _twins(p, query, run)

    async def start(entry: Entry) -> Any:
        if twin is not None and (copies := await twin.copies()) is not None:
            return copies
        recorder: Recorder = entry.replay
        recorder.silence()
        retriever = p.component
        if vector is not None:
            retriever = with_vector(retriever, query, vector.embeddings, await vector.get())
        manager = recorder.retriever(sync=run.call.sync)
        entry.begun = True
        if run.call.sync:
            return await in_thread(lambda: retriever._get_relevant_documents(query, run_manager=manager))
        return await retriever._aget_relevant_documents(query, run_manager=manager)

    searched = Found(p.component, run) if twins is not None and twin is None else None
    entry = run.work(
        p if twin is None else p.with_(meta={**p.meta, "foreign": False}),  # says nothing about what a search takes
        Arguments((query, {})),
        start if searched is None else searched.by(start),
    )
    if entry.replay is None:
        entry.replay = Recorder(p.component)
    if twins is not None and searched is not None and entry.task is not None:  # else stock has begun it already
        twins[searched.key, query] = searched
    return Work(entry, list)


def _twins(p: Primitive, query: str, run: Execution) -> tuple[dict[Any, Found] | None, Found | None]:
    """What equal searches share, and the one among them that has been begun; both None where there are no others."""
    if p.meta.get("same") is None or (key := same_if(p.component)) is None:
        return None, None
    twins: dict[Any, Found] = run.call.tables.setdefault((run, "same", p.meta["same"]), {})
    return twins, twins.get((key, query))


class Found:
    """What a search finds, as an equal search would find it: kept before anybody can change a document in place."""

    def __init__(self, retriever: Any, run: Execution) -> None:
        self.key = same_if(retriever)
        self._again = again(retriever.vectorstore)
        self._docs: asyncio.Future[list[Document] | None] = run.call.loop.create_future()

    def by(self, start: Callable[[Entry], Awaitable[Any]]) -> Callable[[Entry], Awaitable[Any]]:
        """``start``, which searches, with its result kept."""

        async def searching(entry: Entry) -> Any:
            kept = None
            try:
                docs = await start(entry)
                with suppress(Exception):  # then the other searches, too
                    kept = [self._again(doc) for doc in docs]
                return docs
            finally:
                if not self._docs.done():
                    self._docs.set_result(kept)

        return searching

    async def copies(self) -> list[Document] | None:
        """New documents; None if the search failed: then the other has to make its own."""
        docs = await asyncio.shield(self._docs)
        return None if docs is None else [self._again(doc) for doc in docs]


def score(p: Primitive, args: Args, run: Execution) -> Awaitable[Any]:
    """Scores documents as they arrive; the RERANK that selects finds them in the query's table."""
    return _scores(p, args["query"], args["documents"], run)


async def _scores(p: Primitive, query: str, docs: Sequence[Document], run: Execution) -> list[float]:
    scorer = scorer_of(p.component)
    table = run.call.tables.setdefault(("scores", id(scorer), query), {})

    async def compute(texts: list[str]) -> list[float]:
        Recorder(p.component).silence()
        begun = events.now()
        if run.call.sync and getattr(scorer, "engine", None) is None:
            scores: list[float] = await in_thread(lambda: scorer.score(query, texts))
        else:
            scores = await scorer.ascore(query, texts)
        if p.engine and p.meta.get("foreign"):  # a queue in front of the engine measures it else
            costs.observe(p.engine, p.op, len(texts), events.now() - begun)
            costs.observe_size(p.engine, p.op, p.name, len(texts))
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
    """The documents of several searches, as the retriever that asked for them puts them together."""
    current(run)
    if p.params["how"] == "unique":
        lists = [*args["lists"], *([args["original"]] if "original" in args else [])]
        return p.component.unique_union([doc for docs in lists for doc in docs])
    found = list(args.values())
    if not all(type(docs) is list and all(isinstance(doc, Document) for doc in docs) for docs in found):
        raise LeftToStock("what one of its retrievers found is not a list of documents")
    try:
        return COMBINED[p.params["how"]](p.component, found)
    except Exception as error:
        raise LeftToStock(f"stock will fail at this ({type(error).__name__}: {error})") from error
