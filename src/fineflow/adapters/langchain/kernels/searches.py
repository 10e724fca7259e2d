"""Runs searches ahead of stock; equal searches of one store share a result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.core.batched_search import Outcome
from fineflow.adapters.core.resources import StoreEngine
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current, documents, is_text
from fineflow.adapters.langchain.kernels.vectors import QueryVector, Tables
from fineflow.adapters.langchain.resources import engine_of
from fineflow.adapters.langchain.run_recorder import Recorder
from fineflow.adapters.langchain.stores.batched_search import Search
from fineflow.adapters.langchain.stores.facts import (
    again,
    awaits_embeddings,
    has_vector,
    own_function,
    query_embeddings,
    same_if,
    unready,
    with_vector,
)
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.claims import Entry, Side
from fineflow.runtime.call.executor import Execution, Work
from fineflow.runtime.loop.workers import in_thread


def search(p: Primitive, args: Args, run: Execution) -> Work:
    current(run)
    query = args["query"]
    vector: QueryVector | None = args.get("vector")
    if not is_text(query):
        raise LeftToStock("the query is not a text")
    if p.meta.get("by_method"):
        return _search_by_method(p, query, run)
    if not p.meta.get("assumed") and (why := own_function(p.component)):
        raise LeftToStock(why)
    if why := unready(p.component.vectorstore, sync=run.call.sync):
        raise LeftToStock(why)
    twins, twin = _twins(p, query, run)
    engine = engine_of(p.component.vectorstore)

    async def start(entry: Entry) -> Any:
        if twin is not None and (copies := await twin.copies()) is not None:
            return copies
        recorder: Recorder = entry.reports
        recorder.silence()
        retriever = p.component
        if vector is not None:
            retriever = with_vector(retriever, query, vector.embeddings, await vector.outcome())
        if engine is not None and engine.waits:
            async with run.slot(p, entry, limited=False):  # the queue takes the permit
                if vector is None:
                    entry.running()
                    retriever = await _embedded(retriever, query, run)
                outcome = await _together(retriever, query, engine, recorder)
            if outcome is not None:
                entry.running()
                return outcome.result()
        async with run.slot(p, entry):
            entry.running()
            return await _found(retriever, query, recorder, run)

    searched = Found(p.component, run) if twins is not None and twin is None else None
    entry = run.work(
        # With a queue in front of the store, the queue measures it; a twin's duration says nothing about a search.
        p if twin is None and engine is None else p.with_(meta={**p.meta, "foreign": False}),
        Arguments((query, None)),
        start if searched is None else searched.by(start),
        in_slot=False,
    )
    if entry.reports is None:
        entry.reports = Recorder(p.component)
    if twins is not None and searched is not None and entry.worker is Side.GRAPH:  # otherwise stock began first
        twins[searched.key, query] = searched
    return Work(entry, documents)


def _search_by_method(p: Primitive, query: str, run: Execution) -> Work:
    """Runs a retriever's own search method."""

    async def start(entry: Entry) -> Any:
        entry.reports.silence()
        entry.running()  # from here on a failure is the retriever's own
        return await _found(p.component, query, entry.reports, run)

    entry = run.work(p, Arguments((query, None)), start)
    if entry.reports is None:
        entry.reports = Recorder(p.component)
    return Work(entry, documents)


async def _found(retriever: Any, query: str, recorder: Recorder, run: Execution) -> Any:
    manager = recorder.retriever(sync=run.call.sync)
    if run.call.sync:
        return await in_thread(lambda: retriever._get_relevant_documents(query, run_manager=manager))
    return await retriever._aget_relevant_documents(query, run_manager=manager)


async def _embedded(retriever: Any, query: str, run: Execution) -> Any:
    """Returns the retriever with the query's vector, made as its store would; unchanged if the store makes none."""
    embeddings = query_embeddings(retriever.vectorstore)
    if embeddings is None:
        return retriever
    vector: Any
    try:
        if run.call.sync or not awaits_embeddings(retriever.vectorstore):
            vector = await in_thread(lambda: embeddings.embed_query(query))
        else:
            vector = await embeddings.aembed_query(query)
    except Exception as error:
        vector = error
    return with_vector(retriever, query, embeddings, vector)


async def _together(retriever: Any, query: str, engine: StoreEngine, recorder: Recorder) -> Outcome | None:
    """Runs the search in a batch with those of other queries; returns None if it cannot be batched."""
    if not has_vector(retriever, query):
        return None
    asked = Search(retriever, query, recorder.retriever(sync=True))
    with suppress(Exception):  # of the queue, not of a search: the search then runs alone
        found: list[Outcome] = await engine.queue.submit_async(Op.SEARCH, [asked])
        return found[0]
    return None


def _twins(p: Primitive, query: str, run: Execution) -> tuple[dict[Any, Found] | None, Found | None]:
    """Returns the shared results of equal searches, and the equal search already begun; both None if there are none."""
    if p.meta.get("same") is None or (key := same_if(p.component)) is None or run.call.bounded:
        return None, None
    twins = run.call.memory(Twins)[run, p.meta["same"]]
    return twins, twins.get((key, query))


class Twins(Tables):
    """Searches of one call whose results equal ones copy, by graph and marker."""


class Found:
    """Result of a search, kept for equal ones before any code can change a document in place."""

    def __init__(self, retriever: Any, run: Execution) -> None:
        self.key = same_if(retriever)
        self._again = again(retriever.vectorstore)
        self._docs: asyncio.Future[list[Document] | None] = run.call.loop.create_future()

    def by(self, start: Callable[[Entry], Awaitable[Any]]) -> Callable[[Entry], Awaitable[Any]]:
        """Returns ``start``, which searches, extended to keep its result."""

        async def searching(entry: Entry) -> Any:
            kept = None
            try:
                docs = await start(entry)
                with suppress(Exception):  # on failure the other searches run themselves
                    kept = [self._again(doc) for doc in docs]
                return docs
            finally:
                if not self._docs.done():
                    self._docs.set_result(kept)

        return searching

    async def copies(self) -> list[Document] | None:
        """Returns new documents; None if the search failed, so that the equal search runs itself."""
        docs = await asyncio.shield(self._docs)
        return None if docs is None else [self._again(doc) for doc in docs]
