"""Functions declared with effects: what need not wait for them, and that they are called as stock calls them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from effect_chains import SESSION, answer, calling, declared, planned, retrieval
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnablePassthrough, RunnablePick
from pipelines import DIRECT, ask, echo, same, store

import fineflow
from fineflow.ir import Effect, Op
from fineflow.passes import prune
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat


def test_a_read_runs_ahead_and_a_write_is_stocks() -> None:
    @fineflow.effects(reads="history")
    def load(x: Any) -> str:
        return f"earlier in {x['session']}"

    @fineflow.effects(writes="log")
    def audit(x: Any) -> None: ...

    chain = RunnablePassthrough.assign(history=load) | RunnablePassthrough.assign(_=audit) | retrieval() | answer()
    plan = planned(chain)
    assert str(plan["load.call"].effects) == "read(history)"
    assert not plan["load.call"].by_stock
    assert str(plan["audit.call"].effects) == "write(log)"
    assert plan["audit.call"].by_stock
    assert plan["retriever.search"].after == ()
    assert plan["llm.decode"].after == ()


def test_a_store_given_as_a_resource_is_the_one_that_is_searched() -> None:
    found, other = store(), store()

    @fineflow.effects(reads="models", writes=(found, "log"))
    def ingest(x: Any) -> None: ...

    chain = (
        RunnablePassthrough.assign(_=ingest)
        | retrieval(found)
        | RunnablePassthrough.assign(more=RunnablePick("question") | other.as_retriever())
    )
    graph = fineflow.explain(chain).e_graph
    assert graph is not None
    assert str(graph["_/ingest.call"].effects) == "write(FakeVectorStore) write(log) read(models)"
    searches = [p for p in graph if p.op is Op.SEARCH]
    assert [(p.effects.resource, p.after) for p in searches] == [
        ("FakeVectorStore", ("_/ingest.call",)),
        ("FakeVectorStore~2", ()),
    ]


def test_a_retriever_stands_for_its_store() -> None:
    found = store()

    @fineflow.effects(writes=found.as_retriever())
    def ingest(x: Any) -> None: ...

    assert planned(RunnablePassthrough.assign(_=ingest) | retrieval(found))["retriever.search"].after


@pytest.mark.parametrize("kind", ["config", "generator", "runnable"])
def test_a_read_that_has_to_be_called_in_its_place(kind: str) -> None:
    inner = RunnableLambda(lambda x: "earlier")

    @fineflow.effects(reads="history")
    def configured(x: Any, config: RunnableConfig) -> str:
        return f"earlier {config['tags']}"

    @fineflow.effects(reads="history")
    def generating(x: Any) -> Iterator[str]:
        yield "earl"
        yield "ier"

    @fineflow.effects(reads="history")
    def nesting(x: Any) -> Any:
        return inner.invoke(x)

    load: Any = {"config": configured, "generator": generating, "runnable": nesting}[kind]

    def make() -> Any:
        return RunnablePassthrough.assign(history=RunnableLambda(load)) | retrieval() | answer()

    plan = planned(make())
    assert plan[f"{load.__name__}.call"].by_stock
    assert plan[f"{load.__name__}.call"].effects.kind is Effect.READ
    assert plan["retriever.search"].after == ()
    same(make, SESSION, entries=DIRECT)  # a generator cannot be streamed from in async calls


def test_a_function_beside_the_value() -> None:
    def make() -> Any:
        log: list[Any] = []
        show = declared(log, writes="log")("show", None)
        return RunnablePassthrough(show) | retrieval() | answer("{docs} {question}"), log

    assert str(planned(make()[0])["function.call"].effects) == "write(log)"
    assert planned(make()[0])["retriever.search"].after == ()
    same(make, SESSION)


@pytest.mark.parametrize("passes", [[each for each in fineflow.PASSES if each is not prune], fineflow.PASSES])
def test_with_and_without_the_pass(passes: Any) -> None:
    def make() -> Any:
        log: list[Any] = []
        load = declared(log, reads="history")("load", "earlier")
        save = declared(log, writes="history")("save", "saved")
        return (
            RunnablePassthrough.assign(history=load)
            | RunnablePassthrough.assign(saved=save)
            | RunnablePassthrough.assign(again=load)
            | retrieval()
            | RunnablePassthrough.assign(answer=answer("{again} {docs}"))
        ), log

    same(make, SESSION, passes=passes)


def test_a_declaration_outranks_assume_pure() -> None:
    def make() -> Any:
        log: list[str] = []

        @fineflow.effects(writes="log")
        def audit(x: Any) -> str:
            log.append("written")
            return "audited"

        return RunnablePassthrough.assign(audited=audit) | ask("{audited} {question}") | FakeChat(answers=echo), log

    same(make, assume_pure=True)


# --- that it overlaps


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_search_runs_while_the_history_is_read(sync: bool) -> None:
    gate = Gate()
    found = store()

    @fineflow.effects(reads="history")
    def load(x: Any) -> str:
        gate.wait_sync()
        return "earlier"

    chain = RunnablePassthrough.assign(history=load) | retrieval(found) | answer()
    with calling(chain, sync=sync) as value:
        gate.wait_arrived()
        found.meter._signal.wait_sync(lambda: len(found.meter.spans) == 1, 10, lambda: "no search has ended")
        assert not value
        gate.open()
    assert value == [chain.invoke(SESSION)]


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_read_runs_while_a_model_writes(sync: bool) -> None:
    """It comes after the model in the chain, and reads no more than the session."""
    writing, reading = Gate(), Gate()

    @fineflow.effects(reads="history")
    async def aload(x: Any) -> str:
        await reading.wait()
        return f"earlier in {x['session']}"

    @fineflow.effects(reads="history")
    def load(x: Any) -> str:
        reading.wait_sync()
        return f"earlier in {x.get('session', 'none')}"

    model = FakeChat(default="fact", gate=writing)
    chain = (
        RunnablePassthrough.assign(docs=ask("classify {question}") | model | StrOutputParser())
        | RunnablePassthrough.assign(history=RunnableLambda(load, aload))
        | answer()
    )
    with calling(chain, sync=sync) as value:
        writing.wait_arrived()
        reading.wait_arrived()
        assert not value
        reading.open()
        writing.open()
    assert value == [chain.invoke(SESSION)]


def test_a_model_and_a_search_run_while_a_write_is_under_way_and_a_read_of_the_same_does_not() -> None:
    writing, reading = Gate(), Gate(opened=True)
    found, model = store(), FakeChat(answers=echo)
    order: list[str] = []

    @fineflow.effects(writes="history")
    def save(x: Any) -> str:
        writing.wait_sync()
        order.append("saved")
        return "saved"

    @fineflow.effects(reads="history")
    def load(x: Any) -> str:
        reading.wait_sync()
        order.append("loaded")
        return f"earlier in {x['session']}"

    chain = (
        RunnablePassthrough.assign(saved=save)
        | RunnablePassthrough.assign(history=load)
        | retrieval(found)
        | RunnablePassthrough.assign(answer=ask("{docs} {question}") | model | StrOutputParser())
    )
    with calling(chain) as value:
        writing.wait_arrived()
        model.meter._signal.wait_sync(lambda: len(model.meter.spans) == 1, 10, lambda: "no model has ended")
        assert (reading.arrivals, order, value) == (0, [], [])
        writing.open()
    assert order == ["saved", "loaded"]
    assert value[0]["history"] == "earlier in s7"
