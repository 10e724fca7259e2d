"""The graph scheduler on hand-made graphs: what starts when, what fails with what, and what is left behind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from graphs import by_stock, graph, new_call, run, step

from fineflow.ir import Op
from fineflow.runtime.call.executor import Execution, Failed
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.queues.request_context import depth, query
from fineflow.testing.gates import Gate, Meter


def noting(log: list[str], name: str, value: Any = None) -> Callable[..., Any]:
    def does(*_: Any) -> Any:
        log.append(name)
        return name if value is None else value

    return does


def failing(error: BaseException) -> Callable[..., Any]:
    def does(*_: Any) -> Any:
        raise error

    return does


def waiting(gate: Gate, meter: Meter | None = None, value: Any = None) -> Callable[..., Any]:
    async def does(*args: Any) -> Any:
        with (meter or Meter()).work():
            await gate.wait()
        return value if value is not None else args

    return does


@pytest.fixture(autouse=True)
async def nothing_is_left() -> Any:
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() - {asyncio.current_task()} <= before


async def test_trivial_primitives_run_inline_in_program_order() -> None:
    log: list[str] = []
    made = graph(
        step("a", "input", does=noting(log, "a")),
        step("b", "input", does=noting(log, "b")),
        step("c", "b", does=noting(log, "c")),
        step("d", "a", "c", does=lambda *values: values),
    )
    call = new_call()
    execution = Execution(made, call, {"input": 1})
    execution.start()
    assert execution.values["d"] == ("a", "c")  # without a turn of the loop
    assert log == ["a", "b", "c"]
    assert not call.tasks
    await call.aclose()


async def test_a_long_chain_needs_no_recursion() -> None:
    names = ["input", *(f"p{i}" for i in range(10_000))]
    made = graph(*(step(name, before, does=lambda x: x + 1) for before, name in itertools.pairwise(names)))
    assert await run(made, 0) == 10_000


async def test_a_long_chain_fails_without_recursion() -> None:
    names = [f"p{i}" for i in range(10_000)]
    first = step("p0", "input", does=failing(ValueError("first")))
    rest = (step(name, before, does=lambda x: x) for before, name in itertools.pairwise(names))
    result = await run(graph(first, *rest))
    assert isinstance(result, Failed) and str(result.error) == "first"


async def test_a_long_chain_of_tasks_needs_no_recursion() -> None:
    async def more(x: int) -> int:
        return x + 1

    names = ["input", *(f"p{i}" for i in range(2_000))]
    made = graph(*(step(name, before, does=more) for before, name in itertools.pairwise(names)))
    assert await run(made, 0) == 2_000


async def test_independent_tasks_overlap_and_dependent_ones_wait() -> None:
    gate, meter = Gate(), Meter()
    made = graph(
        step("a", "input", does=waiting(gate, meter, "a")),
        step("b", "input", does=waiting(gate, meter, "b")),
        step("c", "a", "b", does=waiting(gate, meter)),
    )
    running = asyncio.ensure_future(run(made))
    await gate.arrived(2)
    assert meter.in_flight == 2
    gate.let(2)
    await gate.arrived(3)
    assert meter.in_flight == 1
    gate.let(1)
    assert await running == ("a", "b")


async def test_order_edges_hold_back_without_data() -> None:
    gate, log = Gate(), []
    made = graph(
        step("write", "input", does=waiting(gate)),
        step("read", "input", does=noting(log, "read"), after=("write",)),
    )
    running = asyncio.ensure_future(run(made))
    await gate.arrived()
    assert log == []
    gate.open()
    assert await running == "read"


async def test_a_failure_stops_its_branch_only() -> None:
    log: list[str] = []
    call = new_call()
    made = graph(
        step("bad", "input", does=failing(ValueError("bad"))),
        step("behind", "bad", does=noting(log, "behind")),
        step("ordered behind", "input", does=noting(log, "ordered behind"), after=("bad",)),
        step("beside", "input", does=noting(log, "beside")),
    )
    execution = Execution(made, call, {"input": 1})
    execution.start()
    assert log == ["beside"]
    assert execution.values["behind"] == execution.values["ordered behind"] == execution.values["bad"]
    assert (await call.aclose()).surprises == ("bad: ValueError: bad",)


@pytest.mark.parametrize("error", [ValueError("x" * 1000), SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("where", ["inline", "task", "work"])
async def test_whatever_a_component_raises_the_loop_survives(error: BaseException, where: str) -> None:
    async def later(*_: Any) -> Any:
        raise error

    op = Op.DECODE if where == "work" else Op.RENDER
    made = graph(step("bad", "input", does=failing(error) if where == "inline" else later, op=op))
    call = new_call(sync=True)
    execution = Execution(made, call, {"input": 1})
    execution.start()
    while call.tasks:
        await asyncio.wait(call.tasks)
    if where == "work":
        entry, mine = call.claims.claim("bad", (1,), lambda entry: True)
        assert not mine
        with pytest.raises(type(error)) as caught:
            await asyncio.shield(entry.done)
        assert caught.value is error or isinstance(error, asyncio.CancelledError)
    summary = await call.aclose()
    assert all(len(text) <= 200 for text in summary.surprises)


async def test_keys_of_records() -> None:
    made = graph(
        step("record", "input", does=lambda x: {"a": x}), step("c", "record[a]", does=lambda a: {"d": a}), output="c[d]"
    )
    assert await run(made, 5) == 5


async def test_a_missing_key_is_a_failure_of_who_reads_it() -> None:
    made = graph(step("record", "input", does=lambda x: {"a": x}), step("b", "record[nothing]", does=lambda b: b))
    assert isinstance((await run(made)).error, LeftToStock)
    assert isinstance((await run(graph(step("r", "input", does=lambda x: {}), output="r[x]"))).error, LeftToStock)


async def test_a_future_is_a_value_to_come() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(run(graph(step("a", "input", does=lambda _: future))))
    await asyncio.sleep(0)
    future.set_result(7)
    assert await running == 7


async def test_the_end_of_a_primitive_is_told_also_where_it_was_never_begun() -> None:
    made = graph(
        by_stock("user", "input"),
        step("good", "input", does=lambda _: 1),
        step("bad", "user", does=failing(ValueError("bad"))),
        step("behind", "bad", does=lambda _: 1),
    )
    call, told = new_call(), []
    execution = Execution(made, call, {"input": 1})
    execution.start()
    for name in ("good", "behind"):
        execution.ended(name, lambda name=name: told.append(name))
    assert told == ["good"]
    call.feed("user", 1)
    assert told == ["good", "behind"]
    await call.aclose()


# What stock runs.


async def test_fed_before_and_after_it_is_needed() -> None:
    gate = Gate()
    made = graph(
        step("slow", "input", does=waiting(gate, value="slow")),
        by_stock("user", "slow"),
        step("both", "slow", "user", does=lambda *values: values),
    )
    early = new_call()
    running = asyncio.ensure_future(run(made, call=early))
    await gate.arrived()
    early.feed("user", "fed")
    gate.open()
    assert await running == ("slow", "fed")

    late = new_call()
    execution = Execution(made, late, {"input": 1})
    execution.start()
    while "slow" not in execution.values:
        await asyncio.sleep(0)
    assert "both" not in execution.values
    late.feed("user", "fed late")
    assert execution.values["both"] == ("slow", "fed late")
    late.feed("user", "a second time, as a retry would")
    assert execution.values["both"] == ("slow", "fed late")
    await late.aclose()


async def test_what_nobody_waits_for_may_be_fed() -> None:
    call = new_call()
    call.feed("nobody", 1)
    assert not call.waiting
    await call.aclose()


async def test_after_the_end_feeding_starts_nothing() -> None:
    log: list[str] = []
    call = new_call()
    execution = Execution(
        graph(by_stock("user", "input"), step("a", "user", does=noting(log, "a"))), call, {"input": 1}
    )
    execution.start()
    waits = call.waiting["user"][0]
    await call.aclose()
    call.feed("user", 1)
    waits(1)
    assert log == []


# Maps.


def doubled(**more: Any) -> Any:
    body = graph(step("twice", "item", **{"does": lambda x: 2 * x, **more}), inputs=("item",))
    return lambda items: step("map", op=Op.MAP, items=items, body=body, depth=3)


async def test_map_over_a_list_keeps_the_order_and_overlaps() -> None:
    gates = {n: Gate() for n in (1, 2, 3)}

    async def twice(n: int) -> int:
        await gates[n].wait()
        return 2 * n

    running = asyncio.ensure_future(run(graph(doubled(does=twice)("input")), [1, 2, 3]))
    for n in (3, 1, 2):
        await gates[n].arrived()
    for n in (3, 1, 2):
        gates[n].open()
    assert await running == [2, 4, 6]
    assert await run(graph(doubled()("input")), []) == []


async def test_map_over_a_stream_starts_with_the_first_item() -> None:
    items: Stream[int] = Stream()
    log: list[int] = []

    def note(n: int) -> int:
        log.append(n)
        return n

    made = graph(step("lines", "input", does=lambda _: items), doubled(does=note)("lines..."))
    running = asyncio.ensure_future(run(made))
    for n in (1, 2):
        items.put(n)
        while log != list(range(1, n + 1)):
            await asyncio.sleep(0)
    items.close()
    assert await running == [1, 2]


async def test_a_map_fails_with_its_first_element_and_lets_the_others_run() -> None:
    log: list[int] = []

    def each(n: int) -> int:
        log.append(n)
        if n % 2:
            raise ValueError(n)
        return n

    call = new_call()
    result = await run(graph(doubled(does=each)("input")), [0, 1, 2, 3], call)
    assert isinstance(result.error, ValueError) and result.error.args == (1,)
    assert log == [0, 1, 2, 3]


async def test_a_map_over_a_stream_that_fails_fails() -> None:
    items: Stream[int] = Stream()
    items.put(1)
    items.close(OSError("cut"))
    made = graph(step("lines", "input", does=lambda _: items), doubled()("lines..."))
    assert isinstance((await run(made)).error, OSError)


async def test_a_map_whose_body_does_nothing() -> None:
    body = graph(output="item", inputs=("item",))
    assert await run(graph(step("map", op=Op.MAP, items="input", body=body)), [1, 2]) == [1, 2]


async def test_bodies_see_values_from_outside_and_maps_nest() -> None:
    inner = graph(step("sum", "item", "outer", does=lambda a, b: a + b), inputs=("item", "outer"))
    outer = graph(
        step("inner", op=Op.MAP, items="item", outer="outer", body=inner), inputs=("item", "outer"), output="inner"
    )
    made = graph(
        step("ten", "input", does=lambda _: 10), step("map", op=Op.MAP, items="input", outer="ten", body=outer)
    )
    assert await run(made, [[1], [2, 3]]) == [[11], [12, 13]]


# Limits, priorities, context.


async def test_max_concurrency_bounds_tasks_and_claimable_work_together() -> None:
    gate, meter = Gate(), Meter()
    steps = [step(f"p{i}", "input", does=waiting(gate, meter), op=Op.DECODE if i % 2 else Op.RENDER) for i in range(6)]
    running = asyncio.ensure_future(
        run(graph(*steps, step("all", *(p.name for p in steps), does=lambda *_: "done")), call=new_call(limit=2))
    )
    for arrived in range(2, 7):
        await gate.arrived(arrived)
        assert meter.in_flight == 2
        gate.let()
    gate.open()
    assert await running == "done"
    assert meter.peak == 2


async def test_a_map_holds_no_place_while_its_elements_work() -> None:
    async def twice(n: int) -> int:
        return 2 * n

    assert await run(graph(doubled(does=twice)("input")), [1, 2, 3], new_call(limit=1)) == [2, 4, 6]


async def test_tasks_know_their_depth_their_query_and_the_callers_context() -> None:
    async def seen(*_: Any) -> tuple[int, str]:
        return depth.get(), query.get()

    made = graph(
        step("a", "input", does=seen, depth=2),
        doubled(does=seen, depth=1)("input"),
        step("b", "a", "map", does=lambda *x: x),
    )
    assert await run(made, [0]) == ((2, "query-1"), [(4, "query-1")])
    assert (depth.get(), query.get()) == (0, "")


# The end.


@pytest.mark.parametrize("limit", [0, 1])
async def test_aclose_cancels_and_waits(limit: int) -> None:
    gate, meter, ended = Gate(), Meter(), []

    async def tidy(*_: Any) -> None:
        try:
            with meter.work():
                await gate.wait()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    steps = [step(f"p{i}", "input", does=tidy, op=Op.DECODE if i else Op.RENDER) for i in range(3)]
    call = new_call(limit=limit)
    Execution(graph(*steps), call, {"input": 1}).start()
    await gate.arrived(1 if limit else 3)
    tasks = set(call.tasks)
    summary = await call.aclose()
    assert all(task.done() for task in tasks) and not call.tasks
    assert meter.in_flight == 0
    assert len(ended) == (1 if limit else 3)
    assert summary.unclaimed == 2
    assert (await call.aclose()).unclaimed == 0  # nothing is left to close


async def test_closed_before_the_first_turn_of_the_loop(recwarn: pytest.WarningsRecorder) -> None:
    log: list[int] = []

    async def never(*_: Any) -> None:
        log.append(1)

    call = new_call(limit=1)
    steps = (step("a", "input", does=never), step("b", "input", does=never, op=Op.DECODE), doubled(does=never)("input"))
    Execution(graph(*steps), call, {"input": [1]}).start()
    entry, _ = call.claims.claim("b", ([1],), lambda entry: True)
    await call.aclose()
    assert log == []
    assert entry.done.done()  # a stock call in the background does not wait for ever
    assert [str(w.message) for w in recwarn if "never awaited" in str(w.message)] == []


async def test_cancelling_aclose_does_not_shorten_it() -> None:
    gate, ended = Gate(), []

    async def slow_to_end(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            ended.append(1)

    call = new_call()
    Execution(graph(step("a", "input", does=slow_to_end)), call, {"input": 1}).start()
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(call.aclose())
    await gate.arrived()
    closing.cancel()
    await asyncio.sleep(0)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not call.tasks


async def test_errors_of_cancelled_work_are_not_reported_as_lost() -> None:
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))

    async def angry(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("while it was cancelled")

    call = new_call()
    Execution(
        graph(step("a", "input", does=angry), step("b", "input", does=angry, op=Op.DECODE)), call, {"input": 1}
    ).start()
    await asyncio.sleep(0)
    await call.aclose()
    del call
    import gc

    gc.collect()
    assert lost == []


async def test_work_spawned_after_the_end_is_cancelled() -> None:
    log: list[int] = []

    async def work() -> None:
        log.append(1)

    call = new_call()
    await call.aclose()
    task = call.spawn(work(), 0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == []


@pytest.fixture(autouse=True)
def no_context_is_left() -> Iterator[None]:
    yield
    assert (depth.get(), query.get()) == (0, "")
