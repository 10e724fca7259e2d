"""Outermost calls of unchanged apps go through ``optimize``; nothing else does, and nothing else changes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.public.llamaindex_apps import APPS
from benchmarks.public.llamaindex_kit import Kit
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough, RunnableSequence
from llama_index.core.base.base_query_engine import BaseQueryEngine

import fineflow
from fineflow.adapters.inner_calls.entry_wrappers import claims_of, looks_through
from fineflow.errors import FineflowWarning
from fineflow.instrumentation.instrumentor import FineflowInstrumentor
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


@pytest.fixture(autouse=True)
def uninstrumented() -> Iterator[None]:
    yield
    fineflow.uninstrument()


def graded(seconds: float = 0.0) -> Any:
    chain = ChatPromptTemplate.from_template("{question}") | FakeChat(prefill=seconds) | StrOutputParser()

    def grade(texts: list[str]) -> list[str]:
        return [chain.invoke({"question": text}) for text in texts]

    return RunnableLambda(grade)


@needs_virtual_threads
def test_an_unchanged_app_gains() -> None:
    app, texts = graded(1.0), ["a", "b", "c"]
    stock = virtual_threads.run(lambda: app.invoke(texts))
    fineflow.instrument()
    fast = virtual_threads.run(lambda: app.invoke(texts))
    assert (stock.seconds, fast.seconds) == (3.0, 1.0)
    assert fast.value == stock.value
    [routed] = fineflow.status().routed
    assert (routed.name, routed.calls, routed.ahead) == ("RunnableLambda", 1, 1)


def two_summaries(seconds: float) -> Any:
    """Steps that need nothing from each other, one after the other."""
    llm = FakeChat(prefill=seconds)
    summary = ChatPromptTemplate.from_template("Summarize {question}") | llm | StrOutputParser()
    title = ChatPromptTemplate.from_template("A title for {question}") | llm | StrOutputParser()
    return RunnablePassthrough.assign(summary=summary) | RunnablePassthrough.assign(title=title)


def graph_of(chain: Any) -> Any:
    from langgraph.graph import END, START, StateGraph

    def summarize(state: dict[str, Any]) -> dict[str, Any]:
        return chain.invoke({"question": state["question"]})

    graph = StateGraph(dict)
    graph.add_node("summarize", summarize)
    graph.add_edge(START, "summarize")
    graph.add_edge("summarize", END)
    return graph.compile()


@needs_virtual_threads
@pytest.mark.parametrize("deny", [(), ("langgraph.",)])
def test_chains_in_the_nodes_of_a_graph_gain(deny: Any) -> None:
    pytest.importorskip("langgraph")
    app = graph_of(two_summaries(1.0))
    stock = virtual_threads.run(lambda: app.invoke({"question": "why?"}))
    fineflow.instrument(deny=deny)
    fast = virtual_threads.run(lambda: app.invoke({"question": "why?"}))
    assert (stock.seconds, fast.seconds) == (2.0, 2.0 if deny else 1.0)
    assert fast.value == stock.value
    assert [each.name for each in fineflow.status().routed] == ([] if deny else ["CompiledStateGraph"])


def test_methods_that_calls_inside_functions_have_wrapped_are_routed() -> None:
    """The wrappers of calls inside functions stay in classes; routing may come before or after them."""

    class Chain(Runnable[Any, Any]):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return str(input)

    claims_of(Chain, "invoke")
    for _ in range(2):
        fineflow.instrument()
        assert Chain().invoke(1) == "1"
        assert fineflow.status().calls == 1
        fineflow.uninstrument()
    fineflow.instrument()
    looks_through(Chain, "invoke")
    assert Chain().invoke(1) == "1"
    assert fineflow.status().calls == 1


@needs_virtual_threads
def test_llamaindex_gains() -> None:
    app = APPS["hybrid"].make(Kit(1))
    stock = virtual_threads.run(lambda: app.query("What is the capital of France?"))
    fineflow.instrument()
    fast = virtual_threads.run(lambda: app.query("What is the capital of France?"))
    assert (stock.seconds, fast.seconds) == (1.5, 1.25)
    assert str(fast.value) == str(stock.value)
    assert [(each.calls, each.ahead) for each in fineflow.status().routed] == [(1, 1)]


def test_uninstrument_restores_the_methods() -> None:
    def methods() -> list[Any]:
        kinds = [Runnable, RunnableSequence, RunnableLambda, BaseQueryEngine]
        return [vars(kind).get(name) for kind in kinds for name in ("invoke", "ainvoke", "stream", "query", "aquery")]

    before, subclassing = methods(), vars(Runnable).get("__init_subclass__")
    fineflow.instrument()
    fineflow.instrument()
    assert methods() != before
    assert inspect.iscoroutinefunction(RunnableSequence.ainvoke)
    assert inspect.signature(RunnableSequence.invoke).parameters.keys() == {"self", "input", "config", "kwargs"}
    fineflow.uninstrument()
    fineflow.uninstrument()
    assert methods() == before
    assert vars(Runnable).get("__init_subclass__") is subclassing
    assert graded().invoke(["a"]) == graded().invoke(["a"])
    assert not fineflow.status().active


@pytest.mark.parametrize(
    ("lists", "calls"),
    [
        ({}, 2),
        ({"allow": [RunnableLambda]}, 1),
        ({"deny": [RunnableLambda]}, 1),
        ({"allow": ["langchain_core.runnables.base.RunnableSequence"]}, 1),
        ({"deny": ["langchain_core."]}, 0),
        ({"allow": [lambda obj: isinstance(obj, RunnableSequence)]}, 1),
    ],
)
def test_lists_of_what_is_meant(lists: Any, calls: int) -> None:
    fineflow.instrument(**lists)
    graded().invoke(["a"])
    (RunnableLambda(str) | RunnableLambda(len)).invoke(1)
    assert fineflow.status().calls == calls


@pytest.mark.parametrize("bad", [{"allow": "langchain"}, {"deny": RunnableLambda}, {"allow": [3]}, {"deny": 3}])
def test_bad_lists_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="must be a list of classes, beginnings of"):
        fineflow.instrument(**bad)
    with pytest.raises(TypeError, match="instrument got an unknown option 'nothing'; it takes allow, deny, passes"):
        fineflow.instrument(nothing=True)
    with pytest.raises(ValueError, match="timeout"):
        fineflow.instrument(timeout=-1)
    assert not fineflow.status().active


def test_paused_disabled_and_optimized_objects_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    app = graded()
    fast = fineflow.optimize(app)
    fineflow.instrument()
    with fineflow.paused():
        app.invoke(["a"])
    assert fineflow.status().calls == 0
    fineflow.uninstrument()
    monkeypatch.setenv("FINEFLOW_DISABLE", "1")
    fineflow.instrument()
    assert not fineflow.status().active
    assert fast.invoke(["a"]) == app.invoke(["a"])


def test_only_outermost_calls_in_all_threads_and_tasks() -> None:
    app = graded()
    fineflow.instrument()
    threads = [threading.Thread(target=app.invoke, args=(["a", "b"],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def run() -> list[Any]:
        return await asyncio.gather(*(app.ainvoke(["a"]) for _ in range(8)))

    asyncio.run(run())
    list(app.stream(["a"]))
    stream = app.stream(["a", "b"])
    next(stream)
    stream.close()
    app.batch([["a"], ["b"]])
    assert fineflow.status().calls == 19
    assert "19 calls routed" in str(fineflow.status())


def test_classes_made_later_and_errors() -> None:
    fineflow.instrument()

    class Mine(RunnableLambda[Any, Any]):
        pass

    def fails(_: Any) -> Any:
        raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's"):
        Mine(fails).invoke(1)
    assert [each.name for each in fineflow.status().routed] == ["Mine"]


def test_faults_do_not_reach_the_call() -> None:
    def broken(_: Any) -> bool:
        raise RuntimeError("broken")

    fineflow.instrument(deny=[broken])
    with pytest.warns(FineflowWarning, match="could not be routed"):
        assert RunnableLambda(len).invoke("abc") == 3
    assert fineflow.status().faults == 1


def test_objects_called_once_are_not_kept() -> None:
    fineflow.instrument()
    app = graded()
    app.invoke(["a"])
    gone = weakref.ref(app)
    del app
    fineflow.shutdown()  # its loop may still be about to end what it did for the call
    gc.collect()
    assert gone() is None


def test_the_instrumentor_does_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made = FineflowInstrumentor()
    made.instrument(skip_dep_check=True)  # as opentelemetry-instrument does
    assert not made.is_instrumented_by_opentelemetry
    monkeypatch.setenv("FINEFLOW_INSTRUMENT", "1")
    made.instrument(skip_dep_check=True)
    assert made.is_instrumented_by_opentelemetry
    made.uninstrument()
    made.instrument()
    assert made.is_instrumented_by_opentelemetry and not made.instrumentation_dependencies()
    made.uninstrument()


FIRST = """
import sys
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
import fineflow
fineflow.instrument()
before = set(sys.modules)
RunnablePassthrough.assign(a=RunnableLambda(str)).invoke({})
ours = ("fineflow.adapters.langchain", "langchain_classic")
print([each for each in sys.modules if each not in before and each.startswith(ours)])
"""


def test_the_first_call_imports_no_adapter_where_the_framework_is_there_before() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
