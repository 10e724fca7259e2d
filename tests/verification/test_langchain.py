"""LangChain: sampled calls are run again on stock, and what differs is reported."""

from __future__ import annotations

import copy
import logging
import pickle
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from pydantic import Field
from verified_calls import (
    ASKED,
    CALLS,
    Model,
    Reported,
    Search,
    explained,
    optimized,
    rag,
    scripted,
    seen_context,
    tenant,
)

import fineflow
from fineflow import Difference, Verify
from fineflow.runtime.reruns import Reruns, reruns
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.retrieval import FakeEmbeddings, FakeVectorStore


@pytest.mark.parametrize("entry", CALLS)
def test_equal_answers_are_counted_and_not_reported(entry: str) -> None:
    reported = Reported()
    CALLS[entry](optimized(rag(), reported))
    found = fineflow.verified(10)
    assert (found.equal, found.verified, dict(found.skipped)) == (1, 1, {})
    assert not reported
    assert fineflow.statistics().verification == found


@pytest.mark.parametrize("entry", CALLS)
def test_a_retriever_that_lied_ahead_is_found(entry: str) -> None:
    reported = Reported()
    CALLS[entry](optimized(rag(scripted("tower")), reported))
    assert fineflow.verified(10).different == 1
    [difference] = reported
    method = {"batch": "invoke", "abatch": "ainvoke"}.get(entry, entry)
    assert (difference.name, difference.entry, difference.repeated) == (
        "RunnableSequence",
        method,
        method.removeprefix("a"),
    )
    assert difference.what == ("value",) and (difference.doubt, difference.compared) == ("", "exactly")
    assert "tower" in difference.diff and "bridge" in difference.diff
    assert "compared exactly" in str(difference) and "100.00% of calls" in str(difference)
    assert difference.given[0] == ASKED


def test_a_kernel_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = FakeVectorStore.from_texts(["bridge", "tower"], FakeEmbeddings())
    chain = rag(documents.as_retriever(search_kwargs={"k": 1}), FakeChat(answers=lambda m: f"said {m[-1].content}"))
    kernels = "fineflow.adapters.langchain.kernels.searches"

    async def lie(*_: Any) -> list[Document]:
        return [Document("something else")]

    reported = Reported()
    fast = optimized(chain, reported, exact=True)
    fast.invoke(ASKED)
    assert fineflow.verified(10).equal == 1
    monkeypatch.setattr(f"{kernels}._found", lie)
    fast.invoke(ASKED)
    assert fineflow.verified(10).different == 1
    assert "something else" in reported[0].diff


def test_stock_that_does_not_repeat_itself_is_doubted() -> None:
    reported = Reported()
    optimized(rag(scripted("one", "two", "three")), reported).invoke(ASKED)
    assert fineflow.verified(10).unsteady == 1
    assert reported[0].doubt == "stock answered differently when it was asked again"


def test_differences_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fineflow"):
        optimized(rag(scripted("tower"))).invoke(ASKED)
        fineflow.verified(10)
        optimized(rag(scripted("one", "two", "three"))).invoke(ASKED)
        fineflow.verified(10)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "RunnableSequence.invoke differs from stock in its value" in caplog.text


@pytest.mark.parametrize("entry", CALLS)
def test_a_call_that_raised_has_to_raise_alike(entry: str) -> None:
    reported = Reported()
    with pytest.raises(ValueError, match="the model is gone"):
        CALLS[entry](optimized(rag(model=Model(failing=True)), reported))
    assert fineflow.verified(10).equal == 1
    assert not reported


def test_a_failure_that_stock_does_not_repeat_is_doubted() -> None:
    reported = Reported()
    chain = rag(scripted(ConnectionError("reset by peer")))
    with pytest.raises(ConnectionError):
        optimized(chain, reported).invoke(ASKED)
    assert fineflow.verified(10).unsteady == 1
    assert reported[0].what == ("exception",)
    assert "reset by peer" in reported[0].diff and "requests leave the process" in reported[0].doubt


def test_a_model_that_samples_is_compared_by_structure() -> None:
    reported = Reported()
    fast = optimized(rag(scripted("tower"), Model(temperature=0.7)), reported)
    fast.invoke(ASKED)
    assert fineflow.verified(10).equal == 1
    assert "compared by structure, as Model answers at temperature 0.7" in explained(fast)
    unknown = optimized(rag(scripted("tower"), Model(temperature=None)))
    assert "the temperature of Model is not known" in explained(unknown)
    bound = optimized(rag(Search(), Model(temperature=1.0).bind(temperature=0)))
    assert "compared exactly" in explained(bound)
    exact = optimized(rag(scripted("tower"), Model(temperature=0.7)), reported, exact=True)
    exact.invoke(ASKED)
    assert fineflow.verified(10).different == 1


@pytest.mark.parametrize("entry", ["invoke", "stream", "ainvoke", "astream"])
def test_what_a_sampling_model_does_not_touch_is_compared_exactly(entry: str) -> None:
    answer = ChatPromptTemplate.from_template("{context} {question}") | Model(temperature=1.0) | StrOutputParser()

    def make(search: Any) -> Any:
        found = RunnablePassthrough.assign(context=itemgetter("question") | search)
        return (
            found
            | RunnablePassthrough.assign(answer=answer)
            | RunnablePassthrough.assign(more=itemgetter("question") | Search())
        )

    reported = Reported()
    fast = optimized(make(scripted("tower")), reported)
    assert "; context, more exactly" in explained(fast)
    CALLS[entry](fast)
    assert fineflow.verified(10).different == 1
    assert reported[0].what == ("value",) and "tower" in reported[0].diff
    CALLS[entry](optimized(make(Search()), reported))
    assert fineflow.verified(10).equal == 1


def test_another_structure_is_found_at_any_temperature() -> None:
    class Varying(Model):
        pieces: list[str] = Field(default_factory=list)

        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            said = self.pieces.pop(0) if len(self.pieces) > 1 else self.pieces[0]
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content=said))])

    reported = Reported()
    model = fineflow.external(Varying)(temperature=1.0, pieces=['{"a": "x", "b": 1}', '{"a": "y"}'])
    chain = RunnableParallel(
        made=ChatPromptTemplate.from_template("{q}") | model | JsonOutputParser(),
        other=ChatPromptTemplate.from_template("{q}"),
    )
    optimized(chain, reported).invoke({"q": "?"})
    assert fineflow.verified(10).different == 1
    assert reported[0].what == ("structure",) and "only fineflow has 'b'" in reported[0].diff
    assert "compared by structure, as Varying answers at temperature 1" in str(reported[0])


class Counting(BaseCallbackHandler):
    """Counts everything that it is told."""

    def __init__(self) -> None:
        self.starts = 0

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self.starts += 1

    on_chat_model_start = on_retriever_start = on_chain_start


@pytest.mark.parametrize("entry", CALLS)
def test_callbacks_are_not_called_twice(entry: str) -> None:
    handler, listened = Counting(), []
    chain = rag(model=Model(callbacks=[handler])).with_config(callbacks=[handler])
    chain = chain.with_listeners(on_start=lambda run: listened.append(run))
    CALLS[entry](chain)
    stock, heard = handler.starts, len(listened)
    assert stock and heard
    CALLS[entry](optimized(chain))
    assert fineflow.verified(10).equal == 1
    assert (handler.starts, len(listened)) == (2 * stock, 2 * heard)


def test_callbacks_of_the_context_are_not_called_twice() -> None:
    handler = Counting()
    with get_usage_metadata_callback() as usage:
        inner = optimized(rag())
        RunnableLambda(lambda given: inner.invoke(given)).invoke(ASKED, {"callbacks": [handler]})
        fineflow.verified(10)
    assert fineflow.verified(10).equal == 1
    starts, handler.starts = handler.starts, 0
    RunnableLambda(lambda given: rag().invoke(given)).invoke(ASKED, {"callbacks": [handler]})
    assert starts == handler.starts
    assert usage.usage_metadata == {}


def test_langsmith_and_debugging_see_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from langchain_core.globals import set_debug

    made: list[str] = []
    fast, jobs = optimized(rag()), []
    with monkeypatch.context() as here:
        here.setattr(Reruns, "submit", lambda self, job, most: jobs.append(job))
        fast.invoke(ASKED)  # is itself not traced
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    monkeypatch.setattr(
        "langchain_core.tracers.langchain.LangChainTracer.__init__", lambda self, **_: made.append("a tracer")
    )
    set_debug(True)
    try:
        reruns().submit(jobs[0], 4)
        assert fineflow.verified(10).equal == 1
    finally:
        set_debug(False)
    assert (made, capsys.readouterr().out) == ([], "")


def test_the_repetition_sees_the_context_of_the_call_and_leaves_none() -> None:
    seen_context.clear()
    token = tenant.set("acme")
    try:
        optimized(rag()).invoke(ASKED)
    finally:
        tenant.reset(token)
    fineflow.verified(10)
    assert seen_context == ["acme"] * 4  # two searches, twice


def test_inputs_and_answers_are_those_of_the_call() -> None:
    chain = RunnableParallel(
        found=RunnableLambda(fineflow.pure(lambda given: given["texts"])) | Search(), given=RunnablePassthrough()
    )
    given, reported = {"texts": "a"}, Reported()
    fast = optimized(chain, reported, waiting=8)
    gate = Gate()
    reruns().submit(lambda: gate.wait_sync() or "", 1)
    answer = fast.invoke(given)
    given["texts"] = "changed"
    answer["found"].clear()
    gate.open()
    assert fineflow.verified(10).equal == 1, [str(each) for each in reported]


def test_a_report_that_fails_and_faults_of_the_verification_reach_no_call(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(difference: Difference) -> None:
        raise RuntimeError("no pager")

    stock = rag().invoke(ASKED)
    assert optimized(rag(scripted("bridge")), fails).invoke(ASKED) == stock
    optimized(rag(scripted("tower")), fails).invoke(ASKED)
    assert fineflow.verified(10).different == 1
    assert "the report of a difference failed: RuntimeError: no pager" in caplog.text
    for name in ("verdict", "differences"):
        with monkeypatch.context() as broken:
            broken.setattr(f"fineflow.adapters.core.{'proxy' if name == 'verdict' else 'verifying'}.{name}", _broken)
            assert optimized(rag()).invoke(ASKED) == stock
            found = fineflow.verified(10)
    assert found.skipped == {"the verification itself failed (ZeroDivisionError)": 2}
    assert caplog.text.count("a call could not be verified") == 1


def _broken(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError


def test_calls_inside_a_call_are_part_of_it() -> None:
    inner = optimized(rag())
    outer = fineflow.optimize(
        RunnableParallel(a=inner, b=Search()) | RunnableLambda(fineflow.pure(lambda d: d["a"])), eager=True
    )
    outer.invoke(ASKED)
    assert fineflow.verified(10).verified == 0  # what is optimized itself, inside another one
    whole = optimized(RunnableParallel(a=rag(), b=Search()))
    whole.invoke(ASKED)
    assert fineflow.verified(10).verified == 1


def test_compositions_copies_and_pickles_are_verified() -> None:
    fast = optimized(rag())
    for made in (fast | StrOutputParser(), fast.with_config(tags=["a"]), copy.copy(fast)):
        before = fineflow.verified(10).verified
        made.invoke(ASKED)
        assert fineflow.verified(10).verified == before + 1
    assert pickle.loads(pickle.dumps(Verify(0.5, print))) == Verify(0.5, print)


def test_a_share_of_the_calls_is_chosen() -> None:
    fast = fineflow.optimize(rag(), eager=True, verify=Verify(0.3, seed=3, waiting=100))
    for _ in range(60):
        fast.invoke(ASKED)
    assert 8 <= fineflow.verified(20).verified <= 28
    same, other = Verify(0.3, seed=3), Verify(0.3, seed=3)
    assert [same.due() for _ in range(20)] == [other.due() for _ in range(20)]


def test_message_ids_and_usage_do_not_count() -> None:
    chain = ChatPromptTemplate.from_template("{q}") | Model()
    fast = optimized(RunnableParallel(a=chain, b=ChatPromptTemplate.from_template("{q}") | Model()))
    first = fast.invoke({"q": "?"})  # Model writes the number of its thread into the metadata
    assert first["a"].response_metadata["took"]
    assert fineflow.verified(10).equal == 1
