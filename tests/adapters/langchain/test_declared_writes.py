"""What is declared to write, in whatever form: what reads the same beside it finds what stock finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeRetriever

Add = Callable[[str], Any]


def chain(seconds: float) -> Any:
    return ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=seconds) | StrOutputParser()


def beside(reads: Callable[[str], Awaitable[Any]], add: Add) -> Any:
    """The read is behind half a second, the write behind a tenth."""
    slow, quick = chain(0.5), chain(0.1)

    async def later(question: str) -> Any:
        await slow.ainvoke({"question": question})
        return await reads(question)

    async def changes(question: str) -> str:
        await quick.ainvoke({"question": question})
        if asyncio.iscoroutine(made := add("later")):
            await made
        return question

    return RunnableParallel(found=RunnableLambda(later), said=RunnableLambda(changes))


def same(make: Callable[[], Any]) -> None:
    stock = virtual.run(make().ainvoke("tower")).value
    assert "later" in str(stock["found"])
    for _ in range(2):
        assert virtual.run(fineflow.optimize(make(), strict=True).ainvoke("tower")).value == stock


writes = fineflow.effects(writes="rows")


class Rows:
    def __init__(self, rows: list[str]) -> None:
        self.rows = rows

    def add(self, text: str) -> None:
        self.rows.append(text)

    def __call__(self, text: str) -> None:
        self.rows.append(text)

    @staticmethod
    @writes
    def add_to(rows: list[str], text: str) -> None:
        rows.append(text)

    @classmethod
    @writes
    def append_to(cls, rows: list[str], text: str) -> None:
        rows.append(text)


def generator(rows: list[str]) -> Add:
    @writes
    def adds(text: str) -> Iterator[str]:
        yield text
        rows.append(text)

    return lambda text: list(adds(text))


def async_generator(rows: list[str]) -> Add:
    @writes
    async def adds(text: str) -> AsyncIterator[str]:
        rows.append(text)
        yield text

    async def all_of(text: str) -> list[str]:
        return [each async for each in adds(text)]

    return all_of


def in_two_steps(rows: list[str]) -> Add:
    """It has begun, and added something, when the read could begin."""

    @writes
    async def adds(text: str) -> None:
        rows.append("first")
        await asyncio.sleep(0.3)
        rows.append(text)
        await asyncio.sleep(1.0)

    return adds


FORMS: dict[str, Callable[[list[str]], Add]] = {
    "generator": generator,
    "async generator": async_generator,
    "in two steps": in_two_steps,
    "bound method": lambda rows: writes(Rows(rows).add),
    "callable object": lambda rows: writes(Rows(rows)),
    "partial": lambda rows: writes(partial(list.append, rows)),
    "cached": lambda rows: writes(lru_cache(Rows(rows).add)),
    "static method": lambda rows: partial(Rows.add_to, rows),
    "class method": lambda rows: partial(Rows.append_to, rows),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_declared_read_finds_what_is_written_in_any_form(form: str) -> None:
    def make() -> Any:
        rows, first = ["tower"], chain(0.15)

        @fineflow.effects(reads="rows")
        async def search(_: str) -> list[str]:
            await asyncio.sleep(0.01)
            return list(rows)

        async def reads(question: str) -> list[str]:
            return await search(question)

        async def behind_an_answer(question: str) -> list[str]:
            return await search(await first.ainvoke({"question": question}))

        return beside(behind_an_answer if form == "in two steps" else reads, FORMS[form](rows))

    same(make)


class World:
    """A store, and a retriever that keeps its documents in a list."""

    def __init__(self) -> None:
        self.store = InMemoryVectorStore(FakeEmbeddings(dimensions=4, latency=0.005))
        self.store.add_texts(["tower"])
        self.retriever = self.store.as_retriever(search_kwargs={"k": 9})
        self.listed = FakeRetriever(documents=[Document("tower")], k=9, latency=0.005)
        self.other = InMemoryVectorStore(self.store.embedding)
        self.other.store = self.store.store

    def insert(self, text: str) -> None:
        """Adds a text to both without a method of theirs."""
        self.store.store[text] = {"id": text, "vector": [1.0, 0.0, 0.0, 0.0], "text": text, "metadata": {}}
        self.listed.documents.append(Document(text))


RESOURCES: dict[str, tuple[Callable[[World], Any], Callable[[World], Any]]] = {
    "store": (lambda world: world.store, lambda world: world.retriever),
    "retriever": (lambda world: world.retriever, lambda world: world.store.as_retriever(search_kwargs={"k": 9})),
    "dict": (lambda world: [world.store.store], lambda world: world.retriever),
    "other store over it": (lambda world: world.other, lambda world: world.retriever),
    "what holds it": (lambda world: world, lambda world: world.retriever),
    "list": (lambda world: [world.listed.documents], lambda world: world.listed),
    "retriever without a store": (lambda world: world.listed, lambda world: world.listed),
}


@pytest.mark.parametrize("name", RESOURCES)
def test_a_search_finds_what_is_declared_to_be_written_to_what_it_holds(name: str) -> None:
    resource, searched = RESOURCES[name]

    def make() -> Any:
        world = World()
        retriever = searched(world)

        async def reads(question: str) -> list[str]:
            return sorted(each.page_content for each in await retriever.ainvoke(question))

        return beside(reads, fineflow.effects(writes=resource(world))(world.insert))

    def as_a_function() -> Any:
        world = World()
        retriever = searched(world)

        async def reads(question: str) -> list[str]:
            return sorted(each.page_content for each in await retriever.ainvoke(question))

        def add(text: str) -> None:
            world.insert(text)

        return beside(reads, fineflow.effects(writes=resource(world))(add))

    same(make)
    same(as_a_function)


def test_a_resource_that_refuses_to_be_looked_at_keeps_no_function_from_running() -> None:
    class Closed:
        __slots__ = ()

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("closed")

    written: list[str] = []

    @fineflow.effects(writes=Closed())
    def add(text: str) -> None:
        written.append(text)

    async def program(question: str) -> Any:
        add(question)
        return await chain(0.1).ainvoke({"question": question}), await chain(0.1).ainvoke({"question": "other"})

    virtual.run(fineflow.optimize(program, strict=True)("tower"))
    assert written == ["tower"]
