"""The least instances: enough, and none to spare; what is impossible says why."""

from __future__ import annotations

from typing import Any

import pytest

from fineflow.backends.emulated import BatchProfile, LLMProfile
from fineflow.capacity.arrivals import random_arrivals
from fineflow.capacity.search import CapacityPlan, InstanceSearch, Objective, objective
from fineflow.capacity.workload import CallShape, Profile, Workload, WorkStep
from fineflow.errors import UsageError

PROFILES: dict[str, Profile] = {"small": BatchProfile(0.02, 0.005, 8), "llm": LLMProfile(0.02, 0.0001, 0.001)}
STEPS = (
    WorkStep("embed", "small", items=2),
    WorkStep("answer", "llm", prompt=500, decoded=80, after=((0, 1.0),)),
)
WORK = Workload((CallShape(STEPS),), PROFILES)


def search(*objectives: str, rate: float = 60.0, **settings: Any) -> InstanceSearch:
    arrivals = list(random_arrivals(WORK, rate, 60.0))
    return InstanceSearch(WORK, arrivals, [objective(text) for text in objectives], **settings)


def counts(plan: CapacityPlan) -> dict[str, int]:
    return {each.name: each.instances for each in plan.engines}


def test_enough_and_none_to_spare() -> None:
    made = search("p99=3.5", "ttft.p95=0.4")
    plan = made.plan()
    assert not plan.why and all(measured <= each.seconds for each, measured, _ in plan.found)
    for name, count in counts(plan).items():
        if count > 1:
            fewer = counts(plan) | {name: count - 1}
            found = made.simulated(fewer, made.arrivals)
            missed = any(each.of(found)[0] > each.seconds for each in made.objectives)
            assert missed or made.limit(name, count - 1) <= made.rate


def test_a_stricter_objective_needs_no_fewer() -> None:
    loose, strict = (sum(counts(search(text).plan()).values()) for text in ("p99=8", "p99=2.6"))
    assert strict > loose


def test_the_limit_is_that_of_full_batches() -> None:
    made = search("p99=9")
    assert made.limit("small", 3) == pytest.approx(3 * 8 / (0.02 + 8 * 0.005) / 2, rel=0.05)
    plan = made.plan()
    assert plan.bottleneck.name == "llm" and plan.bottleneck.limit > plan.rate


def test_an_objective_below_a_call_alone_is_impossible() -> None:
    plan = search("p99=1").plan()
    assert "cannot be met by any number of instances" in plan.why and "answer 1.7" in plan.why


def test_instances_that_are_given_are_named_if_they_are_too_few() -> None:
    plan = search("p99=4", fixed={"llm": 1}).plan()
    assert counts(plan)["llm"] == 1 and "llm cannot serve" in plan.why


def test_the_price_is_of_all_instances() -> None:
    plan = search("p99=4", prices={"llm": 2.5, "small": 0.5}).plan()
    assert plan.price == pytest.approx(
        sum(each.instances * {"llm": 2.5, "small": 0.5}[each.name] for each in plan.engines)
    )
    assert search("p99=4", prices={"llm": 2.5}).plan().price is None


def test_no_first_token_without_an_answer() -> None:
    work = Workload((CallShape(STEPS[:1]),), {"small": PROFILES["small"]})
    made = InstanceSearch(work, list(random_arrivals(work, 10.0, 30.0)), [objective("ttft.p50=1")])
    assert "none has a first token" in made.plan().why


@pytest.mark.parametrize(
    ("text", "expected"),
    [("p99=2.5", Objective(99, 2.5)), ("ttft.p95=500ms", Objective(95, 0.5, True)), ("P99.9=2s", Objective(99.9, 2.0))],
)
def test_objectives_are_read(text: str, expected: Objective) -> None:
    assert objective(text) == expected


@pytest.mark.parametrize("text", ["", "p99", "99=1", "p100=1", "p0=1", "p99=0", "p99=-1", "p99=1h"])
def test_a_malformed_objective_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a percentile and seconds"):
        objective(text)
