"""Tasks of a function begin when it is suspended: what they ask for may come after what the function changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeRetriever


def echo(messages: list[Any]) -> str:
    return f"re {messages[-1].content}"


def chain(**settings: Any) -> Any:
    return ChatPromptTemplate.from_template("{question}") | FakeChat(answers=echo, **settings) | StrOutputParser()


class Pages:
    @fineflow.effects(reads="pages")
    async def at_once(self, name: str) -> str:
        return f"page {name}"


async def passed(name: str) -> str:
    return name


pages = Pages()
cached = chain(cache=InMemoryCache())
quick = RunnableLambda(passed)

AWAITED: dict[str, Callable[[str], Awaitable[Any]]] = {
    "a coroutine that awaits nothing": passed,
    "a declared function that awaits nothing": pages.at_once,
    "a runnable that awaits nothing": lambda text: quick.ainvoke(text),
    "a model with a cache": lambda text: cached.ainvoke({"question": text}),
    "a model": lambda text: chain().ainvoke({"question": text}),
    "sleep": lambda text: asyncio.sleep(0),
    "another task": lambda text: asyncio.ensure_future(passed(text)),
    "gather": lambda text: asyncio.gather(passed(text), passed(text)),
}


@pytest.mark.parametrize("name", AWAITED)
def test_a_search_in_a_task_finds_what_the_function_has_added_before_the_task_began(name: str) -> None:
    waited = AWAITED[name]
    first = chain()

    def made() -> Callable[[str], Any]:
        store = InMemoryVectorStore(FakeEmbeddings(dimensions=4))
        store.add_texts(["tower", "mill"])

        async def searches(question: str) -> list[Document]:
            return await store.asimilarity_search(question, k=9)

        async def program(question: str) -> Any:
            asked = await first.ainvoke({"question": question})
            later = asyncio.create_task(searches(question))
            said = await waited(question)
            store.add_texts(["later"])
            return asked, said, sorted(each.page_content for each in await later)

        return program

    asyncio.run(made()("warm"))  # fills the cache
    for _ in range(3):
        assert asyncio.run(fineflow.optimize(made(), strict=True)("warm")) == asyncio.run(made()("warm"))


def test_searches_in_tasks_start_early_where_nothing_is_changed() -> None:
    answers = chain(latency=1.0)
    retriever = FakeRetriever(documents=[Document("x")], latency=1.0)

    async def searches(question: str) -> int:
        return len(await retriever.ainvoke(question)) + len(await retriever.ainvoke(f"not {question}"))

    async def program(question: str) -> Any:
        later = asyncio.create_task(searches(question))
        said = await answers.ainvoke({"question": question})
        return said, await later

    fast = fineflow.optimize(program, strict=True)
    stock, mine = virtual.run(program("a")), virtual.run(fast("a"))
    assert mine.value == stock.value
    assert (stock.seconds, round(mine.seconds, 2)) == (2.0, 1.0)
