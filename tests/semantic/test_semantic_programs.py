"""Programs: what runs together, when, as one query, and with which prefills; all in virtual time."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from typing import Any

import pytest
from semantic_kit import engine, now, timed, watched

import fineflow
from fineflow.adapters.semantic import lowering
from fineflow.engines import EmulatedLLM
from fineflow.ir import Op
from fineflow.runtime import events
from fineflow.runtime.queues.llm_queue import LLMQueue
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.leaks import Left, settled


@fineflow.semantic_function
def summarize(text: Any) -> None:
    """Summarize: {{input:text}} Summary: {{output:summary}}"""


@fineflow.semantic_function
def combine(parts: Any) -> None:
    """Combine {{input:parts}} Whole: {{output:whole}}"""


@pytest.fixture
def llm() -> Any:
    made = engine(lambda prompt: f"{len(prompt.split())}w")
    fineflow.semantic_engine(made)
    yield made
    fineflow.semantic_engine(None)


def test_independent_requests_run_together_and_dependent_ones_follow_at_once(llm: EmulatedLLM) -> None:
    async def main() -> str:
        parts = [summarize(f"part {i}") for i in range(4)]
        return await combine(parts)  # type: ignore[no-any-return]

    ran = timed(main())
    assert ran.value == "6w"  # Combine 4w 4w 4w 4w Whole:
    # Two iterations, one for each level, and their prompts: the second begins in the turn in which the first has ended.
    assert ran.seconds == pytest.approx(2 + 0.01 * (4 * 4 + 6), abs=1e-3)


def test_a_chain_never_goes_back_to_the_client(llm: EmulatedLLM) -> None:
    """Each request begins in the iteration of the engine after the one in which the last has ended."""

    async def main() -> None:
        value: Any = "start"
        for _ in range(5):
            value = summarize(value)
        assert await value == "3w"
        assert now() == pytest.approx(5 + 0.01 * 5 * 3, abs=1e-3)

    timed(main())


def test_sync_code_gets_concurrency_without_asyncio(left_before: Left) -> None:
    gate = Gate()
    llm = GatedLLM(lambda prompt: f"<{prompt}>", gate=gate)
    parts = [summarize.on(llm)(f"part {i}") for i in range(3)]  # type: ignore[arg-type]
    whole = combine.on(llm)(parts)  # type: ignore[arg-type]
    assert whole.start() is whole
    gate.wait_arrived(3)  # all at once, while this thread does something else
    assert not whole.done()
    gate.open()
    assert whole.get() == "<Combine " + "\n\n".join(f"<Summarize: part {i} Summary:>" for i in range(3)) + " Whole:>"
    assert [each.get() for each in parts] == [f"<Summarize: part {i} Summary:>" for i in range(3)]
    assert not settled(before=left_before)


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
def test_get_blocks_for_as_long_as_the_graph_takes(llm: EmulatedLLM) -> None:
    def program() -> str:
        return combine([summarize("a"), summarize("b")]).get()  # type: ignore[no-any-return]

    assert virtual_threads.run(program).seconds == pytest.approx(2 + 0.01 * (2 * 3 + 4), abs=1e-3)


def test_calls_made_later_read_what_is_still_being_written(llm: EmulatedLLM) -> None:
    async def main() -> str:
        first = summarize("a")
        first.start()
        await asyncio.sleep(0.5)
        second = combine(first)
        assert await second == "3w"
        assert now() == pytest.approx(2 + 0.06, abs=1e-3)
        return await combine([first, second, first])  # of values that are there  # type: ignore[no-any-return]

    assert timed(main()).value == "5w"


def test_calls_whose_variables_nobody_refers_to_are_not_made() -> None:
    llm = GatedLLM("ok")
    function = summarize.on(llm)  # type: ignore[arg-type]
    function("dropped")
    kept = function("kept")
    gc.collect()
    assert kept.get() == "ok"
    assert llm.meter.labels == ["Summarize: kept Summary:"]


def test_a_program_is_of_one_thread_or_task_and_may_read_those_of_others(left_before: Left) -> None:
    llm = GatedLLM("ok")
    function = summarize.on(llm)  # type: ignore[arg-type]
    mine, found = function("mine"), list[Any]()
    thread = threading.Thread(target=lambda: found.append(function("theirs")))
    thread.start()
    thread.join()
    assert mine.get() == "ok"
    assert llm.meter.labels == ["Summarize: mine Summary:"]  # theirs is not submitted by this
    assert combine.on(llm)(found[0]).get() == "ok"  # type: ignore[arg-type]
    assert llm.meter.labels[1:] == ["Summarize: theirs Summary:", "Combine ok Whole:"]

    async def other() -> Any:
        return function("other task")

    async def main() -> str:
        asked = function("this task")
        left = await asyncio.create_task(other())
        assert await asked == "ok"
        assert not left.done()
        return await left  # type: ignore[no-any-return]

    assert asyncio.run(main()) == "ok"
    assert not settled(before=left_before)


def test_a_program_is_one_query_with_its_identity(llm: EmulatedLLM) -> None:
    llm.capacity = 10_000
    seen, _queue = watched(llm)

    async def main() -> None:
        with fineflow.identity(tenant="ann", priority=2):
            whole = combine([summarize("a"), summarize("b")])
            await whole
            await combine(whole)  # a call that reads a value of the program is part of it
        await summarize("c")

    timed(main())
    assert [each.tenant for each in seen] == ["ann"] * 4 + [""]
    assert [each.priority for each in seen] == [2] * 4 + [0]
    assert len({each.query for each in seen[:4]}) == 1
    assert seen[4].query != seen[0].query
    assert len({each.started for each in seen[:4]}) == 1
    assert seen[0].depth > seen[2].depth


def test_a_program_inside_a_call_belongs_to_it(llm: EmulatedLLM) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.runnables import RunnableLambda

    llm.capacity = 10_000
    seen, _queue = watched(llm)

    async def step(text: str) -> str:
        return await summarize(text)  # type: ignore[no-any-return]

    chain = fineflow.optimize(RunnableLambda(step) | RunnableLambda(step))
    timed(chain.ainvoke("x", {"metadata": {"fineflow_tenant": "bo"}}))
    assert [each.tenant for each in seen] == ["bo", "bo"]
    assert len({each.query for each in seen}) == 1


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"whole": "latency"}, ["latency"] * 3),
        ({"whole": "throughput"}, ["throughput"] * 3),
        ({"whole": "throughput", "first": "tpot"}, ["tpot", "throughput", "throughput"]),
        ({"first": "throughput", "whole": "ttft"}, ["ttft"] * 3),
        ({}, ["latency"] * 3),
    ],
)
def test_objectives_reach_every_request_that_a_value_needs(
    llm: EmulatedLLM, asked: dict[str, str], wanted: list[str]
) -> None:
    llm.capacity = 10_000
    seen, _queue = watched(llm)

    async def main() -> None:
        first, second = summarize("a"), summarize("b")
        whole = combine([first, second])
        variables = {"first": first, "whole": whole}
        for name, objective in asked.items():
            variables[name]._objective = None
            variables[name].start(objective=objective)
        await whole

    timed(main())
    assert [each.objective for each in seen] == wanted
    with pytest.raises(ValueError, match=r"summarize\.summary\.get\(objective=\.\.\.\) is one of 'latency'"):
        summarize("a").get(objective="speed")


@pytest.mark.parametrize("same", [True, False])
def test_a_beginning_is_prefilled_while_another_engine_writes_the_rest(same: bool) -> None:
    """On the engine that writes the rest it would slow that, and pay nothing."""
    writer = engine(lambda prompt: "w " * 20)
    judging = writer if same else engine(lambda prompt: "fine", name="judge")
    guide = "g " * 640

    @fineflow.semantic_function(engine=writer)
    def write(topic: str) -> None:
        """Write about {{input:topic}}: {{output:text}}"""

    @fineflow.semantic_function(engine=judging)
    def judge(guide: str, text: Any) -> None:
        """Judge by {{input:guide}} this text: {{input:text}} Verdict: {{output:verdict}}"""

    async def main() -> str:
        verdict = judge(guide, write("bridges"))
        told = str(fineflow.explain(verdict, graphs=True))
        await verdict
        return told

    seen = list[events.Interval]()
    events.listen(seen.append)
    try:
        told = timed(main()).value
    finally:
        events.unlisten(seen.append)
    by_label = {each.label: each for each in seen}
    if same:
        assert "emulated-llm itself writes what it waits for, and would be slowed by as much" in " ".join(told.split())
        assert _STEPS[0] not in by_label
        return
    assert "what comes before {text} is prefilled at once" in " ".join(told.split())
    ahead, written, judged = (by_label[name] for name in _STEPS)
    assert ahead.tokens is not None and ahead.tokens.prompt == 640
    assert ahead.end < written.end - 10  # while the other request was decoding
    assert judged.tokens is not None and judged.tokens.cached == 640


_STEPS = ("judge.verdict.partial_prefill", "write.text.decode", "judge.verdict.decode")


def test_what_readers_of_one_text_share_is_computed_once_when_the_text_is_there() -> None:
    llm = engine(lambda prompt: "ok")

    @fineflow.semantic_function(engine=llm)
    def write(topic: str) -> None:
        """Write about {{input:topic}}: {{output:text}}"""

    @fineflow.semantic_function(engine=llm)
    def judge(guide: str, text: Any, aspect: str) -> None:
        """Judge by {{input:guide}} this text: {{input:text}} Its {{input:aspect}} is {{output:verdict}}"""

    async def main() -> list[Op]:
        text = write("bridges")
        verdicts = [judge("g " * 640, text, f"aspect {i}") for i in range(8)]
        plan = fineflow.explain(text).e_graph or ()
        assert await asyncio.gather(*verdicts) == ["ok"] * 8
        return [p.op for p in plan if p.op in (Op.DECODE, Op.PARTIAL_PREFILL)]

    ran = timed(main())
    assert ran.value == [Op.DECODE] * 9  # nothing before the text, which it would slow
    assert ran.seconds < 1 + 1 + 6.4 + 1 + 0.01 * 8 * 24


def test_a_beginning_that_requests_share_is_computed_once() -> None:
    llm = engine(lambda prompt: "ok")
    book = "b " * 1600

    @fineflow.semantic_function(engine=llm)
    def ask(book: str, question: str) -> None:
        """Book: {{input:book}} Question: {{input:question}} Answer: {{output:answer}}"""

    async def main() -> None:
        answers = [ask(book, f"question {i}") for i in range(8)]
        assert await asyncio.gather(*answers) == ["ok"] * 8

    # 17 s for the beginning, then 1 s and 0.2 s or so for the rest of each; each by itself would take 16 s more.
    assert timed(main()).seconds < 1 + 16 + 1 + 0.01 * 8 * 24


def test_programs_of_one_shape_are_planned_once(llm: EmulatedLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Any] = []
    plan = lowering._plan
    monkeypatch.setattr(lowering, "_plan", lambda shape: planned.append(shape) or plan(shape))

    async def main(text: str, count: int) -> str:
        return await combine([summarize(f"{text} {i}") for i in range(count)])  # type: ignore[no-any-return]

    for text, count in (("a", 2), ("b", 2), ("c", 3), ("d", 2)):
        timed(main(text, count))
    assert len(planned) == 2


def test_plans_keep_no_engine_alive() -> None:
    llm = GatedLLM("ok")

    @fineflow.semantic_function(engine=llm)
    def say() -> None:
        """Say {{output:text}}"""

    assert say().get() == "ok"
    gone = weakref.ref(llm)
    del llm, say
    wait_until(lambda: gc.collect() >= 0 and gone() is None)


def test_explain_and_timeline_show_a_program(llm: EmulatedLLM) -> None:
    async def main() -> Any:
        parts = [summarize("a"), summarize("b")]
        whole = combine([parts[0].regex(r"\d"), parts[1]])
        before = fineflow.explain(whole, graphs=True)
        with fineflow.record() as recorder:
            await whole
        return before, fineflow.explain(whole, last_run=True), recorder.timeline()

    before, after, timeline = timed(main()).value
    text = str(before)
    assert "Plan for the program of combine.whole" in text
    assert (
        "summarize~2.summary.decode  does not wait for summarize.summary.decode, whose result it does not use" in text
    )
    assert "What starts earlier than in program order" in text
    assert "stock" not in text
    assert "parse(text=" in text
    assert "Last run: get took" in str(after)
    assert "program order" in after.to_html()
    events = json.loads(timeline.json())["traceEvents"]
    assert events[0]["args"] == {"name": "fineflow: SemanticProgram.get"}
    steps = {event.get("args", {}).get("step") for event in events}
    assert {"summarize.summary.decode", "summarize~2.summary.decode", "combine.whole.decode"} <= steps
    with pytest.raises(ValueError, match=r"expects a variable whose program has run; get summarize\.summary first"):
        fineflow.explain(summarize("x"), last_run=True)


def test_the_queue_is_that_of_the_engine(llm: EmulatedLLM) -> None:
    """A program and other users of an engine meet in one queue."""
    from fineflow.runtime.queues.llm_queue import llm_queue_of

    queue = llm_queue_of(llm)
    assert isinstance(queue, LLMQueue)

    async def main() -> int:
        summarize("a").start()
        await asyncio.sleep(0.5)
        return queue.running

    assert timed(main()).value == 1
