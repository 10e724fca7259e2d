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
    answers = chain(prefill=1.0)
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


class Side:
    """What runs beside each other: a search behind an answer, and something that adds a text."""

    def __init__(self, *, declared: bool) -> None:
        self.store = InMemoryVectorStore(FakeEmbeddings(dimensions=4, latency=0.005))
        self.store.add_texts(["tower"])
        self.first, self.model = chain(prefill=0.01), chain(prefill=0.01)

        def adds(text: str) -> None:
            self.store.add_texts([text])

        self.adds: Callable[[str], Any] = fineflow.effects(writes=self.store)(adds) if declared else adds

    async def searches(self, question: str) -> list[str]:
        await self.model.ainvoke({"question": question})
        return sorted(each.page_content for each in await self.store.asimilarity_search(question, k=9))

    async def changes(self, question: str) -> str:
        self.adds("later")
        return question

    async def gathered(self, question: str) -> Any:
        await self.first.ainvoke({"question": question})
        return await asyncio.gather(self.searches(question), self.changes(question))

    async def gathered_within(self, question: str) -> Any:
        await self.first.ainvoke({"question": question})
        inner = asyncio.gather(self.searches(question), self.model.ainvoke({"question": "other"}))
        return await asyncio.gather(inner, self.changes(question))

    async def as_tasks(self, question: str) -> Any:
        await self.first.ainvoke({"question": question})
        tasks = [asyncio.create_task(each(question)) for each in (self.searches, self.changes)]
        return [await each for each in tasks]

    async def in_a_group(self, question: str) -> Any:
        await self.first.ainvoke({"question": question})
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each(question)) for each in (self.searches, self.changes)]
        return [each.result() for each in tasks]

    async def while_it_searches(self, question: str) -> Any:
        await self.first.ainvoke({"question": question})
        task = asyncio.create_task(self.changes(question))
        found = sorted(each.page_content for each in await self.store.asimilarity_search(question, k=9))
        return found, await task

    async def joined_by_another(self, question: str) -> Any:
        both = asyncio.gather(self.searches(question), self.model.ainvoke({"question": "other"}))

        async def waits() -> Any:
            return await both

        return await asyncio.gather(waits(), self.changes(question))

    async def before_they_begin(self, question: str) -> Any:
        await self.first.ainvoke({"question": question})
        later = asyncio.gather(self.searches(question), self.searches("other"))
        self.adds("later")
        return await later

    async def while_it_waits(self, question: str) -> Any:
        await self.first.ainvoke({"question": question})
        later = asyncio.create_task(self.searches(question))
        await asyncio.sleep(0)
        await self.changes(question)
        return await later


SIDE_BY_SIDE = [
    *("gathered", "gathered_within", "as_tasks", "in_a_group"),
    *("while_it_searches", "joined_by_another", "while_it_waits", "before_they_begin"),
]


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_a_search_in_a_task_finds_what_is_added_beside_it(name: str, declared: bool) -> None:
    stock = asyncio.run(getattr(Side(declared=declared), name)("q"))
    assert "later" in str(stock)
    for _ in range(3):
        assert asyncio.run(fineflow.optimize(getattr(Side(declared=declared), name), strict=True)("q")) == stock


def test_coroutines_side_by_side_gain_that_change_what_no_component_holds() -> None:
    model, log = chain(prefill=1.0), list[str]()

    async def program(question: str) -> Any:
        found: list[str] = []
        count = 0

        async def asks(text: str) -> None:
            nonlocal count
            count += 1
            log.append(text)
            found.append(await model.ainvoke({"question": text}))
            found.append(await model.ainvoke({"question": f"not {text}"}))

        await asyncio.gather(*[asks(f"{question} {number}") for number in range(3)])
        return sorted(found), count

    stock, mine = virtual.run(program("a")), virtual.run(fineflow.optimize(program, strict=True)("a"))
    assert mine.value == stock.value
    assert sorted(log[:3]) == sorted(log[3:])
    assert (stock.seconds, round(mine.seconds, 2)) == (2.0, 1.0)


async def awaited_at_once(two: Callable[[str], Any], question: str) -> Any:
    return await asyncio.create_task(two(question))


async def awaited_in_a_loop(two: Callable[[str], Any], question: str) -> Any:
    return [await each for each in [asyncio.create_task(two(f"{question} {number}")) for number in range(3)]]


async def gathered_tasks(two: Callable[[str], Any], question: str) -> Any:
    return await asyncio.gather(*[asyncio.create_task(two(f"{question} {number}")) for number in range(3)])


async def in_a_task_group(two: Callable[[str], Any], question: str) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(two(f"{question} {number}")) for number in range(3)]
    return [task.result() for task in tasks]


async def behind_a_task_group(two: Callable[[str], Any], question: str) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(two(question))
    return await task, await two("other")


async def with_a_timeout(two: Callable[[str], Any], question: str) -> Any:
    try:
        async with asyncio.timeout(60) as limit:
            said = await two(question)
    except TimeoutError:
        said = None
    return said, limit.expired(), await two("other")


@pytest.mark.parametrize(
    "waits",
    [awaited_at_once, awaited_in_a_loop, gathered_tasks, in_a_task_group, behind_a_task_group, with_a_timeout],
)
def test_requests_of_a_task_that_need_nothing_of_each_other_start_together(waits: Callable[..., Any]) -> None:
    model = chain(prefill=1.0)

    async def program(question: str) -> Any:
        await model.ainvoke({"question": "first"})

        async def two(text: str) -> Any:
            return await model.ainvoke({"question": text}), await model.ainvoke({"question": f"not {text}"})

        return await waits(two, question)

    stock, mine = virtual.run(program("a")), virtual.run(fineflow.optimize(program, strict=True)("a"))
    assert mine.value == stock.value
    assert (stock.seconds, round(mine.seconds, 2)) == (3.0 if "other" not in waits.__code__.co_consts else 5.0, 1.0)


Asks = Callable[[str], Awaitable[Any]]


async def cancelled(asks: Asks) -> Any:
    asyncio.gather(asks("one"), asks("two")).cancel()
    await asyncio.sleep(0)


async def left(asks: Asks) -> Any:
    asyncio.gather(asks("one"), asks("two"))


async def read_when_it_begins(asks: Asks) -> Any:
    said = ["one"]

    async def last() -> Any:
        return await asks(said[-1])

    both = asyncio.gather(last(), last())
    said.append("two")
    return await both


async def changed_when_it_begins(asks: Asks) -> Any:
    said = ["one"]

    async def add() -> None:
        said.append("three")

    added = asyncio.gather(add())
    said.append("two")
    await added
    return await asks(" ".join(said))


async def asked_before_it_begins(asks: Asks) -> Any:
    begun = False

    async def begin() -> None:
        nonlocal begun
        begun = True

    later = asyncio.gather(begin())
    await asks("begun" if begun else "not begun")
    await later
    return await asks(str(begun))


@pytest.mark.parametrize(
    "program", [cancelled, left, read_when_it_begins, changed_when_it_begins, asked_before_it_begins]
)
def test_a_gather_begins_when_the_function_waits(program: Callable[[Asks], Any]) -> None:
    sent: list[str] = []

    def counted(messages: list[Any]) -> str:
        sent.append(messages[-1].content)
        return echo(messages)

    model = ChatPromptTemplate.from_template("{question}") | FakeChat(answers=counted) | StrOutputParser()

    async def asks(text: str) -> Any:
        return await model.ainvoke({"question": text})

    async def function(question: str) -> Any:
        return await asks(question), await program(asks)

    wanted = asyncio.run(function("first"))
    for_stock = sorted(sent)
    for _ in range(3):
        sent.clear()
        assert asyncio.run(fineflow.optimize(function, strict=True)("first")) == wanted
        assert sorted(sent) == for_stock
