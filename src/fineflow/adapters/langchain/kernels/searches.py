"""Runs searches ahead of stock."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fineflow.adapters.core.batched_search import Outcome
from fineflow.adapters.core.resources import StoreEngine
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current, documents, is_text
from fineflow.adapters.langchain.kernels.vectors import QueryVector
from fineflow.adapters.langchain.resources import engine_of
from fineflow.adapters.langchain.run_recorder import RunRecorder
from fineflow.adapters.langchain.stores.batched_search import RetrieverSearch
from fineflow.adapters.langchain.stores.facts import (
    awaits_embeddings,
    has_vector,
    own_function,
    query_embeddings,
    unready,
    with_vector,
)
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.work import Work
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
    engine = engine_of(p.component.vectorstore)

    async def start(entry: Entry) -> Any:
        recorder: RunRecorder = entry.reports
        recorder.silence()
        retriever = p.component
        if vector is not None:
            retriever = with_vector(retriever, query, vector.embeddings, await vector.outcome())
        if engine is not None and engine.waits:
            async with run.slot(p, entry, limited=False):  # the queue takes the permit
                if vector is None:
                    entry.running()
                    retriever = await _embedded(retriever, query, run)
                entry.looks()
                outcome = await _together(retriever, query, engine, recorder)
            if outcome is not None:
                entry.running()
                return outcome.result()
        async with run.slot(p, entry):
            entry.running()
            return await _found(retriever, query, recorder, run)

    # With a queue in front of the store, the queue measures it.
    measured = p if engine is None else p.with_(meta={**p.meta, "foreign": False})
    entry = run.work(measured, Arguments((query, None)), start, in_slot=False)
    if entry.reports is None:
        entry.reports = RunRecorder(p.component)
    return Work(entry, documents)


def _search_by_method(p: Primitive, query: str, run: Execution) -> Work:
    """Runs a retriever's own search method."""

    async def start(entry: Entry) -> Any:
        entry.reports.silence()
        entry.running()  # from here on a failure is the retriever's own
        return await _found(p.component, query, entry.reports, run)

    entry = run.work(p, Arguments((query, None)), start)
    if entry.reports is None:
        entry.reports = RunRecorder(p.component)
    return Work(entry, documents)


async def _found(retriever: Any, query: str, recorder: RunRecorder, run: Execution) -> Any:
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


async def _together(retriever: Any, query: str, engine: StoreEngine, recorder: RunRecorder) -> Outcome | None:
    """Runs the search in a batch with those of other queries; returns None if it cannot be batched."""
    if not has_vector(retriever, query):
        return None
    asked = RetrieverSearch(retriever, query, recorder.retriever(sync=True))
    with suppress(Exception):  # of the queue, not of a search: the search then runs alone
        found: list[Outcome] = await engine.queue.submit_async(Op.SEARCH, [asked])
        return found[0]
    return None
