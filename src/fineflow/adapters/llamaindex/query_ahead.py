"""Calls of whole components ahead of stock with a query object, in which a sync search stores its vector.

Those that stock makes later with the same object search by that vector. So they wait until there is one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any

from llama_index.core.schema import QueryBundle

from fineflow.adapters.inner_calls.calls_ahead import Finished
from fineflow.adapters.llamaindex.recorded_calls import RecordedAhead
from fineflow.runtime.call.claims import equal
from fineflow.runtime.loop.submission import Submission
from fineflow.runtime.queues.in_vain import AheadRequest


def query_in(args: Sequence[Any], named: Mapping[str, Any]) -> QueryBundle | None:
    """Returns the query object among the arguments of a call."""
    return next((each for each in (*args, *named.values()) if type(each) is QueryBundle), None)


class QueryAhead(RecordedAhead):
    """A call with a query object, of which it gets a copy.

    before: calls that stock makes earlier with the same query. If one of them stores a vector, this one searches by it.
    embeds: the call may embed the query itself.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        args: Sequence[Any],
        named: Mapping[str, Any],
        limit: asyncio.Semaphore | None,
        query: Any,
        before: Sequence[QueryAhead],
        embeds: bool,
    ) -> None:
        self._query, self._given = copy.copy(query), copy.copy(query)
        self._before, self._embeds = tuple(before), embeds
        self._vector: Future[None] = Future()  # set when there is a vector, or there will be none
        self._of_stock = query
        args = [self._given if each is query else each for each in args]
        named = {name: self._given if each is query else each for name, each in named.items()}
        super().__init__(method, args, named, limit, self._reported if embeds else None)

    def _reported(self) -> None:
        if self._given.embedding is not None:
            self._settle()

    def _settle(self) -> None:
        with suppress(InvalidStateError):  # another thread was faster
            self._vector.set_result(None)

    def start(self, loop: asyncio.AbstractEventLoop, context: Context, finished: Finished) -> bool:
        def ended(value: Any) -> None:
            self._settle()
            finished(value)

        return super().start(loop, context, ended)

    async def ready(self) -> None:
        for each in self._before:
            await asyncio.shield(asyncio.wrap_future(each._vector))
        self._given.embedding = self._expected()

    def _expected(self) -> Any:
        found = (each._given.embedding for each in self._before)
        return next((vector for vector in found if vector is not None), self._query.embedding)

    def fits(self, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
        return self.meets(query_in(args, named))

    def meets(self, query: Any) -> bool:
        """Returns True if stock calls with the same query, which has the vector that this call has searched by."""
        self._of_stock = query
        return not self._embeds or equal(query.embedding, self._expected())

    def same(self, query: Any) -> bool:
        """``meets`` for a query whose texts may have changed. By what does not embed, its vector may be looked at."""
        now = copy.copy(query)
        if self._embeds:
            now.embedding = self._query.embedding
        return equal(now, self._query) and self.meets(query)

    @contextmanager
    def _taking(self) -> Iterator[tuple[Submission[Any], AheadRequest]]:
        try:
            with super()._taking() as taken:
                yield taken
        finally:
            if self._of_stock.embedding is None:
                self._of_stock.embedding = self._given.embedding
