"""What the user's code starts beside an agent is seen however it does so: the agent's tools read what it writes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.pool import ThreadPool
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from agent_cases import VALUE
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.graph import START, MessagesState, StateGraph
from test_beside import Paged, answered

import fineflow
from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.inner_calls.entry_wrappers import own_function
from fineflow.adapters.langgraph import started, tool_runs
from fineflow.testing import virtual, virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")


class Starts:
    """Lets work go on in a thread, in ways that no name in the calling function tells."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.begin = self._begin

    def _begin(self) -> None:
        threading.Thread(target=self._work).start()

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, value: Any) -> Any:
        self._begin()
        return value


class Service:
    """Asks an agent by a method, and has a helper."""

    def __init__(self, paged: Any, agent: Any) -> None:
        self.helper, self.agent = Starts(paged.write), agent

    def asks(self, value: Any) -> Any:
        self.helper.begin()
        return answered(self.agent.invoke(value))


def by_a_method(paged: Any, agent: Any) -> Any:
    return Service(paged, agent).asks


def in_a_with_block(paged: Any, agent: Any) -> Any:
    def asks(value: Any) -> Any:
        with Starts(paged.write):
            return answered(agent.invoke(value))

    return asks


def by_an_argument(paged: Any, agent: Any) -> Any:
    def asks(value: Any) -> Any:
        value["starts"].begin()
        return answered(agent.invoke({"messages": value["messages"]}))

    return RunnablePassthrough.assign(starts=lambda value: Starts(paged.write)) | RunnableLambda(asks)


def before_the_agent(paged: Any, agent: Any) -> Any:
    return RunnablePassthrough(Starts(paged.write)) | agent | RunnableLambda(answered)


def by_an_earlier_node(paged: Any, agent: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("starts", lambda state: Starts(paged.write)({"messages": []}))
    graph.add_node("agent", agent)
    graph.add_edge(START, "starts")
    graph.add_edge("starts", "agent")
    return graph.compile()


@pytest.mark.parametrize("outer", [by_a_method, in_a_with_block, by_an_argument, before_the_agent, by_an_earlier_node])
def test_tools_read_what_is_written_beside_the_agent(outer: Any) -> None:
    def ran(*, optimized: bool) -> tuple[list[str], list[str]]:
        paged = Paged(outer)
        app: Any = fineflow.optimize(paged.graph, strict=True) if optimized else paged.graph
        found = virtual_threads.run(lambda: (app.invoke if hasattr(app, "invoke") else app)(VALUE))
        assert paged.written == 1
        return [each[1] if isinstance(each, tuple) else each.text for each in found.value["messages"]], paged.early

    (expected, _), (found, early) = ran(optimized=False), ran(optimized=True)
    assert found == expected
    assert "rivers" not in early, "it is called while something else goes on"


class Here:
    """Stands for an optimized call, which keeps what was started in it."""

    outer = None

    def __init__(self) -> None:
        self.call, self.runs = self, tool_runs.ToolRuns()

    def memory(self, _: Any) -> tool_runs.ToolRuns:
        return self.runs


@pytest.fixture
def here() -> Any:
    started.install()
    before = under_way.set(Here())  # type: ignore[arg-type]
    yield under_way.get()
    under_way.reset(before)


async def nothing() -> None:
    pass


async def test_tasks_count_while_they_go_on(here: Any) -> None:
    task = asyncio.create_task(nothing())
    assert here.runs.others_go_on()
    await task
    assert not here.runs.others_go_on()
    assert here.runs.others_since(tool_runs.Moment(0, 0), None)


async def test_a_task_is_not_beside_itself(here: Any) -> None:
    async def asks() -> bool:
        return bool(here.runs.others_go_on())

    assert not await asyncio.create_task(asks())
    assert await asyncio.gather(asks(), asks()) == [True, False], "the first one has ended then"


@pytest.mark.parametrize("reads", [False, True])
async def test_what_a_tool_starts_counts_as_its_run_does(here: Any, reads: bool) -> None:
    turn, since = object(), tool_runs.Moment(0, 0)
    with here.runs.run(tool_runs.ToolRun(None, turn, reads=reads)):
        task = asyncio.create_task(nothing())
    assert here.runs.others_go_on() is not reads
    assert here.runs.others_since(since, None) is not reads
    assert not here.runs.others_since(since, turn), "stock runs calls of one message at the same time"
    await task


async def test_factories_of_tasks_get_what_they_take(here: Any) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coro: asyncio.Task(coro, loop=loop))
    task = asyncio.create_task(nothing())
    loop.set_task_factory(None)
    assert here.runs.others_go_on()
    await task


def test_a_loop_of_its_own_is_not_beside_itself(here: Any) -> None:
    async def asks() -> bool:
        return bool(here.runs.others_go_on())

    assert not asyncio.run(asks())
    assert here.runs.others_since(tool_runs.Moment(0, 0), None)


async def test_threads_and_timers_count(here: Any) -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    assert here.runs.others_go_on()
    gate.set()
    thread.join()
    assert not here.runs.others_go_on()
    timer = asyncio.get_running_loop().call_later(60, gate.clear)
    assert here.runs.others_go_on()
    timer.cancel()
    assert not here.runs.others_go_on()


async def test_what_helpers_of_packages_start_counts_if_it_is_the_users(here: Any) -> None:
    tqdm = pytest.importorskip("tqdm.asyncio").tqdm_asyncio
    before = here.runs.now.started  # the task of this test
    await tqdm.gather(asyncio.sleep(0), disable=True)
    assert here.runs.now.started == before
    await tqdm.gather(nothing(), disable=True)
    assert here.runs.now.started == before + 1


def helps(source: str, name: str) -> Any:
    """Returns the function ``helper`` of a package that is not there."""
    made: dict[str, Any] = {"__name__": name, "threading": threading}
    exec(source, made)
    return made["helper"]


@pytest.mark.parametrize("kind", [threading.Thread, threading.Timer])
def test_threads_count_where_instrumentation_wraps_their_start(
    here: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def helper(own):\n    def start(thread):\n        own(thread)\n    return start"
    wraps = helps(source, "opentelemetry.instrumentation.threading")
    monkeypatch.setattr(kind, "start", wraps(own_function(kind.start)), raising=False)  # before ours
    started.install()
    monkeypatch.setattr(kind, "start", wraps(kind.start))  # and after it
    gate = threading.Event()
    thread = kind(0, gate.wait) if kind is threading.Timer else kind(target=gate.wait)
    thread.start()
    assert here.runs.others_go_on() and here.runs.now.started == 1
    gate.set()
    thread.join()


async def asks(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("work", "acts"),
    [
        (asks, True),
        (len, False),
        (partial(asks, 1), True),
        (partial(print, Starts), True),
        (partial(httpx.get, "https://example.org"), False),
        (httpx.Client().get, False),
        (httpx.Client(event_hooks={"response": [asks]}).get, True),
        (Starts(print), True),
        (Starts(print).begin, True),
        (threading.Event().set, False),
        (ContextThreadPoolExecutor.submit, False),
        ((httpx.get, [{"by": asks}]), True),
        (RunnableLambda(asks), True),
        (None, False),
        ([1] * 5, False),
    ],
)
def test_work_of_the_users_is_told_from_that_of_packages(work: Any, acts: bool) -> None:
    assert started._may_act(work) is acts


class Forked(BaseProcess):
    """A process of ``multiprocessing``."""


def test_processes_count(here: Any) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert here.runs.others_go_on()
    process.communicate(b"\n")
    assert process.returncode == 0 and not here.runs.others_go_on()
    ended: list[int | None] = [None]
    forked: Any = Forked()
    forked._Popen = lambda _: SimpleNamespace(sentinel=None, poll=lambda: ended[0])
    forked.start()
    assert here.runs.others_go_on()
    ended[0] = 0
    assert not here.runs.others_go_on()
    assert here.runs.now.started == 2


@pytest.mark.parametrize("asked", ["apply_async", "map_async", "imap"])
def test_calls_of_pools_count(here: Any, asked: str) -> None:
    gate = threading.Event()
    before = under_way.set(None)
    with ThreadPool(1) as pool:
        under_way.reset(before)
        found: Any = getattr(pool, asked)(*((gate.wait,) if asked == "apply_async" else (lambda _: gate.wait(), [1])))
        assert here.runs.others_go_on()
        gate.set()
        assert next(found) if asked == "imap" else found.get()
        assert not here.runs.others_go_on()
    assert here.runs.now.started == 1


def test_tasks_on_a_loop_that_is_not_asyncios_count(here: Any) -> None:
    uvloop = pytest.importorskip("uvloop.loop")

    class Loop(uvloop.Loop, asyncio.AbstractEventLoop):  # type: ignore[misc, name-defined]
        """As ``uvloop.Loop``, but nobody has looked at it."""

    async def run() -> None:
        assert not started.looks_here() and started.looks_here()
        task = asyncio.create_task(nothing())
        assert here.runs.others_go_on()
        await task
        assert not here.runs.others_go_on()
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await nothing()
        timer = asyncio.get_running_loop().call_later(60, print)
        assert here.runs.others_go_on() and here.runs.now.started == 2
        timer.cancel()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())


def test_waiting_starts_nothing(here: Any) -> None:
    async def waits() -> None:
        assert under_way.get() is here
        await asyncio.sleep(1)
        async with asyncio.timeout(60):
            await nothing()

    assert virtual.run(waits()).seconds == 1
    assert here.runs.now == tool_runs.Moment(0, 0)
