"""Objectives of calls: which requests may fill an engine, which have to be quick, and who goes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.ir.objectives import OBJECTIVES
from fineflow.protocols import Sampling
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.instances import instances
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import PATIENCE
from fineflow.testing import virtual

SECOND = LLMProfile(iteration=1.0, prefill_token=0.0, decode_sequence=0.0)
PROMPT, OUTPUT = 30, 10  # tokens
ROOM = PROMPT + OUTPUT  # of a request


class Load:
    """Requests to one or several engines, each with room for ten, or for two while one has to be quick."""

    def __init__(self, engines: int = 1, *, latency: int | None = 2 * ROOM, deduction: bool = True) -> None:
        made = [self._engine(f"engine {number}", latency) for number in range(engines)]
        self.engine: Any = made[0] if engines == 1 and deduction else instances(made, deduction=deduction)
        self.queue: LLMQueue = llm_queue_of(self.engine)
        self.most = 0  # requests that ran together
        self.done: list[str] = []

    @staticmethod
    def _engine(name: str, latency: int | None) -> EmulatedLLM:
        answer = " ".join(["word"] * OUTPUT)
        return EmulatedLLM(lambda _: answer, SECOND, name=name, capacity=10 * ROOM, latency_capacity=latency)

    async def ask(self, name: str, *, query: str = "", objective: str | None = None) -> None:
        request_context.query.set(query)
        with fineflow.identity(objective=objective):
            tokens = self.engine.encode(f"{name} " + "word " * (PROMPT - len(name.split())))
            async for _ in self.queue.generate(tokens, Sampling(max_tokens=OUTPUT)):
                self.most = max(self.most, self.queue.running)
        self.done.append(name)

    def run(self, *asked: tuple[float, dict[str, Any]]) -> float:
        """Makes requests at some seconds; returns the seconds until all have ended."""

        async def one(number: int, at: float, settings: dict[str, Any]) -> None:
            await asyncio.sleep(at)
            await self.ask(settings.pop("name", f"request {number}"), **settings)

        async def together() -> None:
            await asyncio.gather(*(asyncio.create_task(one(i, at, dict(s))) for i, (at, s) in enumerate(asked)))
            assert not self.queue.running and not self.queue.waiting and not self.queue._asking

        return virtual.run(together()).seconds


def several(count: int, **settings: Any) -> list[tuple[float, dict[str, Any]]]:
    return [(0.0, settings)] * count


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        pytest.param(several(10, query="one"), 10, id="a task group"),
        pytest.param(several(10), 2, id="each alone"),
        pytest.param(several(10, objective="latency"), 2, id="each alone, said"),
        pytest.param(several(10, objective="throughput"), 10, id="throughput"),
        pytest.param(several(10, objective="ttft"), 10, id="first tokens"),
        pytest.param(several(10, query="one", objective="tpot"), 2, id="tokens of a group"),
        pytest.param([*several(6, query="one"), *several(1)], 5, id="a group after one alone"),
    ],
)
def test_capacity_follows_the_strictest_request(asked: Sequence[Any], most: int) -> None:
    load = Load()
    load.run(*asked)
    assert load.most == most


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(several(10, query="one"), id="a task group"),
        pytest.param(several(10, objective="throughput"), id="throughput"),
        pytest.param(several(10, objective="ttft"), id="first tokens"),
    ],
)
def test_without_deduction_every_request_has_to_be_quick(asked: Sequence[Any]) -> None:
    assert Load().run(*asked) < (alike := Load(deduction=False)).run(*asked)
    assert alike.most == 2


def test_without_deduction_no_objective_comes_first() -> None:
    ends = {}
    for deduction in (True, False):
        load = Load(deduction=deduction)
        names = ("throughput", "latency", "ttft")
        load.run(*several(2), *((0.1 * i, {"name": name, "objective": name}) for i, name in enumerate(names, 1)))
        ends[deduction] = [name for name in load.done if name in OBJECTIVES]
    assert ends[False] == ["throughput", "latency", "ttft"] != ends[True]


def test_without_a_latency_capacity_all_fill_the_engine() -> None:
    load = Load(latency=None)
    load.run(*several(10))
    assert load.most == 10


def test_first_tokens_come_first_and_throughput_last() -> None:
    load = Load(latency=None)
    asked = [(0.0, {"name": f"running {i}"}) for i in range(10)]
    for name in ("throughput", "latency", "ttft"):
        asked.append((1.0, {"name": name, "objective": name}))
    order: list[str] = []
    admit = load.queue._line.serve

    def served(*taken: Any) -> None:
        order.extend(request.seen.objective for request, _ in taken)
        admit(*taken)

    load.queue._line.serve = served  # type: ignore[method-assign]
    load.run(*asked)
    assert order[10:] == ["ttft", "latency", "throughput"]


def test_quick_requests_and_others_go_to_different_engines() -> None:
    load = Load(2)
    given = [*several(2), *several(8, objective="throughput")]
    loads: list[list[tuple[int, int]]] = []
    admit = load.queue._admit

    def admitted() -> None:
        admit()
        loads.append([(each.running, each.quick) for each in load.queue.instances])

    load.queue._admit = admitted  # type: ignore[method-assign]
    assert load.run(*given) == pytest.approx(OUTPUT, abs=0.1)
    assert [(8, 0), (2, 2)] in (sorted(found, reverse=True) for found in loads)


def test_an_instance_is_kept_for_a_quick_request_while_others_go_on() -> None:
    """Both engines are full, and more waits than they take: the quick one begins when one engine has drained."""
    load = Load(2)
    jobs = several(20, objective="throughput")
    late = [(1.0, {"objective": "throughput"})] * 20
    load.run(*jobs, *late, (2.0, {"name": "quick"}))
    assert load.done.index("quick") <= 31  # beside the second ten of the other engine, and one of its own
    load = Load(2, latency=None)
    load.run(*jobs, *late, (2.0, {"name": "quick"}))
    assert load.done.index("quick") >= 38


def test_a_large_quick_request_is_not_passed_by_smaller_ones() -> None:
    load = Load()

    async def main() -> None:
        running = [asyncio.create_task(load.ask(f"running {i}")) for i in range(2)]
        await asyncio.sleep(1)
        tokens = load.engine.encode("large " + "word " * (3 * ROOM))

        async def large() -> None:
            async for _ in load.queue.generate(tokens, Sampling(max_tokens=OUTPUT)):
                pass
            load.done.append("large")

        waiting = [asyncio.create_task(large())]
        await asyncio.sleep(1)
        waiting += [asyncio.create_task(load.ask(f"small {i}")) for i in range(4)]
        await asyncio.gather(*running, *waiting)

    virtual.run(main())
    assert load.done[2] == "large"  # it runs alone


def test_quick_requests_do_not_starve_others() -> None:
    load = Load()
    stream = [(float(i), {"name": f"quick {i}"}) for i in range(80)]  # two run at a time, each for ten seconds
    load.run(*stream, (5.0, {"name": "job", "objective": "throughput"}))
    assert load.done.index("job") <= 3 * PATIENCE


def note(value: Any) -> Any:
    noted.append(request_context.objective.get())
    return value


noted: list[str] = []


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("how", ["options", "metadata", "identity"])
def test_calls_say_what_they_want(how: str, sync: bool) -> None:
    noted.clear()
    chain = RunnableLambda(note) | RunnableLambda(note)
    options: dict[str, Any] = {"objective": "throughput"} if how == "options" else {}
    config: Any = {"metadata": {"fineflow_objective": "throughput"}} if how == "metadata" else None
    fast = fineflow.optimize(chain, strict=True, eager=True, **options)
    with ExitStack() as around:
        if how == "identity":
            around.enter_context(fineflow.identity(objective="throughput"))
        assert (fast.invoke(1, config) if sync else asyncio.run(fast.ainvoke(1, config))) == 1
    assert noted == ["throughput"] * 2
    assert request_context.objective.get() == "latency"


def test_metadata_counts_before_options() -> None:
    noted.clear()
    fast = fineflow.optimize(RunnableLambda(note) | RunnableLambda(note), objective="throughput", eager=True)
    fast.invoke(1, {"metadata": {"fineflow_objective": "ttft"}})
    assert noted == ["ttft"] * 2


@pytest.mark.parametrize(
    "said",
    [
        lambda: fineflow.identity(objective="speed").__enter__(),
        lambda: fineflow.optimize(RunnableLambda(str), objective="speed"),
        lambda: fineflow.optimize(RunnableLambda(note) | RunnableLambda(note), eager=True).invoke(
            1, {"metadata": {"fineflow_objective": "speed"}}
        ),
    ],
)
def test_other_objectives_are_refused(said: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="'speed'") as raised:
        said()
    assert all(repr(name) in str(raised.value) for name in OBJECTIVES)
