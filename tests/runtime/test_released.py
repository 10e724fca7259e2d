"""Parts of a value that are there before the whole: who starts when, and what each reader gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphs import KERNELS, graph, new_call, step

from fineflow.ir import Graph, Op, Primitive
from fineflow.runtime.call.executor import Call, Execution, Failed
from fineflow.runtime.call.query import LeftToStock

SLOW = step("slow", "input", op=Op.PARSE)


class Slow:
    """A primitive that the test lets release and end."""

    def __init__(self) -> None:
        self.call: Call = replace(new_call(), kernels={**KERNELS, Op.PARSE: self._kernel})
        self.end: asyncio.Future[Any] = self.call.loop.create_future()
        self.execution: Execution | None = None
        self.log: list[Any] = []

    def _kernel(self, p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
        self.execution = run
        return self.end

    def start(self, made: Graph) -> Execution:
        execution = Execution(made, self.call, {"input": None})
        execution.start()
        return execution

    def release(self, key: str | None, value: Any) -> None:
        assert self.execution is not None
        self.execution.release(SLOW, key, value)

    def noted(self, name: str, *inputs: str) -> Primitive:
        return step(name, *inputs, does=lambda *values: self.log.append((name, *values)))


async def test_each_reader_starts_with_what_it_reads() -> None:
    slow = Slow()
    made = graph(
        SLOW,
        slow.noted("one", "slow[a]..."),
        slow.noted("both", "slow[a]...", "slow[b]..."),
        slow.noted("items", "slow..."),
        slow.noted("whole", "slow"),
        slow.noted("field of the whole", "slow[a]"),
    )
    execution = slow.start(made)
    assert slow.log == []
    slow.release("a", 1)
    assert slow.log == [("one", 1)]
    slow.release("b", 2)
    assert slow.log[1:] == [("both", 1, 2)]
    slow.release(None, "stream")
    assert slow.log[2:] == [("items", "stream")]
    slow.end.set_result({"a": 1, "b": 2})
    await asyncio.sleep(0)
    assert slow.log[3:] == [("whole", {"a": 1, "b": 2}), ("field of the whole", 1)]
    assert execution.values["slow"] == {"a": 1, "b": 2}
    await slow.call.aclose()


async def test_what_was_not_released_is_read_of_the_whole() -> None:
    slow = Slow()
    made = graph(SLOW, slow.noted("a", "slow[a]..."), slow.noted("b", "slow[b]..."), slow.noted("items", "slow..."))
    execution = slow.start(made)
    slow.release("a", 1)
    slow.end.set_result({"a": 5})
    await asyncio.sleep(0)
    assert slow.log == [("a", 1), ("items", {"a": 5})]
    assert isinstance(execution.values["b"], Failed)
    assert isinstance(execution.values["b"].error, LeftToStock)
    await slow.call.aclose()


async def test_a_failure_reaches_those_who_still_wait() -> None:
    slow = Slow()
    error = ValueError("malformed")
    made = graph(SLOW, slow.noted("early", "slow[a]..."), slow.noted("late", "slow[b]..."), slow.noted("all", "slow"))
    execution = slow.start(made)
    slow.release("a", 1)
    slow.end.set_exception(error)
    await asyncio.sleep(0)
    assert slow.log == [("early", 1)]
    for name in ("slow", "late", "all"):
        assert execution.values[name].error is error
    await slow.call.aclose()


async def test_what_is_released_again_starts_nobody_again() -> None:
    slow = Slow()
    later = step("later", "slow[a]...", does=lambda value: slow.log.append(("later", value)), after=("other",))
    other = step("other", "slow", does=lambda value: None)
    slow.start(graph(SLOW, slow.noted("early", "slow[a]..."), other, later))
    slow.release("a", 1)
    slow.release("a", 2)
    assert slow.log == [("early", 1)]
    slow.end.set_result("no dict: its fields were released")
    await asyncio.sleep(0)
    assert slow.log == [("early", 1), ("later", 2)]
    await slow.call.aclose()


async def test_nothing_is_released_after_the_end_of_the_call() -> None:
    slow = Slow()
    slow.start(graph(SLOW, slow.noted("early", "slow[a]...")))
    await slow.call.aclose()
    slow.release("a", 1)
    assert slow.log == []
