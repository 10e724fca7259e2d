"""explain(..., last_run=True): what the last call took, step by step, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import MappingProxyType
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.ir import Graph
from fineflow.observe.critical import measured_marks
from fineflow.runtime.call.trace import CLAIMED, JOINED, LEFT, STOCK, Stamps, Step, Trace, Warmed, measured_path, steps
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeVectorStore
from fineflow.testing.virtual import run

QUESTION = {"question": "Where?"}
asked: list[Any] = []


def ask(text: str, seconds: float = 0.0, **settings: Any) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | FakeChat(prefill=seconds, **settings) | StrOutputParser()


def join(docs: list[Any]) -> str:
    return " ".join(doc.page_content for doc in docs)


def audit(value: Any) -> Any:
    asked.append(value)
    return value


def assistant(*, seconds: float = 0.25, **settings: Any) -> Runnable[Any, Any]:
    found = (lambda x: x["question"]) | FakeVectorStore(latency=seconds).as_retriever() | join
    return (
        RunnablePassthrough.assign(category=ask("Classify {question}", 2 * seconds, **settings))
        | RunnablePassthrough.assign(context=found)
        | audit
        | ask("Answer {question} from {context} as {category}", 4 * seconds)
    )


def last(mine: Any) -> Trace:
    found = fineflow.explain(mine, last_run=True).trace
    assert found is not None
    return found


def by_name(trace: Trace) -> dict[str, Step]:
    return {step.name: step for step in steps(trace)}


def test_what_each_step_took_and_what_decided_the_end() -> None:
    mine = fineflow.optimize(assistant(), strict=True)
    ran = run(mine.ainvoke(QUESTION))
    trace = last(mine)
    assert (trace.entry, trace.seconds) == ("ainvoke", pytest.approx(1.5))
    assert ran.seconds == pytest.approx(trace.seconds)
    found = by_name(trace)
    classify, search, own, answer = (
        found[name] for name in ("category/llm.decode", "context/retriever.search", "audit.call", "llm.decode")
    )
    assert (classify.ready, classify.ran, classify.taken) == (0, pytest.approx(0.5), (CLAIMED,))
    assert (search.ready, search.ran, search.taken) == (0, pytest.approx(0.25), (CLAIMED,))
    assert (own.ready, own.ran, own.taken) == (pytest.approx(0.5), 0, (STOCK,))
    assert (answer.ready, answer.ran, answer.taken) == (pytest.approx(0.5), pytest.approx(1.0), (CLAIMED,))
    path = {name: seconds for name, seconds in measured_path(trace) if seconds}
    assert path == {"category/llm.decode": pytest.approx(0.5), "llm.decode": pytest.approx(1.0)}
    assert measured_marks(trace).critical >= {"category/llm.decode", "audit.call", "llm.decode"}
    assert "context/retriever.search" not in measured_marks(trace).critical


def test_the_text_of_it() -> None:
    mine = fineflow.optimize(assistant(), strict=True)
    for _ in range(3):
        run(mine.ainvoke(QUESTION))
    shown = str(fineflow.explain(mine, last_run=True, graphs=True))
    assert (
        """\
Predicted critical path, from measurements; engines are assumed idle, your own code counts once measured
  graph       entered by                        length  path
  as written  any                               1.75 s  category/llm.decode 500 ms, context/retriever.search 250 ms,
                                                        llm.decode 1.00 s
  as run      invoke, ainvoke, stream, astream  1.50 s  category/llm.decode 500 ms, llm.decode 1.00 s
"""
        in shown
    )
    assert (
        """\
Last run: ainvoke took 1.50 s; its critical path, as measured
  measured  predicted  step
  500 ms    500 ms     category/llm.decode
  1.00 s    1.00 s     llm.decode

Last run: when the inputs of each step were ready, how long it waited for its engine, and ran
  inputs at  waited  ran     for stock     step
  0 ms       0 ms    500 ms  claimed       category/llm.decode
  0 ms       0 ms    250 ms  claimed       context/retriever.search
  500 ms     0 ms    0 ms    run by stock  audit.call
  500 ms     0 ms    1.00 s  claimed       llm.decode
"""
        in shown
    )


def test_waiting_for_a_turn_is_told_apart_from_running() -> None:
    two = RunnablePassthrough.assign(a=ask("A {question}", 1.0)) | RunnablePassthrough.assign(
        b=ask("B {question}", 1.0)
    )
    mine = fineflow.optimize(two, strict=True)
    run(mine.ainvoke(QUESTION, {"max_concurrency": 1}))
    found = by_name(last(mine))
    assert [(found[f"{key}/llm.decode"].waited, found[f"{key}/llm.decode"].ran) for key in "ab"] == [
        (0, pytest.approx(1.0)),
        (pytest.approx(1.0), pytest.approx(1.0)),
    ]


def test_items_of_a_map_are_told_together() -> None:
    from langchain_classic.retrievers import MultiQueryRetriever

    store = FakeVectorStore(latency=0.5).as_retriever()
    retriever = MultiQueryRetriever.from_llm(store, FakeChat(prefill=1.0, default="one\ntwo\nthree"))
    mine = fineflow.optimize(retriever, strict=True)
    run(mine.ainvoke("Where?"))
    trace = last(mine)
    inner = next(step for step in steps(trace) if step.name.endswith("retriever.search"))
    assert (inner.times, inner.ran) == (3, pytest.approx(0.5))
    names = [name for name, seconds in measured_path(trace) if seconds]
    assert [name.rpartition(".")[2] for name in names] == ["decode", "searches", "search"]
    assert "retriever.search, 3 times (the longest)" in str(fineflow.explain(mine, last_run=True))


def test_a_result_that_stock_never_asked_for() -> None:
    """The opaque step fails while the search behind it, which may not run before it, has not begun."""

    def fails(value: Any) -> Any:
        raise ValueError("no")

    chain = (
        RunnablePassthrough.assign(a=RunnableLambda(fails))
        | RunnablePassthrough.assign(b=ask("B {question}", 1.0))
        | RunnablePassthrough.assign(c=ask("C {question}", 1.0))
    )
    mine = fineflow.optimize(chain, strict=True, eager=True)
    with pytest.raises(ValueError, match="no"):
        run(mine.ainvoke(QUESTION))
    assert all(step.taken != (CLAIMED,) for step in steps(last(mine)))

    first = RunnablePassthrough.assign(a=ask("A {question}", 1.0, default="x"), b=ask("B {question}", 3.0))
    late = first | RunnablePassthrough.assign(c=ask("C {question}", 2.0))
    failing = fineflow.optimize(late, strict=True)
    with pytest.raises(ValueError, match="broken"):
        run(
            fineflow.optimize(
                RunnablePassthrough.assign(a=ask("A {question}", 1.0, answers={"": ValueError("broken")})) | late,
                strict=True,
            ).ainvoke(QUESTION)
        )
    run(failing.ainvoke(QUESTION))
    assert LEFT not in {taken for step in steps(last(failing)) for taken in step.taken}


def test_sync_calls_are_recorded_too() -> None:
    gate = Gate()
    mine = fineflow.optimize(assistant(seconds=0.0, gate=gate), strict=True)
    caller = threading.Thread(target=mine.invoke, args=(QUESTION,))
    caller.start()
    gate.wait_arrived(1)
    gate.open()
    caller.join(10)
    trace = last(mine)
    assert trace.entry == "invoke"
    found = by_name(trace)
    assert found["category/llm.decode"].taken in ((CLAIMED,), (JOINED,))
    assert found["audit.call"].taken == (STOCK,)
    assert all(step.ended for step in found.values())
    assert 0 < sum(seconds for _, seconds in measured_path(trace)) <= trace.seconds
    list(mine.stream(QUESTION))
    assert last(mine).entry == "stream"


def test_nothing_of_the_values_is_kept() -> None:
    mine = fineflow.optimize(assistant(seconds=0.0), strict=True)
    mine.invoke(QUESTION)
    runs = last(mine).runs
    held = {type(each) for _, stamps in runs for each in gc.get_referents(stamps) if each is not Stamps}
    # Numbers, the permits of primitives in them, and the names of exceptions' classes.
    assert held == {bytearray, dict, Graph, MappingProxyType}
    assert not any(stamps.errors for _, stamps in runs)


def test_drawings_show_what_was_measured() -> None:
    mine = fineflow.optimize(assistant(), strict=True)
    run(mine.ainvoke(QUESTION))
    explained = fineflow.explain(mine, last_run=True)
    assert "decode 1.00 s<br/>llm.decode" in explained.to_mermaid()
    page = explained.to_html()
    assert "heavy frame: on the critical path, measured" in page
    assert "Last run: ainvoke took 1.50 s" in page


@pytest.mark.parametrize("chain", [lambda: assistant(), lambda: lambda x: x], ids=["not optimized", "no runnable"])
def test_it_takes_an_optimized_object(chain: Any) -> None:
    with pytest.raises(ValueError, match=r"expects an object that fineflow.optimize\(\) returned, .* is not optimized"):
        fineflow.explain(chain(), last_run=True)


def test_it_takes_a_call() -> None:
    idle = fineflow.optimize(assistant())
    with pytest.raises(ValueError, match="no call of this one has ended in which anything ran ahead"):
        fineflow.explain(idle, last_run=True)
    nothing = fineflow.optimize(ask("{question}"))
    nothing.invoke(QUESTION)
    with pytest.raises(ValueError, match="for why its calls run as stock"):
        fineflow.explain(nothing, last_run=True)


def test_own_code_is_measured_and_then_predicted() -> None:
    async def check(value: Any) -> Any:
        await asyncio.sleep(0.75)
        return value

    chain = RunnableLambda(check) | RunnablePassthrough.assign(a=ask("{question}", 1.0)) | assistant()
    mine = fineflow.optimize(chain, strict=True)
    assert "check" not in str(fineflow.explain(mine).timing[0])
    for _ in range(2):
        run(mine.ainvoke(QUESTION))
    explained = fineflow.explain(mine, last_run=True)
    assert explained.trace is not None
    own = next(step for step in steps(explained.trace) if step.name == "check.call")
    assert (own.ready, own.waited, own.ran) == (0, 0, pytest.approx(0.75))
    assert explained.forecasts is not None
    assert explained.forecasts.run.each["check.call"] == pytest.approx(0.75)
    assert explained.forecasts.run.names[0] == "check.call"


def test_prefills_say_what_was_cached_already() -> None:
    """The second call finds its instructions in the cache: what is new is not worth a request of its own."""
    from fineflow.engines import EmulatedLLM
    from fineflow.langchain import ChatEngine

    instructions = " ".join(f"rule {i}" for i in range(200))
    prompt = ChatPromptTemplate.from_template(f"{instructions} {{question}} {{context}}")
    found = (lambda x: x["question"]) | FakeVectorStore(latency=0.5).as_retriever() | join
    chat = ChatEngine(engine=EmulatedLLM(lambda prompt: "It is there."))
    chain = fineflow.optimize(RunnablePassthrough.assign(context=found) | prompt | chat, strict=True)

    async def asks(question: str) -> str:
        await chain.ainvoke({"question": question})
        return str(fineflow.explain(chain, last_run=True))

    async def both() -> tuple[str, str]:
        return await asks("Where is it?"), await asks("When was it built?")

    first, second = run(both()).value
    assert "400 of 400 tokens prefilled" in first
    assert "cached already: 400 of 400 tokens" in second
    assert "cached already" not in first


def test_a_prefill_of_little_says_so() -> None:
    assert Warmed(320, 400, 80).said == "320 of 400 tokens prefilled"
    assert Warmed(0, 400, 384).said == "cached already: 384 of 400 tokens"
    assert Warmed(0, 16, 0).said == "only 16 tokens"
    assert Warmed(320, 400, 80) == 320
