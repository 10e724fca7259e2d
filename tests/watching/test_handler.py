"""The callback handler: predictions against measurements, on apps as people write them; and that it changes nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from typing import Any

import pytest
from benchmarks.handler import CLOSE, example, predicted
from benchmarks.public.community_apps import PATHS
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.adapters.inner_calls.dry_calls import DryCalls, inside, predicting
from fineflow.adapters.inner_calls.entry_wrappers import watching
from fineflow.declare import active
from fineflow.langchain import AsyncFineflowCallbackHandler, FineflowCallbackHandler
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat
from fineflow.testing.recording import RecordingHandler
from fineflow.watching.runs import KEPT
from fineflow.watching.watcher import watched as watched_here

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
SEVERAL = ("decomposition_individual", "corrective_rag", "self_rag", "draft_and_judge", "retrieval_qa_extractor")
OTHERS = ("summary_map_reduce", "llm_reranking", "article_analysis", "guarded_router", "contextual_retrieval")


def answering(seconds: float = 1.0) -> Any:
    return ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=seconds) | StrOutputParser()


def graded(calls: list[str] | None = None, seconds: float = 1.0) -> Any:
    """A function that asks about each document, in a loop."""
    chain = answering(seconds)

    def grade(texts: list[str]) -> list[str]:
        if calls is not None:
            calls.append("graded")
        return [chain.invoke({"question": text}) for text in texts]

    return RunnableLambda(grade)


def watched(app: Any, value: Any, handler: Any, times: int = 3) -> None:
    virtual_threads.run(lambda: [app.invoke(value, {"callbacks": [handler]}) for _ in range(times)])


@needs_virtual_threads
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("name", [*SEVERAL, *OTHERS])
def test_predicts_what_examples_take(name: str, awaits: bool) -> None:
    now, guess, took = predicted(*example(name), awaits=awaits)
    assert guess == pytest.approx(took, rel=CLOSE)
    assert took >= 0.98 * PATHS[name]
    assert now >= took


@needs_virtual_threads
@pytest.mark.parametrize("name", ["llm_reranking", "summary_map_reduce"])
def test_predicts_the_same_after_many_calls(name: str) -> None:
    """Only some calls of many are looked at; the others say nothing about what is gained."""
    make, value = example(name)
    reports = []
    for times in (3, 30):
        handler = FineflowCallbackHandler()
        watched(make(), value, handler, times)
        reports += handler.report().apps
    few, many = reports
    assert many.optimized_s == pytest.approx(few.optimized_s, rel=0.001)
    assert many.gains


def _returns(kind: str) -> str | None:
    return "nothing" if "spam" in kind else None


def _raises(kind: str) -> str | None:
    if kind.startswith("spam"):
        raise ValueError(kind)
    return None


@needs_virtual_threads
@pytest.mark.parametrize("decides", [_returns, _raises])
def test_what_a_slow_answer_decides_waits_for_it_whatever_came_between(decides: Any) -> None:
    slow, quick = answering(3.0), answering(1.0)

    def route(question: str) -> str:
        kind, found = slow.invoke({"question": question}), quick.invoke({"question": question})
        if said := decides(kind):
            return str(said)
        return str(slow.invoke({"question": f"{found}?"}))

    app, handler = RunnableLambda(route), FineflowCallbackHandler()
    watched(app, "why", handler)
    [seen] = handler.report().apps
    fast = fineflow.optimize(app, strict=True)
    assert virtual_threads.run(lambda: fast.invoke("why")).seconds == pytest.approx(6.0)
    assert (seen.now_s, seen.optimized_s) == pytest.approx((7.0, 6.0))


@needs_virtual_threads
@pytest.mark.parametrize("name", ["step_back", "summary_refine"])
def test_says_where_there_is_nothing_to_gain(name: str) -> None:
    make, value = example(name)
    handler = FineflowCallbackHandler()
    watched(make(), value, handler)
    [app] = handler.report().apps
    assert not app.gains
    assert "nothing to gain" in str(handler.report())


@needs_virtual_threads
def test_a_graph_whose_steps_gain_is_not_said_to_gain_nothing() -> None:
    graphs = pytest.importorskip("langgraph.graph")
    grade = graded().func

    def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"grades": grade(state["texts"])}

    graph = graphs.StateGraph(dict)
    graph.add_node("grade", node)
    graph.add_edge(graphs.START, "grade")
    app, handler = graph.compile(), FineflowCallbackHandler()
    watched(app, {"texts": ["a", "b", "c"]}, handler)
    said = " ".join(str(handler.report()).split())
    assert "nothing to gain" not in said
    assert "3.00 s (3 calls); what its parts gain by themselves is not predicted." in said
    assert "fineflow.explain(...) of it tell" in said


@needs_virtual_threads
def test_says_what_overlaps_the_price_and_the_line() -> None:
    handler = FineflowCallbackHandler()
    watched(graded(), ["a", "b", "c"], handler)
    text = " ".join(str(handler.report()).split())
    assert text.startswith("grade at test_handler.py:")
    assert "3.00 s now (3 calls), 1.00 s optimized, as predicted: 3.0 times as fast" in text
    assert "calls of `chain` in it" in text
    assert "up to 2 requests may have been sent that stock would not have sent" in text


class GatewayChat(FakeChat):
    """A company's own class: nothing is known about what it does."""

    def _generate(self, *args: Any, **named: Any) -> Any:
        return super()._generate(*args, **named)


@needs_virtual_threads
def test_says_what_is_in_the_way_and_what_its_declaration_gains() -> None:
    ask = ChatPromptTemplate.from_template("{question}") | GatewayChat(prefill=1.0)
    app = RunnablePassthrough.assign(first=ask) | RunnablePassthrough.assign(second=ask)
    handler = FineflowCallbackHandler()
    watched(app, {"question": "why?"}, handler)
    text = " ".join(str(handler.report()).split())
    assert "2.00 s (3 calls); nothing to gain as it is" in text
    assert "In the way: `GatewayChat` at test_handler.py:" in text
    assert "fineflow.external(GatewayChat) gains: 1.00 s" in text


def test_other_handlers_see_the_same_with_it_and_without() -> None:
    def events(*more: Any) -> Any:
        recording = RecordingHandler()
        value = graded(seconds=0).invoke(["a", "b"], {"callbacks": [recording, *more]})
        return value, [(event.name, event.data) for event in recording.events]

    assert events(FineflowCallbackHandler()) == events()


def test_the_function_runs_once_and_the_context_is_as_before() -> None:
    calls: list[str] = []
    app, handler = graded(calls, seconds=0), FineflowCallbackHandler()
    assert app.invoke(["a"], {"callbacks": [handler]}) == graded(seconds=0).invoke(["a"])
    assert calls == ["graded"]
    assert (active.get(), watching.get(), inside.get()) == (None, None, None)
    app.batch([["a"], ["b"]], {"callbacks": [handler]})
    list(app.stream(["a"], {"callbacks": [handler]}))
    stream = app.stream(["a"], {"callbacks": [handler]})
    next(stream)
    assert (active.get(), watching.get(), inside.get()) == (None, None, None)
    stream.close()
    assert handler.report().apps[0].calls == 5


async def test_async_calls_and_the_async_handler() -> None:
    chain = answering(seconds=0)

    async def ask(texts: list[str]) -> list[str]:
        return [await chain.ainvoke({"question": text}) for text in texts]

    app = RunnableLambda(ask)
    for handler in (FineflowCallbackHandler(), AsyncFineflowCallbackHandler()):
        wanted = await app.ainvoke(["a", "b"])
        assert await app.ainvoke(["a", "b"], {"callbacks": [handler]}) == wanted
        assert not predicting() and not watched_here()
        assert [each.calls for each in handler.report().apps] == [1]


def test_errors_are_the_users_and_are_counted() -> None:
    def fails(value: str) -> str:
        raise ValueError("x")

    handler = FineflowCallbackHandler()
    app = answering(seconds=0) | RunnableLambda(fails)
    with pytest.raises(ValueError, match="x"):
        app.invoke({"question": "x"}, {"callbacks": [handler]})
    [report] = handler.report().apps
    assert (report.calls, report.failed, report.counted) == (1, 1, 0)
    assert active.get() is None


def test_a_fault_of_the_prediction_does_not_reach_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> float:
        raise RuntimeError("broken")

    monkeypatch.setattr(DryCalls, "_predicted", broken)
    with pytest.warns(match="RuntimeError: broken"):
        found = graded(seconds=0).invoke(["a", "b"], {"callbacks": [FineflowCallbackHandler()]})
    assert found == graded(seconds=0).invoke(["a", "b"])


def test_keeps_no_objects_and_a_bounded_number_of_calls() -> None:
    handler = FineflowCallbackHandler()
    app = answering(seconds=0)
    for _ in range(KEPT + 20):
        app.invoke({"question": "x"}, {"callbacks": [handler]})
    [kept] = handler._apps.values()
    assert (kept.calls, len(kept.roots)) == (KEPT + 20, KEPT)
    assert not handler._open
    gone = weakref.ref(app)
    del app
    gc.collect()
    assert gone() is None
    assert "is gone" in str(handler.report())
    handler.clear()
    assert str(handler.report()).startswith("No call has ended yet")


def test_serves_threads() -> None:
    handler, app = FineflowCallbackHandler(), graded(seconds=0)

    def calls() -> None:
        for _ in range(10):
            app.invoke(["a", "b"], {"callbacks": [handler]})

    threads = [threading.Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.calls for each in handler.report().apps] == [80]


def test_concurrent_calls_on_one_loop() -> None:
    handler, chain = FineflowCallbackHandler(), answering(seconds=0)

    async def run() -> None:
        await asyncio.gather(*(chain.ainvoke({"question": "x"}, {"callbacks": [handler]}) for _ in range(50)))

    asyncio.run(run())
    assert [each.calls for each in handler.report().apps] == [50]


@needs_virtual_threads
def test_json_and_html() -> None:
    handler = FineflowCallbackHandler()
    watched(graded(), ["a", "<b>"], handler)
    [app] = json.loads(handler.report().to_json())
    assert (app["name"], app["calls"], app["gains"]) == ("grade", 3, True)
    assert app["optimized_s"] == pytest.approx(1.0)
    page = handler.report().to_html()
    assert page.startswith("<!doctype html>") and "2.0 times as fast" in page and "<code>chain</code>" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "iframe" in handler._repr_html_()
