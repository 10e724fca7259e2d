"""Workflows: stock runs them; their parts run sooner, and the requests of runs meet in the queues of engines."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, engine_of, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from workflows.errors import WorkflowCancelledByUser, WorkflowTimeoutError

import fineflow
from fineflow.engines import set_policy
from fineflow.llamaindex import EngineEmbedding
from fineflow.runtime.queues import request_context
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches
from fineflow.testing.gates import Gate, Trap
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeLLM, FakeStore
from fineflow.testing.llamaindex.recording import recording
from fineflow.testing.stalls import held

NOBODY = CallbackManager([])
WAIT = 10  # seconds; only a failing test waits this long


class Asked(Event):
    question: str


class Guide(Workflow):
    """Asks an engine each of several questions, one after the other, and keeps things on itself."""

    def __init__(self, engine: Any, retriever: Any = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.engine, self.retriever = engine, retriever
        self.runs = 0
        self.seen: list[str] = []

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Asked:
        self.runs += 1
        await ctx.store.set("left", ev.get("more", 0))
        return Asked(question=ev.get("question"))

    @step
    async def ask(self, ctx: Context, ev: Asked) -> Asked | StopEvent:
        self.seen.append(ev.question)
        ctx.write_event_to_stream(ev)
        said = await self.said(ev.question)
        left = await ctx.store.get("left")
        if not left:
            return StopEvent(result=said)
        await ctx.store.set("left", left - 1)
        return Asked(question=f"{ev.question} {left}")

    async def said(self, question: str) -> str:
        return str(await self.engine.aquery(question))


def guide(mode: str = "accumulate", llm: Callable[[], Any] | None = None, **settings: Any) -> Guide:
    return Guide(engine_of(mode, llm)(NOBODY), **settings)


def observed(flow: Any, **given: Any) -> dict[str, Any]:
    """What a caller can see of a run."""

    async def run() -> Any:
        handler = flow.run(question=QUESTION, **given)
        events = [event async for event in handler.stream_events()]
        try:
            result: Any = await handler
        except Exception as error:
            result = [type(error).__name__, str(error)]
        shown = [re.sub(r"elapsed_seconds=[0-9.e-]+", "", repr(event)) for event in events]
        return shown, result, await handler.ctx.store.get("left", default=None)

    with recording() as recorder:
        events, result, left_over = asyncio.run(run())
    return {"events": events, "result": result, "left": left_over, "spans": recorder.tree(False)}


def test_a_run_is_that_of_stock() -> None:
    mine, theirs = guide(), guide()
    optimized: Any = fineflow.optimize(mine, strict=True)
    assert isinstance(optimized, Guide)
    assert observed(optimized, more=2) == observed(theirs, more=2)
    assert (mine.runs, mine.seen) == (theirs.runs, theirs.seen)
    assert optimized.runs == 1
    assert type(mine.engine).__name__ == "RetrieverQueryEngine"
    assert type(mine.engine) is type(optimized.engine)
    assert "stock runs it; what it calls runs ahead by itself" in str(fineflow.explain(optimized, graphs=True))


def test_a_run_that_fails() -> None:
    def trapped() -> Any:
        return FakeLLM(gate=Trap(ConnectionError("gone"), at=2), context_window=900, num_output=60)

    stock, ours = observed(guide(llm=trapped)), observed(fineflow.optimize(guide(llm=trapped), strict=True))
    assert stock["result"] == ["ConnectionError", "gone"]
    assert ours["result"] == stock["result"]
    assert ours["events"] == stock["events"]


def test_parts_run_sooner() -> None:
    flow = guide("tree_summarize")
    optimized: Any = fineflow.optimize(flow, strict=True)
    observed(optimized)
    assert optimized._self_held["engine"]._self_last is not None
    flow.engine = engine_of("tree_summarize")(NOBODY)  # counts from now on
    observed(optimized)
    assert optimized._self_held["engine"].__wrapped__ is flow.engine
    assert optimized._self_held["engine"]._self_last is not None


def test_attributes_that_are_changed_in_a_step_are_the_workflows() -> None:
    class Changing(Guide):
        async def said(self, question: str) -> str:
            self.note = super().said.__name__
            self.engine, before = self.retriever, self.engine
            self.engine = before
            del self.retriever
            return await super().said(question)

    flow = Changing(engine_of("accumulate")(NOBODY))
    optimized: Any = fineflow.optimize(flow, strict=True)
    expected = observed(guide())["result"]
    assert observed(optimized)["result"] == expected
    assert flow.note == "said"
    assert not hasattr(flow, "retriever")
    assert type(flow.engine).__name__ == "RetrieverQueryEngine"


async def test_a_context_goes_from_run_to_run() -> None:
    flow = guide()
    optimized: Any = fineflow.optimize(flow, strict=True)
    context = Context(optimized)
    await optimized.run(question=QUESTION, ctx=context, more=1)
    assert await context.store.get("left") == 0
    again = Context.from_dict(optimized, context.to_dict())
    handler = optimized.run(question=QUESTION, ctx=again)
    assert await handler == str(await flow.engine.aquery(QUESTION))
    assert handler.is_done()
    assert flow.runs == 2


async def test_a_run_that_is_cancelled_leaves_nothing_at_work() -> None:
    gate = Gate()
    llm = FakeLLM(answers=answer, gate=gate, context_window=900, num_output=60)
    optimized: Any = fineflow.optimize(guide("tree_summarize", lambda: llm), strict=True)
    before: Any = None
    for _ in range(2):
        before = left()
        handler = optimized.run(question=QUESTION)
        await gate.arrived(gate.arrivals + 1)
        await handler.cancel_run()
        with pytest.raises(WorkflowCancelledByUser):
            await handler
        await llm.meter.idle()
        del handler
    await asyncio.to_thread(lambda: None)
    assert not await asyncio.to_thread(settled, before=before)


async def test_a_workflow_keeps_its_own_timeout() -> None:
    gate = Gate()
    llm = FakeLLM(answers=answer, gate=gate)
    optimized: Any = fineflow.optimize(guide(llm=lambda: llm, timeout=0.3), strict=True)
    with pytest.raises(WorkflowTimeoutError):
        await optimized.run(question=QUESTION)
    await llm.meter.idle()
    with pytest.raises(ValueError, match=r"have one of their own: Guide\(timeout=...\)"):
        fineflow.optimize(guide(), timeout=1.0)


@pytest.mark.parametrize("flow", ["limited", "slots", "no parts"])
def test_where_stock_runs_the_users_own_object(flow: str) -> None:
    class Slots(Guide):
        __slots__ = ("more",)

    engine = engine_of("accumulate")(NOBODY)
    made = {
        "limited": lambda: Guide(engine, num_concurrent_runs=1),
        "slots": lambda: Slots(engine),
        "no parts": lambda: Guide(None),
    }[flow]()
    optimized: Any = fineflow.optimize(made, strict=True)
    assert optimized._self_runs() is made
    if flow == "limited":
        assert observed(optimized)["result"] == observed(guide())["result"]


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
def test_the_event_loop_is_not_held_by_parts() -> None:
    engine = index(BlockingEmbedding(latency=0.5), FakeStore()).as_query_engine(
        llm=BlockingLLM(answers=answer, latency=0.5), similarity_top_k=2
    )
    flow = Guide(engine)
    optimized: Any = fineflow.optimize(flow, strict=True)

    async def run(guide: Any) -> Any:
        return await guide.run(question=QUESTION)

    seen = held(lambda: run(optimized))
    assert seen.value.startswith("The answer")
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"
    assert held(lambda: run(flow), warm=False).seconds >= 0.5


# Queues of engines


class Embedding(Workflow):
    """Embeds a text; twice, if it is told to."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.queries: list[str] = []

    @step
    async def embed(self, ev: StartEvent) -> StopEvent:
        self.queries.append(request_context.query.get())
        vectors = [await self.model.aget_query_embedding(text) for text in ev.get("texts")]
        return StopEvent(result=len(vectors))


async def waiting(model: EngineEmbedding, count: int) -> None:
    async with asyncio.timeout(WAIT):
        while model._queue.waiting < count:
            await asyncio.sleep(0)


async def test_requests_of_runs_at_the_same_time_form_batches() -> None:
    gate = Gate()
    backend = GatedBatches(max_batch=8, gate=gate)
    model = EngineEmbedding(backend)
    optimized: Any = fineflow.optimize(Embedding(model), strict=True)
    first = optimized.run(texts=["first"])
    await gate.arrived(1)
    others = [optimized.run(texts=[f"text {i}"]) for i in range(6)]
    await waiting(model, 6)
    gate.open()
    assert [await run for run in (first, *others)] == [1] * 7
    assert backend.meter.calls == 2  # the first text, and the six others as one batch


async def test_requests_of_a_run_are_known_as_one_query() -> None:
    flow = Embedding(EngineEmbedding(GatedBatches()))
    optimized: Any = fineflow.optimize(flow, strict=True)
    await asyncio.gather(*(optimized.run(texts=["a", "b"]) for _ in range(3)))
    assert len(set(flow.queries)) == 3
    assert all(name.startswith("run-") for name in flow.queries)
    assert request_context.query.get() == ""
    await flow.run(texts=["a"])
    assert flow.queries[-1] == ""


@pytest.mark.parametrize(("policy", "expected"), [("app_fifo", ["early", "late"]), ("fifo", ["late", "early"])])
async def test_a_policy_can_finish_first_the_run_that_began_first(policy: str, expected: list[str]) -> None:
    gate, may, served = Gate(), asyncio.Event(), list[str]()

    class Noting(GatedBatches):
        async def execute(self, op: Any, items: Any) -> list[Any]:
            served.extend(text for _, text in items)
            return await super().execute(op, items)

    class Held(Embedding):
        @step
        async def embed(self, ev: StartEvent) -> StopEvent:
            if ev.get("held"):
                await may.wait()
            return StopEvent(result=len(await self.model.aget_query_embedding(ev.get("text"))))

    backend = Noting(max_batch=1, gate=gate)
    set_policy(backend, policy)
    model = EngineEmbedding(backend)
    optimized: Any = fineflow.optimize(Held(model), strict=True)
    runs = [optimized.run(text="first")]
    await gate.arrived(1)
    runs.append(optimized.run(text="early", held=True))
    await asyncio.sleep(0)
    runs.append(optimized.run(text="late"))
    await waiting(model, 1)
    may.set()
    await waiting(model, 2)
    gate.open()
    await asyncio.gather(*runs)
    assert served == ["first", *expected]


def test_copies_are_optimized_copies() -> None:
    optimized: Any = fineflow.optimize(guide(), strict=True)
    other = copy.copy(optimized)
    assert observed(other)["result"] == observed(optimized)["result"]
    assert other.runs == optimized.runs == 1
