"""A CONDITION runs its tests in order and then one arm, on what is known of its arguments so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from graphs import by_stock, graph, new_call, run, step

from fineflow.ir import Effect, Effects, Graph, Op, Primitive
from fineflow.runtime.call.executor import Execution, Failed


def noting(log: list[str], name: str, value: Any = None) -> Callable[..., Any]:
    def does(*_: Any) -> Any:
        log.append(name)
        return name if value is None else value

    return does


def condition(bodies: dict[str, Graph], **args: str) -> Primitive:
    return step("which", op=Op.CONDITION, body={at: replace(g, inputs=tuple(args)) for at, g in bodies.items()}, **args)


def three(log: list[str], one: bool, two: bool, *, reads: str = "x") -> dict[str, Graph]:
    does = {"if 1": one, "then 1": "first", "if 2": two, "then 2": "second", "else": "last"}
    return {at: graph(step("inner", reads, does=noting(log, at, value))) for at, value in does.items()}


@pytest.mark.parametrize(
    ("one", "two", "ran", "value"),
    [
        (True, True, ["if 1", "then 1"], "first"),
        (False, True, ["if 1", "if 2", "then 2"], "second"),
        (False, False, ["if 1", "if 2", "else"], "last"),
    ],
)
async def test_tests_in_order_then_one_arm(one: bool, two: bool, ran: list[str], value: str) -> None:
    log: list[str] = []
    assert await run(graph(condition(three(log, one, two), x="input"))) == value
    assert log == ran


@pytest.mark.parametrize("where", ["if 1", "then 1"])
async def test_the_failure_of_a_test_or_an_arm_is_that_of_the_condition(where: str) -> None:
    log: list[str] = []
    bodies = three(log, True, True)
    error = ValueError("no")

    def fail(_: Any) -> None:
        raise error

    bodies[where] = graph(step("inner", "x", does=fail))
    found = await run(graph(condition(bodies, x="input")))
    assert isinstance(found, Failed)
    assert found.error is error
    assert "else" not in log


async def test_a_test_that_cannot_be_true_or_false() -> None:
    class Odd:
        def __bool__(self) -> bool:
            raise TypeError("neither")

    bodies = {**three([], True, True), "if 1": graph(step("inner", "x", does=lambda _: Odd()))}
    found = await run(graph(condition(bodies, x="input")))
    assert isinstance(found, Failed)
    assert isinstance(found.error, TypeError)


async def test_it_starts_on_what_its_first_test_reads() -> None:
    log: list[str] = []
    bodies = three(log, True, True)
    bodies["then 1"] = graph(
        step("known", "x", does=noting(log, "known")),
        step("late", "y", does=noting(log, "late")),
        step("both", "known", "late", does=lambda *values: values),
    )
    made = graph(by_stock("slow"), condition(bodies, x="input", y="slow"))
    call, done = new_call(), []
    Execution(made, call, {"input": 1}, done.append).start()
    assert log == ["if 1", "known"]
    call.feed("slow", "there")
    assert done == [("known", "late")]
    await call.aclose()


async def test_an_arm_that_gives_what_is_known_later() -> None:
    bodies = {**three([], True, True), "then 1": Graph((), step("", "y").args["arg0"])}
    made = graph(by_stock("slow"), condition(bodies, x="input", y="slow[key]"))
    call, done = new_call(), []
    Execution(made, call, {"input": 1}, done.append).start()
    assert done == []
    call.feed("slow", {"key": "there"})
    assert done == ["there"]
    await call.aclose()


async def test_a_condition_in_an_arm_gets_what_is_known_later() -> None:
    log: list[str] = []
    inner = {**three(log, True, True), "then 1": graph(step("inner", "y", does=lambda y: f"inner {y}"))}
    outer = {**three(log, True, True), "then 1": graph(condition(inner, x="x", y="y"))}
    made = graph(by_stock("slow"), condition(outer, x="input", y="slow"))
    call, done = new_call(), []
    Execution(made, call, {"input": 1}, done.append).start()
    assert log == ["if 1", "if 1"]
    call.feed("slow", "there")
    assert done == ["inner there"]
    await call.aclose()


async def test_what_one_arm_lacks_does_not_hold_up_another() -> None:
    log: list[str] = []
    bodies = {**three(log, False, True), "then 1": graph(step("inner", "y", does=noting(log, "then 1")))}
    assert await run(graph(condition(bodies, x="input[here]", y="input[absent]")), {"here": 1}) == "second"
    bodies["if 1"] = graph(step("inner", "x", does=lambda _: True))
    assert isinstance(await run(graph(condition(bodies, x="input[here]", y="input[absent]")), {"here": 1}), Failed)
    assert "then 1" not in log


async def test_an_opaque_step_that_stock_has_run_before_the_graph_gets_there() -> None:
    """The value is kept for the arm, which nobody knew to be taken when it came."""
    arm = graph(by_stock("own", "x"), step("inner", "own", does=lambda value: f"got {value}"))
    made = graph(by_stock("slow"), condition({**three([], True, True), "then 1": arm}, x="slow"))
    call, done = new_call(), []
    Execution(made, call, {"input": 1}, done.append).start()
    call.feed("own", "early")
    assert done == []
    call.feed("slow", "there")
    assert done == ["got early"]
    assert call.fed == {}
    await call.aclose()


async def test_it_has_ended_when_the_opaque_steps_of_the_arm_have() -> None:
    own = by_stock("own", "x").with_(effects=Effects(Effect.OPAQUE))
    arm = graph(own, step("inner", "x", does=lambda _: "value"))
    made = graph(condition({**three([], True, True), "then 1": arm}, x="input"))
    call, done = new_call(), []
    Execution(made, call, {"input": 1}, done.append).start()
    assert done == []
    call.feed("own", None)
    assert done == ["value"]
    await call.aclose()


async def test_nothing_is_kept_when_the_call_has_ended() -> None:
    call = new_call()
    call.feed("own", object())
    assert call.fed
    await call.aclose()
    call.feed("own", object())
    assert not call.fed
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
