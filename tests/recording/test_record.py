"""``fineflow.record``: what calls did, stock and optimized, sync and async, alone and several at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.observe import Track
from fineflow.observe.tracks import OWN
from fineflow.runtime import events, recording
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat
from fineflow.testing.retrieval import FakeVectorStore

QUESTION = {"question": "who?"}


def app(latency: float = 0.03) -> Runnable[Any, Any]:
    """Classifies, searches, answers: stock does one after the other."""
    classify = ChatPromptTemplate.from_template("classify {question}") | FakeChat(prefill=latency) | StrOutputParser()
    store = FakeVectorStore(latency=latency)
    search = RunnableLambda(lambda given: given["question"]) | store.as_retriever()
    answer = ChatPromptTemplate.from_template("{category} {context} {question}") | FakeChat(prefill=latency)
    return (
        RunnablePassthrough.assign(category=classify)
        | RunnablePassthrough.assign(context=search)
        | answer
        | StrOutputParser()
    )


@pytest.fixture
def chain() -> Runnable[Any, Any]:
    return app()


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    yield
    assert not recording.recorders
    assert not recording._under_way
    assert not events.listening()


def steps(track: Track) -> dict[str, tuple[float, float]]:
    return {i.label: (i.start, i.end) for i in track.intervals if i.lane != OWN}


def test_stock_and_fineflow_in_one_picture(chain: Runnable[Any, Any]) -> None:
    fast = fineflow.optimize(chain)
    with fineflow.record() as rec:
        assert fast.invoke(QUESTION) == chain.invoke(QUESTION)
    timeline = rec.timeline()
    stock, ours = timeline.tracks
    assert [track.name for track in timeline.tracks] == [
        "stock: RunnableSequence.invoke",
        "fineflow: RunnableSequence.invoke",
    ]
    assert ours.against == stock.name
    names = {"category/llm.decode", "context/retriever.search", "llm.decode"}
    assert set(steps(stock)) == set(steps(ours)) == names
    assert {i.lane for i in stock.intervals} - {OWN} == {i.lane for i in ours.intervals} - {OWN}
    first, second = steps(stock)["category/llm.decode"], steps(stock)["context/retriever.search"]
    assert first[1] <= second[0]
    assert steps(ours)["context/retriever.search"][0] < steps(ours)["category/llm.decode"][1]
    on_path = [stock.intervals[segment.at] for segment in stock.critical]
    assert [i.label for i in on_path if i.lane != OWN] == [
        "category/llm.decode",
        "context/retriever.search",
        "llm.decode",
    ]
    assert "llm.decode" in [ours.intervals[segment.at].label for segment in ours.critical]
    assert "stock" in timeline.html()
    assert json.loads(timeline.json())["traceEvents"]
    assert rec._repr_html_().startswith("<iframe")


def test_async_calls_and_streams(chain: Runnable[Any, Any]) -> None:
    fast = fineflow.optimize(chain)

    async def calls() -> None:
        for each in (chain, fast):
            await each.ainvoke(QUESTION)
            assert [piece async for piece in each.astream(QUESTION)]

    with fineflow.record() as rec:
        asyncio.run(calls())
        for each in (chain, fast):
            assert list(each.stream(QUESTION))
    assert [track.name.partition(".")[2] for track in rec.timeline().tracks] == [
        *("ainvoke", "ainvoke", "astream", "astream", "stream", "stream"),
    ]
    for track in rec.timeline().tracks:
        assert len(track.intervals) >= 3, track.name
        assert track.total > 0


def test_calls_at_once_are_apart(chain: Runnable[Any, Any]) -> None:
    fast = fineflow.optimize(chain)

    async def both() -> None:
        await asyncio.gather(*(fast.ainvoke({"question": str(number)}) for number in range(5)))

    with fineflow.record() as rec:
        threads = [threading.Thread(target=fast.invoke, args=(QUESTION,)) for _ in range(5)]
        for thread in threads:
            thread.start()
        asyncio.run(both())
        for thread in threads:
            thread.join()
    assert len(rec) == 10
    for track in rec.timeline().tracks:
        assert sorted(steps(track)) == ["category/llm.decode", "context/retriever.search", "llm.decode"]


def test_a_batch_is_one_call(chain: Runnable[Any, Any]) -> None:
    fast = fineflow.optimize(chain)
    with fineflow.record() as rec:
        assert fast.batch([QUESTION, QUESTION]) == chain.batch([QUESTION, QUESTION])
    ours = next(track for track in rec.timeline().tracks if track.name.startswith("fineflow"))
    assert ours.name.endswith("batch")
    assert sum(i.label == "llm.decode" for i in ours.intervals) == 2


def test_the_reader_of_a_stream_may_call_too(chain: Runnable[Any, Any]) -> None:
    fast = fineflow.optimize(chain)
    with fineflow.record() as rec:
        pieces = fast.stream(QUESTION)
        next(pieces)
        fast.invoke(QUESTION)
        pieces.close()
    assert [track.name for track in rec.timeline().tracks] == [
        "fineflow: RunnableSequence.stream",
        "fineflow: RunnableSequence.invoke",
    ]


def test_a_call_without_gain_says_so() -> None:
    alone = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=0.02)
    fast = fineflow.optimize(alone)
    with fineflow.record() as rec:
        alone.invoke(QUESTION)
        fast.invoke(QUESTION)
    ours = rec.timeline().tracks[1]
    assert ours.remark == "Nothing in it could start earlier, so it ran as stock."
    assert [i.lane for i in ours.intervals if i.lane != OWN] == ["FakeChat"]


def test_code_of_the_users_own_is_shown() -> None:
    gate = threading.Event()

    def audit(value: str) -> str:
        gate.wait(0.02)
        return value

    chain = RunnableLambda(audit) | ChatPromptTemplate.from_template("{x}") | FakeChat(prefill=0.02)
    with fineflow.record() as rec:
        chain.invoke("x")
    [track] = rec.timeline().tracks
    assert [(i.lane, i.label) for i in track.intervals if "audit" in i.label] == [("other code", "audit.call")]


def test_failures_are_told() -> None:
    def fail(value: str) -> str:
        raise ValueError(value)

    chain = RunnableLambda(fail)
    with fineflow.record() as rec:
        for each in (chain, fineflow.optimize(chain)):
            with pytest.raises(ValueError, match="x"):
                each.invoke("x")
    assert all("It raised an exception." in track.remark for track in rec.timeline().tracks)


def test_memory_is_bounded(chain: Runnable[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST", 2)
    fast = fineflow.optimize(chain)
    with fineflow.record(calls=3) as rec:
        for _ in range(5):
            fast.invoke(QUESTION)
    assert len(rec) == 3
    timeline = rec.timeline()
    assert timeline.remarks == ["2 earlier calls were not kept; record(calls=…) keeps more."]
    assert "1 are not" in timeline.tracks[0].remark
    with pytest.raises(ValueError, match="expected a positive number, got 0"), fineflow.record(calls=0):
        pass


def test_recorders_may_be_nested_and_each_has_its_own_calls(chain: Runnable[Any, Any]) -> None:
    with fineflow.record() as outer:
        chain.invoke(QUESTION)
        with fineflow.record() as inner:
            chain.invoke(QUESTION)
        chain.invoke(QUESTION)
    assert (len(outer), len(inner)) == (3, 1)


def test_nothing_is_recorded_outside(chain: Runnable[Any, Any]) -> None:
    with fineflow.record() as rec:
        pass
    fineflow.optimize(chain).invoke(QUESTION)
    assert len(rec) == 0
    assert rec.timeline().remarks == ["No call was recorded: call the object inside the block."]


def test_a_call_that_goes_on_after_the_block(chain: Runnable[Any, Any]) -> None:
    fast = fineflow.optimize(chain)
    with fineflow.record() as rec:
        pieces = fast.stream(QUESTION)
        next(pieces)
    list(pieces)  # the timeline is made after its end
    assert "It had not ended when recording ended." in rec.timeline().tracks[0].remark


PROBE = """
import sys, fineflow
assert "fineflow.recording.recorder" not in sys.modules
with fineflow.record() as rec:
    pass
print([name for name in ("langchain_core", "llama_index", "torch", "opentelemetry") if name in sys.modules])
"""


def test_recording_imports_no_framework() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_requests_that_stock_reports_together_are_drawn_one_after_the_other() -> None:
    pytest.importorskip("langchain_classic")
    from langchain_classic.chains import LLMChain
    from langchain_classic.chains.combine_documents.map_reduce import MapReduceDocumentsChain
    from langchain_classic.chains.combine_documents.reduce import ReduceDocumentsChain
    from langchain_classic.chains.combine_documents.stuff import StuffDocumentsChain
    from langchain_core.documents import Document

    llm = FakeChat(prefill=0.02, custom_get_token_ids=lambda text: list(text.encode()))
    each = LLMChain(llm=llm, prompt=ChatPromptTemplate.from_template("{text}"))
    stuff = StuffDocumentsChain(llm_chain=each, document_variable_name="text")
    reduce = ReduceDocumentsChain(combine_documents_chain=stuff)
    chain = MapReduceDocumentsChain(llm_chain=each, reduce_documents_chain=reduce, document_variable_name="text")
    with fineflow.record() as rec:
        chain.invoke({"input_documents": [Document("a"), Document("b"), Document("c")]})
    asked = sorted((i.start, i.end) for i in rec.timeline().tracks[0].intervals if i.lane == "FakeChat")
    assert len(asked) == 4
    assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(asked))


def test_work_that_stock_takes_in_no_time_keeps_its_name() -> None:
    """In virtual time a claimed run has no length."""
    grade = ChatPromptTemplate.from_template("grade {n}") | FakeChat(prefill=1.0) | StrOutputParser()
    again = ChatPromptTemplate.from_template("{grades}") | FakeChat(prefill=1.0) | StrOutputParser()

    def grade_all(given: dict[str, Any]) -> dict[str, Any]:
        return {"grades": [grade.invoke({"n": n}) for n in range(3)]}

    def rewrite(given: dict[str, Any]) -> str:
        return again.invoke(given)

    chain: Runnable[Any, Any] = RunnableLambda(grade_all) | RunnableLambda(rewrite)
    fast = fineflow.optimize(chain)
    virtual_threads.run(lambda: fast.invoke(QUESTION))  # plans, and learns what a call takes
    with fineflow.record() as rec:
        virtual_threads.run(lambda: (chain.invoke(QUESTION), fast.invoke(QUESTION)))
    stock, ours = rec.timeline().tracks
    both = [sorted((i.label, i.end - i.start) for i in track.intervals) for track in (stock, ours)]
    assert both[0] == both[1]
    assert len(both[0]) == 4
    assert (stock.total, ours.total) == (4.0, 2.0)


async def test_a_recorder_may_keep_its_own_calls_only() -> None:
    chain, gate = RunnableLambda(lambda x: x), asyncio.Event()

    async def other() -> None:
        await gate.wait()
        await chain.ainvoke(1)

    beside = asyncio.create_task(other())  # its context is older than the block
    with fineflow.record(own=True) as own, fineflow.record() as every:
        gate.set()
        await beside
        await asyncio.create_task(fineflow.optimize(chain).ainvoke(1))
        await asyncio.to_thread(chain.invoke, 2)
        thread = threading.Thread(target=chain.invoke, args=(3,))
        thread.start()
        thread.join()
    assert (len(own), len(every)) == (2, 4)
