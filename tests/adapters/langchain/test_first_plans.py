"""The first plan of async calls is made in a thread: what else the loop does meanwhile, and who waits for it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.adapters.core import first_plans
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.ir import Graph
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeChat

Q = {"question": "why"}


def chain(say: str = "{question}") -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_template(say)
    parts = {name: prompt | FakeChat(answers=lambda got: got[-1].text) | StrOutputParser() for name in "ab"}
    return RunnablePassthrough.assign(**parts) | RunnableLambda(lambda got: got["a"] + got["b"])


class Held:
    """A pass of the user's that waits: planning goes on when the test says so. plans: threads that have planned."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.plans: list[int] = []

    def __call__(self, graph: Graph) -> Graph:
        self.plans.append(threading.get_ident())
        self.begun.set()
        assert self.go.wait(30)
        return graph

    async def arrived(self) -> None:
        await asyncio.to_thread(self.begun.wait, 30)


def optimized(held: Callable[[Graph], Graph], made: Any = None, **options: Any) -> Any:
    return fineflow.optimize(made or chain(), passes=[*fineflow.PASSES, held], **options)


async def _stream(app: Any) -> str:
    return "".join([piece async for piece in app.astream(Q)])


async def _events(app: Any) -> str:
    found = [each async for each in app.astream_events(Q, version="v2")]
    return str(found[-1]["data"]["output"])


async def _batch(app: Any) -> str:
    return str((await app.abatch([Q]))[0])


async def _invoke(app: Any) -> str:
    return str(await app.ainvoke(Q))


@pytest.mark.parametrize("call", [_invoke, _stream, _events, _batch])
async def test_calls_wait_for_one_plan_while_the_loop_goes_on(call: Any) -> None:
    held = Held()
    app = optimized(held, strict=True)
    calls = [asyncio.create_task(call(app)) for _ in range(3)]
    await held.arrived()  # this loop runs while the plan is being made
    assert not any(each.done() for each in calls)
    held.go.set()
    assert await asyncio.gather(*calls) == ["whywhy"] * 3
    assert len(held.plans) == 1
    assert held.plans[0] != threading.get_ident()


async def test_a_caller_that_is_cancelled_leaves_the_plan_to_the_others() -> None:
    held = Held()
    app = optimized(held, strict=True)
    first, second = (asyncio.create_task(app.ainvoke(Q)) for _ in range(2))
    await held.arrived()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    held.go.set()
    assert await second == "whywhy"
    assert len(held.plans) == 1


def test_a_loop_that_is_closed_meanwhile_leaves_the_plan_to_other_loops() -> None:
    held = Held()
    app = optimized(held, strict=True)

    async def gives_up() -> None:
        call = asyncio.create_task(app.ainvoke(Q))
        await held.arrived()
        call.cancel()

    async def waits() -> Any:
        asyncio.get_running_loop().call_soon(held.go.set)
        return await app.ainvoke(Q)

    asyncio.run(gives_up())
    assert asyncio.run(waits()) == "whywhy"
    assert len(held.plans) == 1


async def test_an_object_that_changes_meanwhile_is_planned_again() -> None:
    held = Held()
    made: Any = chain()
    app = optimized(held, made, strict=True)
    call = asyncio.create_task(app.ainvoke(Q))
    await held.arrived()
    made.first.mapper.steps__["a"] = chain("now {question}")  # after it was read, before the plan is there
    held.go.set()
    assert await call == await made.ainvoke(Q)
    assert len(held.plans) == 2
    assert await app.ainvoke(Q) == await made.ainvoke(Q)
    assert len(held.plans) == 2


async def test_planning_sees_the_context_of_the_call() -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="")
    seen = list[str]()

    def noted(graph: Graph) -> Graph:
        seen.append(var.get())
        return graph

    var.set("of the caller")
    assert await optimized(noted, strict=True).ainvoke(Q) == "whywhy"
    assert seen == ["of the caller"]


@pytest.mark.parametrize("call", [_invoke, _stream, _events, _batch])
async def test_what_cannot_be_planned_is_told_where_it_is_called(call: Any) -> None:
    def broken(graph: Graph) -> Graph:
        raise ValueError("no")

    app = optimized(broken)
    with pytest.warns(FineflowWarning, match="could not be planned") as warned:
        assert await call(app) == "whywhy"
    assert await call(app) == "whywhy"
    assert len(warned) == 1
    with pytest.raises(PlanningError, match="could not be planned"):
        await call(optimized(broken, strict=True))


def test_without_threads_calls_plan_on_their_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(job: Any) -> None:
        raise RuntimeError("can't start new thread")

    held = Held()
    held.go.set()
    monkeypatch.setattr(first_plans.workers, "submit", none)
    assert asyncio.run(optimized(held, strict=True).ainvoke(Q)) == "whywhy"
    assert held.plans == [threading.get_ident()]


@pytest.mark.parametrize("eager", [False, True])
async def test_the_shadow_of_the_first_call_is_made_with_its_plan(eager: bool) -> None:
    asks = ChatPromptTemplate.from_template("{question}") | FakeChat(default="yes") | StrOutputParser()
    made = chain() if eager else RunnablePassthrough.assign(a=asks) | RunnablePassthrough.assign(b=asks)
    app: Any = fineflow.optimize(made, strict=True, eager=eager)
    first_plans.make(app, "ainvoke", True)
    plan = app._self_plans[True]
    kept = dict(plan.shadows)
    assert await app.ainvoke(Q) == ("whywhy" if eager else {**Q, "a": "yes", "b": "yes"})
    assert app._self_plans[True] is plan and ("ainvoke" in plan.pays) is not eager
    assert kept and plan.shadows == kept


def test_a_plan_takes_no_virtual_time() -> None:
    held = Held()
    app = optimized(held, FakeChat(default="yes", prefill=1.0) | StrOutputParser(), eager=True)

    async def call() -> Any:
        threading.Timer(0.05, held.go.set).start()  # the clock stands still until then, whenever that is
        return await app.ainvoke("q")

    ran = virtual.run(call())
    assert (ran.value, ran.seconds) == ("yes", 1.0)


def test_a_forked_child_makes_its_own_plan() -> None:
    held = Held()
    app = optimized(held, strict=True)

    async def call() -> Any:
        task = asyncio.create_task(app.ainvoke(Q))
        await held.arrived()
        if not (child := os.fork()):
            os._exit(0 if _in_child(app, held) else 1)
        held.go.set()
        assert await task == "whywhy"
        return await asyncio.to_thread(os.waitpid, child, 0)

    _, status = asyncio.run(call())
    assert os.waitstatus_to_exitcode(status) == 0


def _in_child(app: Any, held: Held) -> bool:
    held.go = threading.Event()
    held.go.set()
    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(app.ainvoke(Q))), daemon=True)
    thread.start()
    thread.join(30)
    return found == ["whywhy"]
