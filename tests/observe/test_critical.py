"""Tables and marks of critical paths: who enters where, what is predicted, what was measured."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from fineflow.cost_model.costs import Costs
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.ir.text import Marks, duration, format_graph, inside
from fineflow.observe.critical import Forecasts, format_path, marks, measured, predicted
from fineflow.runtime.call.trace import CLAIMED, LEFT, STOCK, Stamp, Trace, measured_path, steps
from fineflow.testing.langchain import FakeChat, FakeVectorStore

ENTRIES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


def ask(text: str) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | FakeChat() | StrOutputParser()


def two_models() -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(a=ask("A {question}")) | RunnablePassthrough.assign(b=ask("B {question}"))


@fineflow.external
class Whole(BaseChatModel):
    """A chat model that writes its answer all at once."""

    @property
    def _llm_type(self) -> str:
        return "whole"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("one\ntwo"))])


def searches() -> Runnable[Any, Any]:
    """What stock's sync methods do one by one, and its async methods side by side."""
    return MultiQueryRetriever.from_llm(FakeVectorStore().as_retriever(), Whole())


def graph(*, chained: bool) -> Graph:
    first = Primitive("a.search", Op.SEARCH, {"query": Ref("input")}, engine="store")
    second = Primitive("b.search", Op.SEARCH, {"query": Ref("input")}, engine="store")
    second = second.with_(after=("a.search",) if chained else ())
    return Graph(
        (first, second, Primitive("both", Op.RECORD, {"a": Ref("a.search"), "b": Ref("b.search")})), Ref("both")
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.0099, "9.9 ms"),
        (0.01, "10 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.524, "1.52 s"),
        (99.99, "99.99 s"),
        (100.2, "100 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def known() -> Costs:
    costs = Costs()
    for _ in range(3):
        costs.observe("store", Op.SEARCH, None, 0.03)
    return costs


def test_what_nobody_has_measured_has_no_seconds() -> None:
    forecasts = Forecasts.of(graph(chained=True), graph(chained=False), Costs())
    heading, _, rows = predicted(forecasts, ENTRIES, ()) or ("", (), [])
    assert heading == "Critical path in steps; seconds follow once store ran three times in this process"
    assert list(rows) == [
        ("as written", "any", "2 steps", "a.search, b.search"),
        ("as run", "any", "1 step", "a.search"),
    ]
    assert marks(forecasts.run) == Marks({}, frozenset({"a.search"}))
    text = str(fineflow.explain(two_models(), graphs=True))
    assert "  as written  any         2 steps  a/llm.decode, b/llm.decode" in text
    assert " s\n" not in text and " ms" not in text


def test_a_step_beside_the_path_may_be_unknown() -> None:
    costs = known()
    other = Primitive("c.search", Op.SEARCH, {"query": Ref("input")}, engine="other")
    both = Graph((*graph(chained=True).primitives, other), Ref("both"))
    heading, _, _ = predicted(Forecasts.of(both, both, costs), ENTRIES, ()) or ("", (), [])
    assert heading.startswith("Predicted critical path, from measurements")


def test_predicted_before_and_after() -> None:
    forecasts = Forecasts.of(graph(chained=True), graph(chained=False), known())
    heading, columns, rows = predicted(forecasts, ENTRIES, ()) or ("", (), [])
    assert heading.startswith("Predicted critical path, from measurements; engines are assumed idle")
    assert columns == ("graph", "entered by", "length", "path")
    assert [tuple(cell.replace("\u00a0", " ") for cell in row) for row in rows] == [
        ("as written", "any", "60 ms", "a.search 30 ms, b.search 30 ms"),
        ("as run", "any", "30 ms", "a.search 30 ms"),
    ]
    _, _, rows = predicted(forecasts, ENTRIES, ("ainvoke", "abatch")) or ("", (), [])
    assert rows[-1][:2] == ("as run", "invoke, stream, astream, batch")
    _, _, rows = predicted(forecasts, ENTRIES, ENTRIES) or ("", (), [])
    assert [row[0] for row in rows] == ["as written"]


def test_nothing_to_predict_is_not_told() -> None:
    plain = Graph((Primitive("pick", Op.PICK, {"x": Ref("input")}),), Ref("pick"))
    assert predicted(Forecasts.of(plain, plain, Costs()), ENTRIES, ()) is None


def test_a_path_in_words() -> None:
    within = inside("each", "for each item", "find")
    seconds = {"llm": 1.5, "each": 0.2, within: 0.1, "end": 1.0}
    words = format_path(("llm", "each", within, "end"), seconds)
    assert words.replace("\u00a0", " ") == "llm 1.50 s, each 200 ms (find 100 ms), end 1.00 s"


def test_sync_and_async_are_told_apart_where_stock_differs() -> None:
    explained = fineflow.explain(searches(), graphs=True)
    assert explained.stock == ("ainvoke", "astream", "abatch")
    assert (
        "ainvoke, astream and abatch run as stock, through your own object: there nothing can start earlier than stock "
        "starts it." in explained.summary
    )
    rows = [line.split()[:6] for line in str(explained).splitlines() if line.startswith("  as ")]
    assert rows[0][:5] == ["as", "written", "ainvoke,", "astream,", "abatch"]
    assert rows[1][:5] == ["as", "written", "invoke,", "stream,", "batch"]
    assert rows[2][:5] == ["as", "run", "invoke,", "stream,", "batch"]


def test_an_ensemble_is_searched_one_by_one_in_sync_calls() -> None:
    store = FakeVectorStore().as_retriever()
    made = EnsembleRetriever(retrievers=[store, store, store], weights=[1, 1, 1])
    forecasts = fineflow.explain(made).forecasts
    assert forecasts is not None
    assert forecasts.written_sync.steps == 3 * forecasts.written.steps == 3 * forecasts.run.steps


def test_all_ways_in_gain_or_none() -> None:
    assert fineflow.explain(two_models()).stock == ()
    nothing = fineflow.explain(ask("{question}"), graphs=True)
    assert (nothing.stock, nothing.fallback) == ((), "nothing in it can start earlier than stock starts it")
    assert "  as written  any         1 step  llm.decode" in str(nothing)
    assert "as run" not in str(nothing)


def test_with_eager_nothing_but_batches_is_left_to_stock() -> None:
    assert fineflow.explain(fineflow.optimize(ask("{question}"), eager=True)).stock == ("batch", "abatch")


def stamp(ready: float, ended: float | None, taken: str = "", begun: float | None = None) -> Stamp:
    made = Stamp(ready, taken)
    made.ended, made.begun = ended, begun
    return made


def trace() -> Trace:
    """A list is written from 0 to 4 s and searched item by item, then the answer waits 1 s for its engine."""
    body = Graph((Primitive("find", Op.SEARCH, {"query": Ref("item")}),), Ref("find"), ("item",))
    run = Graph(
        (
            Primitive("llm.decode", Op.PARTIAL_DECODE, {"prompt": Ref("input")}),
            Primitive("lines", Op.PARSE, {"text": Ref("llm.decode", stream=True)}),
            Primitive("each", Op.MAP, {"items": Ref("lines", stream=True)}, body=body),
            Primitive("own", Op.CALL, {"x": Ref("input")}, effects=Effects(Effect.OPAQUE)),
            Primitive("answer", Op.DECODE, {"prompt": Ref("each")}, after=("own",)),
            Primitive("aside", Op.SEARCH, {"query": Ref("input")}),
            Primitive("never", Op.CALL, {"x": Ref("input")}, by_stock=True),
            Primitive("out", Op.RECORD, {"a": Ref("answer"), "b": Ref("aside")}, by_stock=True),
        ),
        Ref("out"),
    )
    stamps = {
        "llm.decode": stamp(10.0, 14.0, CLAIMED),
        "lines": stamp(10.0, 10.0),
        "each": stamp(10.0, 14.5),
        "own": stamp(13.0, 13.5, STOCK),
        "answer": stamp(14.5, 17.5, CLAIMED, begun=15.5),
        "aside": stamp(10.0, 12.0, LEFT),
        "never": stamp(10.0, None, STOCK),
    }
    items = [{"find": stamp(11.0 + i, 11.5 + i, CLAIMED)} for i in range(4)]
    return Trace("ainvoke", 10.0, 18.0, [(run, stamps), *((body, item) for item in items)])


def test_the_measured_path() -> None:
    assert measured_path(trace()) == (
        ("llm.decode", 4.0),
        ("lines", 0.0),  # it ends with what it reads
        ("each", 0.5),
        (inside("each", "for each item", "find"), 0.5),
        ("answer", 3.0),
    )


def test_the_steps() -> None:
    found = {step.name: step for step in steps(trace())}
    assert "never" not in found and "out" not in found
    answer = found["answer"]
    assert (answer.ready, answer.waited, answer.ran, answer.times, answer.taken) == (4.5, 1.0, 2.0, 1, (CLAIMED,))
    find = found[inside("each", "for each item", "find")]
    assert (find.ready, find.ran, find.times, find.taken) == (1.0, 0.5, 4, (CLAIMED,) * 4)


def test_the_tables_of_a_call() -> None:
    path, every = measured(trace(), None)
    assert path[0] == "Last run: ainvoke took 8.00 s; its critical path, as measured"
    assert [row[0] for row in path[2]] == ["4.00 s", "500 ms", "500 ms", "3.00 s"]
    assert list(every[2]) == [
        ("0 ms", "0 ms", "4.00 s", "claimed", "llm.decode"),
        ("0 ms", "0 ms", "2.00 s", "", "each"),  # it waited for items the rest of the time
        ("1.00 s", "0 ms", "500 ms", "4 claimed", "each > for each item > find, 4 times (the longest)"),
        ("3.00 s", "0 ms", "500 ms", "run by stock", "own"),
        ("4.50 s", "1.00 s", "2.00 s", "claimed", "answer"),
        ("0 ms", "0 ms", "2.00 s", "not claimed", "aside"),
    ]


def test_a_call_in_which_nothing_ended() -> None:
    only = Graph((Primitive("llm", Op.DECODE, {"prompt": Ref("input")}),), Ref("llm"))
    path, every = measured(Trace("invoke", 0.0, 2.0, [(only, {"llm": stamp(0.5, None, LEFT)})]), None)
    assert list(every[2]) == [("500 ms", "0 ms", "did not end", "not claimed", "llm")]
    assert list(path[2]) == [("0 ms", "", "llm")]
    assert measured_path(Trace("invoke", 0.0, 1.0, ())) == ()


def test_marks_in_the_text() -> None:
    forecasts = Forecasts.of(graph(chained=True), graph(chained=False), known())
    own = Primitive("own", Op.CALL, {"x": Ref("both")}, meta={"where": "app.py:3"})
    shown = format_graph(
        Graph((*graph(chained=False), own), Ref("own")), marks=Marks(forecasts.run.each, marks(forecasts.run).critical)
    )
    assert "search(query=input)  on store  30 ms, critical\n" in shown
    assert "search(query=input)  on store  30 ms\n" in shown
    assert "call(x=3)  pure, app.py:3\n" in shown
