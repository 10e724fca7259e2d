"""LangChain: sampled calls are run again on stock, and what differs is reported."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import re
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from pydantic import Field

import fineflow
from fineflow import Difference, Verify
from fineflow.engines import limit
from fineflow.runtime.reruns import Reruns, reruns
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.retrieval import FakeEmbeddings, FakeVectorStore

SCRIPTS: dict[str, list[Any]] = {}
seen_context: list[str] = []
ASKED = {"question": "where?"}
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@fineflow.external
class Search(BaseRetriever):
    """A retriever as users write them. script: names what its first calls find or raise (``SCRIPTS``)."""

    script: str = ""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        seen_context.append(tenant.get())
        script = SCRIPTS.get(self.script)
        text = script.pop(0) if script else "bridge"
        if isinstance(text, Exception):
            raise text
        return [Document(text, metadata={"query": query})]


def scripted(*found: Any) -> Search:
    """Makes a retriever whose first calls find this; the object itself never changes."""
    name = f"script {len(SCRIPTS)}"
    SCRIPTS[name] = list(found)
    return Search(script=name)


@fineflow.external
class Model(BaseChatModel):
    """A chat model as users write them, which repeats its prompt."""

    temperature: float | None = 0.0
    failing: bool = False

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        **_: Any,
    ) -> ChatResult:
        if self.failing:
            raise ValueError("the model is gone")
        message = AIMessage(content=f"said: {messages[-1].content}", response_metadata={"took": threading.get_ident()})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        **_: Any,
    ) -> Iterator[ChatGenerationChunk]:
        if self.failing:
            raise ValueError("the model is gone")
        for word in f"said: {messages[-1].content}".split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))

    @property
    def _llm_type(self) -> str:
        return "repeats"


def rag(search: Any = None, model: Any = None) -> Any:
    prompt = ChatPromptTemplate.from_template("{context} {question} {more}")
    more = RunnablePassthrough.assign(more=itemgetter("question") | Search())  # may begin together with the other one
    found = RunnablePassthrough.assign(context=itemgetter("question") | (search or Search()))
    return found | more | prompt | (model or Model()) | StrOutputParser()


class Reported(list[Difference]):
    """The differences that were reported."""

    def __call__(self, difference: Difference) -> None:
        self.append(difference)


def optimized(chain: Any, report: Any = None, **options: Any) -> Any:
    settings = {name: options.pop(name) for name in ("exact", "waiting") if name in options}
    return fineflow.optimize(chain, eager=True, verify=Verify(1.0, report=report, seed=1, **settings), **options)


def explained(fast: Any) -> str:
    return " ".join(fineflow.explain(fast).summary)


def acall(obj: Any, entry: str, given: Any) -> Any:
    async def call() -> Any:
        if entry == "astream":
            return [chunk async for chunk in obj.astream(given)]
        return await getattr(obj, entry)(given)

    return asyncio.run(call())


CALLS = {
    "invoke": lambda obj: obj.invoke(ASKED),
    "stream": lambda obj: list(obj.stream(ASKED)),
    "ainvoke": lambda obj: acall(obj, "ainvoke", ASKED),
    "astream": lambda obj: acall(obj, "astream", ASKED),
    "batch": lambda obj: obj.batch([ASKED]),
    "abatch": lambda obj: acall(obj, "abatch", [ASKED]),
}


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


def save(text: str) -> str:
    saved.append(text)
    return text


@fineflow.effects(writes=["store"])
def write(text: str) -> str:
    saved.append(text)
    return text


def shout(text: str) -> str:
    print(text)
    return text.upper()


saved: list[str] = []


@pytest.mark.parametrize(
    ("step", "why"), [(save, "save .* may have effects"), (write, "write.* writes"), (shout, "shout .* prints")]
)
def test_steps_with_effects_are_never_repeated(step: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
    saved.clear()
    fast = optimized(rag() | step)
    fast.invoke(ASKED)
    fast.invoke(ASKED)
    found = fineflow.verified(10)
    [(reason, number)] = found.skipped.items()
    assert (found.verified, number) == (0, 2)
    assert re.search(why, reason)
    assert len(saved) == (0 if step is shout else 2)
    assert re.search(f"Its calls are not verified: .*{why}", explained(fast))
    assert len([record for record in caplog.records if "are not verified" in record.message]) == 1  # said once


def test_what_cannot_be_copied_is_skipped() -> None:
    optimized(rag()).invoke({**ASKED, "lock": threading.Lock()})
    assert dict(fineflow.verified(10).skipped) == {"its input cannot be copied (TypeError)": 1}


def test_answers_from_a_cache_are_not_repeated() -> None:
    from langchain_core.caches import InMemoryCache
    from langchain_core.globals import set_llm_cache

    set_llm_cache(InMemoryCache())
    try:
        optimized(rag()).invoke(ASKED)
    finally:
        set_llm_cache(None)
    assert list(fineflow.verified(10).skipped) == ["answers of models are cached, so stock would repeat the first one"]


def test_a_component_with_a_limit_is_not_repeated() -> None:
    search = Search()
    limit(search, at_once=1)
    optimized(rag(search)).invoke(ASKED)
    assert list(fineflow.verified(10).skipped) == ["a component has a limit, which a repetition would pass"]


def test_events_are_not_repeated() -> None:
    async def events() -> list[Any]:
        return [event async for event in optimized(rag()).astream_events(ASKED, version="v2")]

    assert asyncio.run(events())
    [reason] = fineflow.verified(10).skipped
    assert reason.startswith("astream_events is not repeated")


def test_a_stream_that_is_left_is_skipped() -> None:
    stream = optimized(rag()).stream(ASKED)
    next(stream)
    stream.close()

    async def left() -> None:
        pieces = optimized(rag()).astream(ASKED)
        await anext(pieces)
        await pieces.aclose()

    asyncio.run(left())
    assert dict(fineflow.verified(10).skipped) == {"it was cancelled, or its stream not read to the end": 2}


def test_a_cancelled_call_is_skipped() -> None:
    gate = Gate()
    fast = optimized(rag(model=FakeChat(gate=gate)))

    async def cancelled() -> None:
        task = asyncio.create_task(fast.ainvoke(ASKED))
        await asyncio.to_thread(gate.wait_arrived)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    gate.open()
    assert dict(fineflow.verified(10).skipped) == {"it was cancelled, or its stream not read to the end": 1}


def test_a_step_without_a_sync_method_is_skipped() -> None:
    async def shorter(text: str) -> str:
        return text[:3]

    fast = optimized(rag() | RunnableLambda(fineflow.pure(shorter)))
    assert acall(fast, "ainvoke", ASKED) == "sai"
    assert dict(fineflow.verified(10).skipped) == {"a step can only be called by its async method": 1}


def test_changed_objects_are_not_compared_with_what_they_were() -> None:
    chain = rag()
    gate = Gate()
    reruns().submit(lambda: gate.wait_sync() or "", 1)
    optimized(chain).invoke(ASKED)
    chain.middle[1].messages = [*chain.middle[1].messages]
    gate.open()
    assert dict(fineflow.verified(10).skipped) == {"the object was changed before it was run again": 1}


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
