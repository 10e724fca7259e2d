"""Calls that end while their model waits for room in an LLM: they leave its queue, and the next one comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from faults import in_virtual_time
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from fineflow.engines import set_policy
from fineflow.langchain import ChatEngine
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.prompts import INPUT, TEXT, Part, Segment
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate, until
from fineflow.testing.langchain import FakeChat
from fineflow.testing.leaks import left

SMALL, LARGE = {"q": "why?"}, {"q": "why? " * 60}


class Bench:
    """An LLM with room for two small prompts, one of which is there; a large one does not fit beside it."""

    def __init__(self, **options: Any) -> None:
        self.gate = Gate()
        self.llm = GatedLLM("one two", gate=self.gate, capacity=150)
        set_policy(self.llm, "fifo")
        answer = ChatPromptTemplate.from_template("{q}") | ChatEngine(engine=self.llm, max_tokens=8) | StrOutputParser()
        beside = ChatPromptTemplate.from_template("beside {q}") | FakeChat(default="beside") | StrOutputParser()
        chain: Runnable[Any, Any] = RunnablePassthrough.assign(a=answer) | RunnablePassthrough.assign(b=beside)
        self.chain = fineflow.optimize(chain, strict=True, eager=True)
        self.late = fineflow.optimize(chain, strict=True, eager=True, **options)

    @property
    def admission(self) -> LLMQueue:
        return llm_queue_of(self.llm)

    async def queue(self, make: Callable[[], Any]) -> tuple[asyncio.Task[Any], Any, asyncio.Task[Any]]:
        """One call that runs, one that ``make`` makes and that waits for room, one that waits behind it."""
        running = asyncio.create_task(self.chain.ainvoke(SMALL))
        await self.until(0, 1)
        waiting = make()
        await self.until(1, 1)
        behind = asyncio.create_task(self.chain.ainvoke(SMALL))
        await self.until(2, 1)
        return running, waiting, behind

    async def until(self, waiting: int, running: int) -> None:
        await until(lambda: (self.admission.waiting, self.admission.running) == (waiting, running))

    async def over(self, *calls: asyncio.Task[Any]) -> None:
        """The one behind has come in, though nothing has ended; both have their answers; nothing is left."""
        await self.until(0, 2)
        self.gate.open()
        for found in await asyncio.gather(*calls):
            assert (found["a"], found["b"]) == ("one two", "beside")
        assert (self.admission.waiting, self.admission.running, self.admission.tokens) == (0, 0, 0)
        await until(lambda: not left(objects=False))  # exceptions that a test holds keep the objects of their calls
        large = await self.chain.ainvoke(LARGE)
        assert large["a"] == "one two"


async def drain(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("entry", ["ainvoke", "astream", "abatch"])
@in_virtual_time
async def test_a_task_that_is_cancelled(entry: str) -> None:
    bench = Bench()
    calls: dict[str, Callable[[], Any]] = {
        "ainvoke": lambda: bench.chain.ainvoke(LARGE),
        "astream": lambda: drain(bench.chain.astream(LARGE)),
        "abatch": lambda: bench.chain.abatch([LARGE]),
    }
    running, waiting, behind = await bench.queue(lambda: asyncio.ensure_future(calls[entry]()))
    now = asyncio.get_running_loop().time
    begun = now()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert bench.admission.waiting < 2 and now() == begun
    await bench.over(running, behind)


async def test_a_stream_that_is_closed() -> None:
    bench = Bench()
    stream = bench.chain.astream(LARGE)

    def read() -> asyncio.Task[Any]:
        return asyncio.create_task(drain(stream))

    running, reader, behind = await bench.queue(read)
    reader.cancel()
    with suppress(asyncio.CancelledError):
        await reader
    await stream.aclose()  # type: ignore[attr-defined]
    await bench.over(running, behind)


async def test_a_timeout_around_the_call() -> None:
    bench = Bench()
    limits: list[asyncio.Timeout] = []

    async def late() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await bench.chain.ainvoke(LARGE)

    running, waiting, behind = await bench.queue(lambda: asyncio.create_task(late()))
    limits[0].reschedule(asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        await waiting
    await bench.over(running, behind)


@in_virtual_time
async def test_a_deadline_of_the_object() -> None:
    bench = Bench(timeout=1.0)
    running, waiting, behind = await bench.queue(lambda: asyncio.create_task(bench.late.ainvoke(LARGE)))
    with pytest.raises(TimeoutError):
        await waiting
    await bench.over(running, behind)


async def test_a_deadline_of_the_object_in_a_thread(deadline_passes: Callable[[], None]) -> None:
    bench = Bench(timeout=30.0)

    def late() -> Any:
        return asyncio.create_task(asyncio.to_thread(bench.late.invoke, LARGE))

    running, waiting, behind = await bench.queue(late)
    deadline_passes()
    with pytest.raises(TimeoutError, match="within 30 s"):
        await waiting
    await bench.over(running, behind)


async def test_a_sibling_that_fails_takes_the_waiting_one_with_it() -> None:
    """In stock the model of the other branch goes on; here nobody waits for it, once the call has failed."""
    bench = Bench()
    failing = FakeChat(answers=lambda _: RuntimeError("no"), gate=Gate())
    ask = ChatPromptTemplate.from_template("{q}") | ChatEngine(engine=bench.llm, max_tokens=8) | StrOutputParser()
    both = fineflow.optimize(
        RunnablePassthrough.assign(x=ChatPromptTemplate.from_template("{q}") | failing, y=ask), strict=True, eager=True
    )
    running, waiting, behind = await bench.queue(lambda: asyncio.create_task(both.ainvoke(LARGE)))
    assert failing.gate is not None
    failing.gate.open()
    with pytest.raises(RuntimeError, match="no"):
        await waiting
    await bench.over(running, behind)


async def test_a_reader_that_makes_another_call_first_gets_both_answers() -> None:
    """The answer that it has begun to read takes the room which the other needs."""
    bench = Bench()
    bench.gate.open()
    bench.llm.answer = "word " * 200
    async with asyncio.timeout(20):
        stream = bench.chain.astream(LARGE)
        pieces = [await anext(stream)]
        assert (await bench.chain.ainvoke(LARGE))["b"] == "beside"
        pieces += [piece async for piece in stream]
    assert "".join(piece.get("a", "") for piece in pieces).split() == ["word"] * 8


def test_the_queue_is_told_the_parts_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it knows where prompts begin alike."""
    told = list[list[tuple[str, str]]]()

    def noted(queue: LLMQueue, text: str, parts: Sequence[Part]) -> tuple[Segment, ...]:
        told.append([(part.kind, part.text) for part in parts])
        return ()

    monkeypatch.setattr(LLMQueue, "segments", noted)
    chain = ChatPromptTemplate.from_template("Read {book}: {q}") | ChatEngine(engine=GatedLLM("yes"), max_tokens=8)
    optimized: Any = fineflow.optimize(chain | StrOutputParser(), strict=True, eager=True)
    assert asyncio.run(optimized.ainvoke({"book": "a tale", "q": "why?"})) == "yes"
    assert told == [[(TEXT, "Read "), (INPUT, "a tale"), (TEXT, ": "), (INPUT, "why?")]]
