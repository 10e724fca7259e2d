"""What reaches the caller is the exception that stock raises, with all that is behind it; its siblings are stopped."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from faults import ASYNC, SYNC, Boom, acall, caught, in_virtual_time, optimized, told, trap
from faulty_steps import AT, KINDS, QUESTION, Bench
from langchain_core.runnables import RunnablePassthrough

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.testing.gates import Gate, Trap

STOPPING = ["prefill", "decode", "decode on an engine, streaming", "search", "rerank", "condition, arm"]


@pytest.mark.parametrize("entry", ["ainvoke", "astream"])
@pytest.mark.parametrize("kind", STOPPING)
@in_virtual_time
async def test_a_failure_stops_what_runs_ahead(kind: str, entry: str) -> None:
    bench = Bench(kind, trap(kind), side_gate=Gate())
    task = asyncio.ensure_future(acall(optimized(bench), entry))
    await bench.trap.arrived(AT.get(kind, 1))
    await bench.side_gate.arrived()
    assert bench.meter.in_flight == 2
    bench.trap.error = Boom("no")
    bench.trap.open()
    with pytest.raises(Boom) as found:
        await task
    assert found.value is bench.trap.error
    await bench.meter.idle(timeout=0.1)  # virtual


@in_virtual_time
async def test_a_failure_stops_its_siblings() -> None:
    """Stock leaves the other branches of an async call at work, on engines that nobody waits for any more."""
    bench = Bench("decode", Trap())
    bench.llm.gate = Gate()
    beside = bench.ask(ChatEngine(engine=bench.llm))
    chain = RunnablePassthrough.assign(x=KINDS["decode"](bench), y=beside) | bench.ask(bench.chat())
    task = asyncio.ensure_future(fineflow.optimize(chain, strict=True, eager=True).ainvoke(QUESTION))
    await bench.trap.arrived()
    await bench.llm.gate.arrived()
    bench.trap.error = Boom("no")
    bench.trap.open()
    with pytest.raises(Boom):
        await task
    await bench.meter.idle(timeout=0.1)  # virtual


def _from_another() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Boom("outer") from error


def _while_another_is_handled() -> None:
    try:
        raise KeyError("inner")
    except KeyError:
        raise Boom("outer")  # noqa: B904 - this is the case


def _with_the_other_hidden() -> None:
    try:
        raise KeyError("inner")
    except KeyError:
        raise Boom("outer") from None


def _with_a_note() -> None:
    error = Boom("outer", 7)
    error.add_note("seen in a test")
    raise error


def _of_a_group() -> None:
    raise ExceptionGroup("the user's own", [Boom("one"), KeyError("two")])


def _late() -> None:
    raise TimeoutError("the component's own")


WAYS = [_from_another, _while_another_is_handled, _with_the_other_hidden, _with_a_note, _of_a_group, _late]


@pytest.mark.parametrize("entry", [*SYNC, *ASYNC])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_behind_an_exception_is_the_same(way: Callable[[], None], entry: str) -> None:
    def answer(_: Any) -> str:
        way()
        return "unreachable"

    def chain() -> Any:
        bench = Bench("decode", Trap(at=0))
        ask = bench.ask(bench.chat(answers=answer))
        return RunnablePassthrough.assign(x=ask) | RunnablePassthrough.assign(y=bench.ask(bench.chat(), "beside {q}"))

    expected = caught(chain(), entry)
    found = caught(fineflow.optimize(chain(), strict=True, eager=True), entry)
    assert isinstance(expected, Exception)
    assert told(found) == told(expected)
    assert _last(found) == _last(expected) == [answer.__name__, way.__name__]


def _last(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][-2:]
