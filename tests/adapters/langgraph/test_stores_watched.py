"""Which stores a component searches, and what is a write to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from langchain_classic.retrievers.multi_vector import MultiVectorRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.adapters.inner_calls.watched_stores import keys
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeEmbeddings


class Shelf:
    """A store of the user's."""

    def __init__(self) -> None:
        self.titles = ["tower"]
        self.searches = 0

    def search(self, query: str) -> list[str]:
        self.searches += 1
        return list(self.titles)

    def add(self, title: str) -> None:
        self.titles.append(title)

    def addTitle(self, title: str) -> None:
        self.titles.append(title)

    def _put(self, title: str) -> None:
        self.titles.append(title)

    put = _put


class Service:
    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def search(self, query: str) -> list[str]:
        return self.shelf.search(query)


class Slots:
    __slots__ = ("shelf",)

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def search(self, query: str) -> list[str]:
        return self.shelf.search(query)


def searched(shelf: Shelf, query: str) -> list[str]:
    return shelf.search(query)


@fineflow.external
class Titles(BaseRetriever):
    found_by: Any
    cache: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(0.1)
        finds = self.found_by["finds"] if isinstance(self.found_by, dict) else self.found_by
        finds = finds[-1] if isinstance(finds, list) else finds
        found = finds.search(query) if hasattr(finds, "search") else finds(query)
        if self.cache is not None:
            self.cache.add(query)
        return [Document(title) for title in found]


HELD: dict[str, Callable[[Shelf], Any]] = {
    "itself": lambda shelf: shelf,
    "by an object": Service,
    "by an object with slots": Slots,
    "in a dict": lambda shelf: {"name": "titles", "finds": shelf},
    "in a list": lambda shelf: ["titles", shelf],
    "by a bound method": lambda shelf: shelf.search,
    "by a partial": lambda shelf: partial(searched, shelf),
}


def beside(retriever: Any, changes: Callable[[], Any]) -> Any:
    """The search is behind half a second, the change behind a tenth."""

    @fineflow.effects(reads="the clock")
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "late"

    async def reads(question: str) -> list[str]:
        await slow(0.5)
        return sorted(each.page_content for each in await retriever.ainvoke(question))

    async def writes(question: str) -> str:
        await asyncio.sleep(0.2)
        changes()
        return question

    return RunnableParallel(found=RunnableLambda(reads), said=RunnableLambda(writes))


def both(make: Callable[[], tuple[Any, Callable[[], Any]]]) -> tuple[virtual.Ran[Any], virtual.Ran[Any]]:
    stock = virtual.run(beside(*make()).ainvoke("x"))
    return stock, virtual.run(fineflow.optimize(beside(*make()), strict=True).ainvoke("x"))


@pytest.mark.parametrize("name", ["add", "addTitle", "put"])
@pytest.mark.parametrize("held", HELD)
def test_a_store_is_found_wherever_a_component_holds_it(held: str, name: str) -> None:
    def make() -> tuple[Any, Callable[[], Any]]:
        shelf = Shelf()
        return Titles(found_by=HELD[held](shelf)), lambda: getattr(shelf, name)("later")

    stock, mine = both(make)
    assert mine.value == stock.value == {"found": ["later", "tower"], "said": "x"}


@pytest.mark.parametrize("held", HELD)
def test_what_a_search_itself_writes_is_no_write(held: str) -> None:
    shelves: list[Shelf] = []

    def make() -> tuple[Any, Callable[[], Any]]:
        shelves.append(Shelf())
        return Titles(found_by=HELD[held](Shelf()), cache=shelves[-1]), lambda: None

    stock, mine = both(make)
    assert mine.value == stock.value
    assert mine.seconds < stock.seconds
    assert [len(shelf.titles) for shelf in shelves] == [2, 2]


def test_a_store_among_many_documents_is_found() -> None:
    def make() -> tuple[Any, Callable[[], Any]]:
        vectors = InMemoryVectorStore(FakeEmbeddings(dimensions=4, latency=0.005))
        parents: InMemoryStore = InMemoryStore()
        parents.mset([(str(number), Document(f"parent {number}")) for number in range(3000)])
        vectors.add_documents([Document("tower", metadata={"doc_id": "0"})])
        retriever = MultiVectorRetriever(vectorstore=vectors, docstore=parents, id_key="doc_id")
        return retriever, lambda: vectors.add_documents([Document("mill", metadata={"doc_id": "1"})])

    stock, mine = both(make)
    assert mine.value == stock.value == {"found": ["parent 0", "parent 1"], "said": "x"}


class Closed(type):
    """A class whose attributes nobody may set."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise TypeError(f"{name} is read-only")


class Archive(Shelf, metaclass=Closed):
    def add(self, title: str) -> None:
        super().add(title)


class Raises:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise RuntimeError("only by an object")


class Managed(Shelf):
    update_all = Raises()


class Library(Shelf):
    """Holds more objects than anybody looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.shelves = [Shelf() for _ in range(3000)]


@pytest.mark.parametrize(("kind", "searches"), [(Archive, 1), (Library, 1), (Managed, 2)])
def test_only_stock_searches_what_cannot_be_watched(kind: type[Shelf], searches: int) -> None:
    """An attribute that raises is in nobody's way: this store is watched, and searched again after the write."""

    shelves: list[Shelf] = []

    def make() -> tuple[Any, Callable[[], Any]]:
        shelves.append(shelf := kind())
        return Titles(found_by=shelf), lambda: shelf.add("later")

    stock, mine = both(make)
    assert mine.value == stock.value
    assert [shelf.searches for shelf in shelves] == [1, searches]


def test_stores_with_a_common_dict_of_settings_are_not_one() -> None:
    settings = {"lang": "en"}

    class Configured(InMemoryVectorStore):
        def __init__(self) -> None:
            super().__init__(FakeEmbeddings(dimensions=4, latency=0.005))
            self.settings = settings

    made: list[InMemoryVectorStore] = []

    def make() -> tuple[Any, Callable[[], Any]]:
        made.append(Configured())
        made[-1].add_texts(["tower"])
        return made[-1].as_retriever(), lambda: Configured().add_texts(["later"])

    stock, mine = both(make)
    assert mine.value == stock.value
    assert [store.embedding.meter.labels.count("x") for store in made] == [1, 1]  # type: ignore[attr-defined]


def test_a_component_that_gets_another_store_has_other_keys() -> None:
    first, second = InMemoryVectorStore(FakeEmbeddings()), InMemoryVectorStore(FakeEmbeddings())
    retriever: Any = first.as_retriever()
    before = keys(retriever)
    assert keys(retriever) == before and ("store", id(first)) in before
    retriever.vectorstore = second
    stores = [key for key in keys(retriever) if isinstance(key, tuple)]
    assert ("store", id(second)) in stores and ("store", id(first)) not in stores
