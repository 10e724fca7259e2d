"""What tasks change and read of the same data: requests are those of stock, whatever the order was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

import fineflow
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat

Asks = Callable[..., Awaitable[str]]


async def nothing() -> None:
    pass


async def appended_later(asks: Asks) -> Any:
    box: list[int] = []

    async def adds() -> None:
        await asks("slow", 2.0)
        box.append(1)

    task = asyncio.create_task(adds())
    said = await asks(f"quick {len(box)}"), await asks(f"{len(box)} so far")
    await task
    return said, await asks(f"{len(box)} at last")


async def appended_before_anything_waits(asks: Asks) -> Any:
    box: list[int] = []

    async def adds() -> None:
        box.append(1)

    task = asyncio.create_task(adds())
    await nothing()
    said = await asks(f"{len(box)} so far"), await asks(f"{len(box)} now")
    await task
    return said


async def counted(asks: Asks) -> Any:
    count = 0

    async def counts() -> None:
        nonlocal count
        count += 1
        await asks("slow", 2.0)
        count += 1

    task = asyncio.shield(counts())
    said = await asks(f"quick {count}"), await asks(f"{count} so far")
    await task
    return said


class Counter:
    count = 0

    async def counts(self, asks: Asks) -> None:
        await asks("slow", 2.0)
        self.count += 1


async def an_attribute(asks: Asks) -> Any:
    counter = Counter()
    task = asyncio.ensure_future(counter.counts(asks))
    said = await asks(f"quick {counter.count}"), await asks(f"{counter.count} so far")
    await task
    return said


async def items(asks: Asks) -> Any:
    found: dict[str, str] = {}

    async def finds(text: str) -> None:
        found[text] = await asks(text, 2.0)

    tasks = [asyncio.create_task(finds(text)) for text in "ab"]
    said = await asks(f"quick {sorted(found)}"), await asks(f"{len(found)} so far")
    for task in tasks:
        await task
    return said


async def read_by_another_part(asks: Asks) -> Any:
    box: list[int] = []

    async def reads() -> Any:
        return await asks("first"), await asks(f"{len(box)} there")

    async def adds() -> None:
        box.append(1)
        await asks("second")

    return await asyncio.gather(reads(), adds())


async def read_where_something_is_unknown(asks: Asks) -> Any:
    """What a part changes only if it does not know what another one has changed."""
    box: list[int] = []
    more: list[int] = []

    async def reads() -> Any:
        return await asks("first"), await asks(f"{len(more)} there")

    async def adds() -> None:
        if box:
            more.append(1)
        await asks("second")

    async def fills() -> None:
        box.append(1)
        await asks("third")

    return await asyncio.gather(reads(), fills(), adds())


async def begun_before_what_is_awaited(asks: Asks) -> Any:
    said: list[str] = []

    async def says(text: str) -> str:
        said.append(text)
        return await asks(",".join(said))

    task = asyncio.create_task(says("one"))
    return await asyncio.gather(says("two")), await task


async def gathered_in_a_task(asks: Asks) -> Any:
    seen: list[str] = []

    async def sees(text: str) -> str:
        seen.append(text)
        return await asks(f"{text} {len(seen)}")

    async def both(text: str) -> Any:
        return await asyncio.gather(sees(f"{text} one"), sees(f"{text} two"))

    task = asyncio.create_task(both("task"))
    return await both("main"), await task


async def changed_after_it_has_begun(asks: Asks) -> Any:
    box = ["old"]

    async def reads() -> Any:
        return await asks("first " + box[0]), await asks("then " + box[0])

    task = asyncio.create_task(reads())
    await asyncio.sleep(0)
    box[0] = "new"
    return await task


async def returned_what_it_had_read(asks: Asks) -> Any:
    count = 0

    async def reads() -> int:
        await asks("first", 2.0)
        return count

    task = asyncio.create_task(reads())
    await asks("quick")
    count += 1
    return await asks(f"{await task} read")


async def raised_where_it_is_awaited(asks: Asks) -> Any:
    async def number() -> int:
        return int(await asks("a number"))

    task = asyncio.create_task(number())
    await asks("first")
    try:
        await task
        said = await asks("it is one")
    except ValueError:
        said = await asks("it is none")
    return said, await asks("at last")


async def elements_of_one_iterator(asks: Asks) -> Any:
    texts = iter(["one", "two", "three", "four"])

    async def works(name: str, seconds: float) -> int:
        count = 0
        for text in texts:
            count += 1
            await asks(f"{text} by {name}", seconds)
        return count

    return await asyncio.gather(works("quick", 0.5), works("slow", 2.0))


PROGRAMS = [
    *(appended_later, appended_before_anything_waits, counted, an_attribute, items, read_by_another_part),
    *(read_where_something_is_unknown, begun_before_what_is_awaited, gathered_in_a_task, changed_after_it_has_begun),
    *(returned_what_it_had_read, raised_where_it_is_awaited, elements_of_one_iterator),
]


def made(program: Callable[[Asks], Any], sent: list[str]) -> Callable[[str], Any]:
    def answers(messages: list[Any]) -> str:
        sent.append(messages[-1].content)
        return f"re {messages[-1].content}"

    prompt = ChatPromptTemplate.from_template("{question}")
    models = {
        seconds: prompt | FakeChat(answers=answers, prefill=seconds) | StrOutputParser() for seconds in (0.5, 1.0, 2.0)
    }

    async def asks(text: str, seconds: float = 1.0) -> str:
        return str(await models[seconds].ainvoke({"question": text}))

    async def function(question: str) -> Any:
        return await asks(question), await program(asks)

    return function


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_requests_are_those_of_stock(program: Callable[[Asks], Any]) -> None:
    sent: list[str] = []
    function = made(program, sent)
    stock = virtual.run(function("x"))
    for_stock = sorted(sent)
    fast = fineflow.optimize(function, strict=True)
    for _ in range(2):
        sent.clear()
        assert virtual.run(fast("x")).value == stock.value
        assert sorted(sent) == for_stock


async def own_lists(asks: Asks) -> Any:
    async def says(text: str) -> list[str]:
        said: list[str] = []
        for number in range(2):
            said.append(await asks(f"{text} {number}"))
        return said

    found = await asyncio.gather(says("one"), says("two"))
    return found, await asks(str(len(found[0])))


async def common_results(asks: Asks) -> Any:
    found: dict[str, str] = {}

    async def finds(text: str) -> None:
        found[text] = await asks(text) + await asks(f"not {text}")

    tasks = [asyncio.create_task(finds(text)) for text in "abc"]
    for task in tasks:
        await task
    return found


@pytest.mark.parametrize(("program", "seconds"), [(own_lists, (4.0, 1.0)), (common_results, (3.0, 1.0))])
def test_what_depends_on_nothing_common_starts_early(
    program: Callable[[Asks], Any], seconds: tuple[float, float]
) -> None:
    sent: list[str] = []
    function = made(program, sent)
    stock = virtual.run(function("x"))
    mine = virtual.run(fineflow.optimize(function, strict=True)("x"))
    assert mine.value == stock.value
    assert sorted(sent[: len(sent) // 2]) == sorted(sent[len(sent) // 2 :])
    assert (stock.seconds, round(mine.seconds, 2)) == seconds
