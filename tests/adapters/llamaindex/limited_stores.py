"""Stores of LlamaIndex with a limit, and calls that wait for its permits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from index_shapes import answer, index
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from test_index_stores import chroma, no_chroma, simple
from test_index_stores import index as index_over

from fineflow.adapters.llamaindex.resources import standing
from fineflow.runtime.queues.component_calls import ComponentPermits
from fineflow.runtime.queues.permits import Permit
from fineflow.testing.gates import wait_until
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.fakes import FakeLLM, FakeStore


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    before = left()
    yield
    assert not settled(before=before)


def places_of(obj: Any) -> ComponentPermits:
    permits = standing(obj).permits
    assert permits is not None
    return permits


def wait_waiting(permits: ComponentPermits, count: int) -> None:
    wait_until(lambda: permits.waiting == count, 30)


@contextmanager
def held(obj: Any) -> Iterator[ComponentPermits]:
    """All permits of a component with one are taken meanwhile."""
    permits = places_of(obj)
    hold = Permit(permits)
    hold.acquire_sync()
    try:
        yield permits
    finally:
        hold.release()


def entered(obj: Any, entry: str, *args: Any) -> Any:
    found = getattr(obj, entry)
    return asyncio.run(found(*args)) if entry.startswith("a") else found(*args)


def called(obj: Any, entry: str, *args: Any) -> Future[Any]:
    """What the method returns, called in a thread; async methods on a loop of its own."""
    found: Future[Any] = Future()

    def call() -> None:
        try:
            found.set_result(entered(obj, entry, *args))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return found


def shown(found: Any) -> Any:
    """What two calls returned, to be compared."""
    if isinstance(found, list):
        return [(each.node_id, each.score) for each in found]
    return str(found), shown(found.source_nodes)


class Plain(BaseRetriever):
    """A retriever that searches somewhere else."""

    def __init__(self, find: Callable[[str], list[NodeWithScore]]) -> None:
        self.find = find
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.find(query_bundle.query_str)


def model(default: str = "yes") -> FakeLLM:
    return FakeLLM(answers=answer) if default == "yes" else FakeLLM(default=default)


STORES = [
    pytest.param(FakeStore, id="alone"),
    pytest.param(simple, id="together"),
    pytest.param(chroma, id="chroma", marks=no_chroma),
]


def over(store: Any) -> VectorStoreIndex:
    return index(store=store) if isinstance(store, FakeStore) else index_over(store)
