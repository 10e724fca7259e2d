"""The simulation against queueing theory, against the emulated engines, and against the runtime in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from statistics import fmean

import pytest
from tests.capacity import apps

import fineflow
from fineflow.backends.emulated import BatchProfile, LLMProfile
from fineflow.capacity.search import percentile
from fineflow.capacity.simulation import Simulation, SimulationOutcome
from fineflow.capacity.workload import CallShape, Profile, WorkStep
from fineflow.cost_model.costs import costs
from fineflow.testing import virtual

LLM = LLMProfile(iteration=0.02, prefill_token=0.0001, decode_sequence=0.0005)


def poisson(count: int, rate: float, seed: int = 3) -> list[float]:
    chosen = random.Random(seed)
    return list(itertools.accumulate(chosen.expovariate(rate) for _ in range(count)))


def simulated(shape: CallShape, profile: Profile, times: list[float], count: int = 1) -> SimulationOutcome:
    return Simulation({"engine": profile}, {"engine": count}).run((at, shape) for at in times)


def test_the_mean_wait_of_constant_service_is_that_of_an_m_d_1_queue() -> None:
    service, load = 0.1, 0.7
    found = simulated(
        CallShape((WorkStep("one", "engine", items=1),)), BatchProfile(service, 0.0, 1), poisson(40_000, load / service)
    )
    assert found.waits["engine"] == pytest.approx(load * service / (2 * (1 - load)), rel=0.05)
    assert found.busy["engine"] == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize("count", [1, 3])
def test_littles_law_holds(count: int) -> None:
    """The calls under way, from arrivals and ends alone, are as many as the rate times the mean latency."""
    step = WorkStep("answer", "engine", prompt=100, decoded=40)
    times = poisson(2_000, 20.0 * count)
    found = simulated(CallShape((step,)), LLM, times, count)
    changes = sorted([(at, 1) for at in times] + [(at, -1) for at in found.ends])
    area, under_way, before = 0.0, 0, 0.0
    for at, change in changes:
        area += under_way * (at - before)
        under_way, before = under_way + change, at
    assert area / before == pytest.approx(len(times) / before * fmean(found.latencies))
    assert len(found.latencies) == len(times)


def test_more_instances_are_never_worse() -> None:
    steps = (
        WorkStep("embed", "small", items=3),
        WorkStep("answer", "llm", prompt=300, decoded=60, after=((0, 1.0),)),
        WorkStep("rest", seconds=0.1, after=((1, 1.0),)),
    )
    profiles: dict[str, Profile] = {"small": BatchProfile(0.05, 0.02, 8), "llm": LLM}
    times = poisson(1_500, 12.0)
    took = []
    for count in range(1, 7):
        found = Simulation(profiles, dict.fromkeys(profiles, count)).run((at, CallShape(steps)) for at in times)
        took.append((fmean(found.latencies), percentile(found.latencies, 99)))
    for fewer, more in itertools.pairwise(took):
        assert more[0] <= 1.02 * fewer[0] and more[1] <= 1.02 * fewer[1]
    assert took[-1][0] < took[0][0] / 2


def test_a_request_alone_takes_what_its_iterations_take() -> None:
    found = simulated(CallShape((WorkStep("answer", "engine", prompt=3000, decoded=10),)), LLM, [0.0])
    prefill = LLM.seconds(2048, 0) + LLM.seconds(952, 0)
    assert found.first == [pytest.approx(prefill, abs=1e-5)]
    assert found.latencies == [pytest.approx(prefill + 9 * LLM.seconds(0, 1), abs=1e-5)]


def test_what_waits_for_a_part_of_an_answer_begins_before_its_end() -> None:
    first = WorkStep("list", "engine", prompt=10, decoded=100)
    parts = [
        simulated(CallShape((first, WorkStep("use", seconds=5.0, after=((0, share),)))), LLM, [0.0]).latencies[0]
        for share in (0.25, 1.0)
    ]
    assert parts[1] - parts[0] == pytest.approx(75 * LLM.seconds(0, 1), rel=0.01)


@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_it_agrees_with_the_runtime_in_virtual_time(rate: float) -> None:
    costs.forget()
    work = apps.recorded_workload(fineflow.optimize(apps.rag(), strict=True), [apps.asked(i) for i in range(4)])
    times = poisson(60, rate)
    chain = fineflow.optimize(apps.rag(), strict=True)

    async def one(number: int, at: float) -> float:
        await asyncio.sleep(at)
        await chain.ainvoke(apps.asked(100 + number))
        return asyncio.get_running_loop().time() - at

    async def together() -> list[float]:
        return await asyncio.gather(*(one(number, at) for number, at in enumerate(times)))

    measured = virtual.run(together()).value
    counts = dict.fromkeys(work.profiles, 1)
    found = Simulation(work.profiles, counts).run(zip(times, itertools.cycle(work.shapes), strict=False)).latencies
    for percent in (50, 99):
        assert percentile(found, percent) == pytest.approx(percentile(measured, percent), rel=0.06)
    assert fmean(found) == pytest.approx(fmean(measured), rel=0.06)
