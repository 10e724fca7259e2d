"""What starts sooner in LlamaIndex than in stock: answers side by side, trees without levels, prompts known early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, WORDS, answer, index, scored
from llama_index.core.schema import QueryBundle

import fineflow
from fineflow.llamaindex import EngineEmbedding, EngineLLM
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedBatches, GatedLLM
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeLLM, FakeStore
from fineflow.testing.stalls import held

WAIT = 10  # seconds; only a failing test waits this long


def engine(mode: str, llm: Any, **settings: Any) -> Any:
    made = index(EngineEmbedding(GatedBatches()), settings.pop("store", None))
    found = made.as_query_engine(llm=llm, response_mode=mode, similarity_top_k=6, **settings)
    return fineflow.optimize(found, strict=True)


def in_thread(call: Callable[[], Any]) -> Any:
    """A call under way in a thread of its own; its result is a future."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


@pytest.mark.parametrize("chat", [True, False])
def test_accumulate_asks_for_all_answers_at_once_in_a_sync_call(chat: bool) -> None:
    gate = Gate()
    llm = FakeLLM(answers=answer, gate=gate, is_chat=chat)
    call = in_thread(lambda: engine("accumulate", llm).query(QUESTION))
    gate.wait_arrived(6)  # stock asks for the second when the first has been given
    gate.open()
    assert str(call.result(WAIT)) == str(
        index()
        .as_query_engine(llm=FakeLLM(answers=answer, is_chat=chat), response_mode="accumulate", similarity_top_k=6)
        .query(QUESTION)
    )
    assert llm.meter.calls == 6


def test_a_parent_in_a_tree_starts_when_its_own_children_are_ready() -> None:
    late, parents = threading.Event(), threading.Event()

    def said(prompt: str) -> str:
        if "summary" in prompt:
            parents.set()
            return "in all"
        if "Fact 5" in prompt:
            assert late.wait(WAIT)  # the last leaf takes longest
        return "summary " + " ".join(WORDS * 12)

    llm = FakeLLM(answers=said, context_window=330, num_output=60)
    tree = engine("tree_summarize", llm)
    call = in_thread(lambda: tree.synthesize(QUESTION, scored()))
    try:
        assert parents.wait(WAIT), "no parent was asked for while a leaf was under way"
    finally:
        late.set()
    found = call.result(WAIT)
    calls = llm.meter.calls
    stock = index().as_query_engine(llm=llm, response_mode="tree_summarize", similarity_top_k=6)
    assert str(stock.synthesize(QUESTION, scored())) == str(found)
    assert llm.meter.calls == 2 * calls  # none in vain
    assert tree._self_last.unclaimed == 0


def test_the_beginning_of_a_prompt_is_prefilled_while_the_store_searches() -> None:
    gate = Gate()
    backend = GatedLLM("ok")
    made = engine("compact", EngineLLM(engine=backend), store=FakeStore(gate=gate))
    call = in_thread(lambda: made.query(QUESTION))
    gate.wait_arrived(1)
    wait_until(lambda: backend.prefills.calls == 1)
    gate.open()
    assert str(call.result(WAIT)) == "ok"


def test_texts_that_refine_an_answer_are_prefilled_while_it_is_written() -> None:
    tokens = Gate()
    backend = GatedLLM("ok", token_gate=tokens)
    made = engine("refine", EngineLLM(engine=backend))
    call = in_thread(lambda: made.synthesize(QUESTION, scored()[:3]))
    tokens.wait_arrived(1)
    wait_until(lambda: backend.prefills.calls == 2)  # of the two prompts that refine the first answer
    tokens.open()
    assert str(call.result(WAIT)) == "ok"
    assert backend.meter.calls == 3


watched = pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")


@watched
@pytest.mark.parametrize("entry", ["aquery", "aretrieve", "asynthesize"])
@pytest.mark.parametrize(
    "mode", ["compact", "refine", "accumulate", "compact_accumulate", "tree_summarize", "generation"]
)
def test_sync_components_do_not_hold_the_event_loop(mode: str, entry: str) -> None:
    llm = BlockingLLM(answers=answer, latency=0.5, context_window=900, num_output=60)
    made = index(BlockingEmbedding(latency=0.5), _BlockingStore(latency=0.5))
    stock = made.as_query_engine(llm=llm, response_mode=mode, similarity_top_k=3)
    found = fineflow.optimize(stock, strict=True)
    args = (QueryBundle(QUESTION), *((scored()[:2],) if entry == "asynthesize" else ()))
    seen = held(lambda: getattr(found, entry)(*args))
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"
    assert held(lambda: getattr(stock, entry)(QueryBundle(QUESTION), *args[1:]), warm=False).seconds >= 0.5


@fineflow.external
class _BlockingStore(FakeStore):
    """Its async method is the sync one, as in most stores."""

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        return self.query(query, **kwargs)


@watched
@pytest.mark.parametrize("mode", ["compact", "refine", "simple_summarize", "tree_summarize", "generation"])
def test_a_stream_of_a_blocking_model_does_not_hold_the_event_loop(mode: str) -> None:
    llm = BlockingLLM(answers=answer, latency=0.5)
    found = fineflow.optimize(index().as_query_engine(llm=llm, streaming=True, response_mode=mode), strict=True)

    async def read() -> str:
        response = await found.aquery(QUESTION)
        return "".join([token async for token in response.response_gen])

    seen = held(read)
    assert seen.seconds < 0.05, f"{seen.by} held the loop for {seen.seconds:.3f} s"
    assert seen.value.startswith("The answer")


async def test_blocking_models_answer_side_by_side_in_async_calls() -> None:
    gate = Gate()
    llm = BlockingLLM(answers=answer, gate=gate)
    call = asyncio.create_task(engine("accumulate", llm).aquery(QUESTION))
    await gate.arrived(6)
    gate.open()
    await call
    assert llm.meter.calls == 6


async def test_queries_of_several_calls_are_embedded_in_one_batch() -> None:
    gate = Gate()
    gate.open()
    backend = GatedBatches(max_batch=8, gate=gate)
    embedding = EngineEmbedding(backend)
    made = fineflow.optimize(index(embedding).as_query_engine(llm=FakeLLM()), strict=True)
    before = backend.meter.calls
    gate.close()
    calls = [asyncio.create_task(made.aquery(QUESTION))]
    await gate.arrived(before + 1)
    calls += [asyncio.create_task(made.aquery(f"{QUESTION} {i}")) for i in range(5)]
    async with asyncio.timeout(WAIT):
        while embedding._queue.waiting < 5:
            await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(*calls)
    assert backend.meter.calls == before + 2


async def test_a_cancelled_call_leaves_nothing_at_work() -> None:
    gate = Gate()
    llm = FakeLLM(answers=answer, gate=gate, context_window=600, num_output=60)
    call = asyncio.create_task(engine("tree_summarize", llm).aquery(QUESTION))
    await gate.arrived(2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await llm.meter.idle()


def test_a_call_that_is_late_is_stopped() -> None:
    gate = Gate()
    llm = FakeLLM(answers=answer, gate=gate)
    made = index().as_query_engine(llm=llm, response_mode="accumulate")
    late = fineflow.optimize(made, timeout=0.2)
    with pytest.raises(TimeoutError):
        late.query(QUESTION)
    gate.open()
    llm.meter.wait_idle()
    assert str(fineflow.optimize(made, timeout=30).query(QUESTION))


def test_threads_share_one_optimized_engine() -> None:
    made = engine("accumulate", FakeLLM(answers=answer))
    expected = str(made.query(QUESTION))
    with ThreadPoolExecutor(8) as pool:
        assert {str(found) for found in pool.map(made.query, [QUESTION] * 16)} == {expected}


def test_stock_is_called_where_there_is_nothing_to_gain() -> None:
    plain = index(FakeEmbedding()).as_query_engine(llm=FakeLLM())
    made = fineflow.optimize(plain, strict=True)
    made.query(QUESTION)
    assert made._self_last is None
    assert "nothing in it can start earlier" in str(fineflow.explain(plain))
