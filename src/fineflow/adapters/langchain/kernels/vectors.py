"""Embeds queries and documents ahead of stock, each text once per call."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document

from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.kernels.common import Args, is_text, unbounded
from fineflow.adapters.langchain.lowering.retrieval.ingest import texts_of
from fineflow.adapters.langchain.models.local import LocalEmbeddings
from fineflow.cost_model.costs import costs
from fineflow.ir import Primitive
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import CarriedExit
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.workers import in_thread


def embed(p: Primitive, args: Args, run: Execution) -> Any:
    if p.params["of"] == "query":
        vector = QueryVector(p, args["texts"], run)
        if is_text(args["texts"]) and any(run.graph[n].after for n in run.graph.users.get(p.name, ())):
            vector.begin_early()  # the search waits for other steps, too: embed meanwhile
        return vector
    stage = p.params.get("stage")
    given = [args["texts"]] if stage == "one" else args["texts"]
    if stage:
        unbounded(run)
        return run.spawn(_vectors(p, texts_of(given), run), p)
    return _vectors_to_write(p, texts_of(given), run) if p.meta.get("claimed") else DocumentVectors(p, given, run)


class Direct:
    """Embeddings that are called by their own methods, of the kind that stock uses."""

    def __init__(self, component: Any, *, sync: bool) -> None:
        self.component = component
        self._sync = sync

    async def aembed_query(self, text: str) -> list[float]:
        """Returns the vector of a query. Raises what the component raises."""
        if self._sync:
            return await in_thread(lambda: self.component.embed_query(text))
        vector: list[float] = await self.component.aembed_query(text)
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Returns the vectors of documents. Raises what the component raises."""
        if self._sync:
            return await in_thread(lambda: self.component.embed_documents(texts))
        vectors: list[list[float]] = await self.component.aembed_documents(texts)
        return vectors


class Tables(defaultdict[Any, dict[Any, Any]]):
    """Results of one call so far, by the component that computes them and by argument."""

    def __init__(self) -> None:
        super().__init__(dict)


class QueryVectors(Tables):
    """Vectors of queries, by embeddings and text."""


class TextVectors(Tables):
    """Vectors of documents, by embeddings and text."""


class QueryVector:
    """Handle of a query's vector, which the first search that needs it embeds: once per text and call.

    Not the vector itself: so the search is already running when stock gets to it, and stock does not embed again.
    """

    def __init__(self, p: Primitive, text: Any, run: Execution) -> None:
        self._p, self._text, self._run = p, text, run

    @property
    def embeddings(self) -> Any:
        """The embeddings of the store that is searched."""
        encoder = self._p.component
        return encoder.component if isinstance(encoder, (LocalEmbeddings, Direct)) else encoder

    def _table(self) -> dict[Any, Any]:
        return self._run.call.memory(QueryVectors)[id(self.embeddings)]

    def begin(self) -> asyncio.Future[list[float]]:
        """Starts embedding the query unless that has started already."""
        table = self._table()
        if self._text not in table:
            table[self._text] = self._run.spawn(self._p.component.aembed_query(self._text), self._p, in_slot=True)
        vector: asyncio.Future[list[float]] = table[self._text]
        return vector

    def begin_early(self) -> None:
        """Starts embedding before any search needs it, unless few requests may be in vain."""
        if not self._run.call.bounded:
            self.begin()

    async def outcome(self) -> list[float] | BaseException:
        """Returns the vector, or to one of the waiting searches the component's exception; the others embed again."""
        table = self._table()
        while True:
            embedding = self.begin()
            try:
                return await asyncio.shield(embedding)
            except Exception as error:
                if table.get(self._text) is embedding:
                    del table[self._text]
                    return error.error if isinstance(error, CarriedExit) else error


class DocumentVectors:
    """Handle of documents' vectors by text, made on first use; a text is embedded once per call.

    Not the vectors themselves, for the same reason as with ``QueryVector``.
    """

    def __init__(self, p: Primitive, docs: Sequence[Document], run: Execution) -> None:
        self._p, self._docs, self._run = p, docs, run

    async def get(self) -> dict[str, list[float]]:
        """Returns the vectors. Raises what the component raises."""
        return await _vectors(self._p, [doc.page_content for doc in self._docs], self._run)


async def _vectors(p: Primitive, texts: Sequence[str], run: Execution) -> dict[str, list[float]]:
    """Returns the vectors of documents by text; a text is embedded once per call."""
    table = run.call.memory(TextVectors)[id(p.component)]
    vectors: dict[str, list[float]] = await once_each(table, texts, p.component.aembed_documents, p, run)
    return vectors


def _vectors_to_write(p: Primitive, texts: list[str], run: Execution) -> Work:
    """Makes vectors for a store's own writing method, which claims them in the order of the texts."""
    costs.observe_size(p.engine or "", p.op, p.name, len(texts))  # of its stages, the queue knows only their own

    async def start(entry: Entry) -> Any:
        entry.running()
        if p.params["of"] == "call":
            return await run.spawn(p.component.aembed_documents(texts), p, in_slot=True)
        found = await _vectors(p, texts, run)
        return [found[text] for text in texts]

    return Work(run.work(p, Arguments(texts), start, in_slot=False), list)


async def once_each(table: dict[Any, Any], keys: Sequence[Any], compute: Any, p: Primitive, run: Execution) -> Any:
    """Returns values by key; computes those that are new in this query, in stages.

    Each stage takes a slot of its own, so the caller must hold none.
    """
    fresh = [key for key in dict.fromkeys(keys) if key not in table]
    size = p.params.get("stages") or len(fresh) or 1
    for start in range(0, len(fresh), size):
        stage = fresh[start : start + size]
        together = run.spawn(compute(stage), p, in_slot=True)
        for i, key in enumerate(stage):
            table[key] = (together, i)
    found = {}
    for key in dict.fromkeys(keys):
        together, i = table[key]
        found[key] = (await asyncio.shield(together))[i]
    return found
