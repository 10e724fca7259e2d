"""Functions declared with effects: what need not wait for them, and that they are called as stock calls them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableBranch, RunnableConfig, RunnableLambda, RunnablePassthrough, RunnablePick
from pipelines import DIRECT, ENTRIES, QUESTION, ask, echo, same, store

import fineflow
from fineflow.ir import Effect, Op
from fineflow.passes import prune
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeVectorStore

SESSION = {**QUESTION, "session": "s7"}


def answer(text: str = "{history} {docs} {question}") -> Any:
    return ask(text) | FakeChat(answers=echo) | StrOutputParser()


def retrieval(found: FakeVectorStore | None = None) -> Any:
    return RunnablePassthrough.assign(docs=RunnablePick("question") | (found or store()).as_retriever())


@contextmanager
def calling(chain: Any, input: Any = SESSION, *, sync: bool = True, config: Any = None) -> Iterator[list[Any]]:
    """The call runs in a thread of its own while the block looks at it; its value is in the list afterwards."""
    made = fineflow.optimize(chain, strict=True)
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(made.invoke(input, config) if sync else asyncio.run(made.ainvoke(input, config)))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    yield found
    thread.join(10)
    assert not thread.is_alive()


# --- what is planned


def planned(chain: Any) -> dict[str, Any]:
    graph = fineflow.explain(chain).e_graph
    assert graph is not None
    return {p.name.rpartition("/")[2]: p for p in graph}


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


# --- that nobody can tell


def declared(log: list[Any], **effects: Any) -> Callable[[str, Any], Callable[[Any], Any]]:
    """Functions of one declaration that note their calls, and return or raise what they are made with."""

    def make(name: str, result: Any) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            log.append((name, sorted(x) if isinstance(x, dict) else x))
            if isinstance(result, Exception):
                raise type(result)(*result.args)
            return result

        return fineflow.effects(**effects)(function)

    return make


@pytest.mark.parametrize(
    "result",
    ["earlier", ValueError("no history"), ["a", "b"], None, pytest.param(iter(["once"]), id="iterator")],
    ids=repr,
)
def test_a_read_is_called_once_and_its_result_or_failure_is_stocks(result: Any) -> None:
    def make() -> Any:
        log: list[Any] = []
        value = iter(["once"]) if not isinstance(result, (str, Exception, list, type(None))) else result
        load = declared(log, reads="history")("load", value)
        shown = RunnableLambda(lambda x: str(type(x["history"])))
        return RunnablePassthrough.assign(history=load) | RunnablePassthrough.assign(kind=shown) | retrieval(), log

    # Where stock streams, it leaves tasks behind when one of them has failed.
    same(make, SESSION, **({"entries": DIRECT} if isinstance(result, Exception) else {}))


@pytest.mark.parametrize("shape", ["map", "map of writes", "branch", "fallbacks", "retry", "message"])
def test_inside_other_runnables(shape: str) -> None:
    def make() -> Any:
        log: list[Any] = []
        load = RunnableLambda(declared(log, reads="history")("load", "earlier"))
        save = RunnableLambda(declared(log, writes="history")("save", "saved"))
        fail = RunnableLambda(declared(log, reads="history")("fail", ValueError("no")))
        first = RunnablePassthrough.assign(a=ask("{question}") | FakeChat(answers=echo) | StrOutputParser())
        last = RunnablePassthrough.assign(history=load) | retrieval()
        middle: Any = {
            "map": RunnablePassthrough.assign(b=RunnablePick("items") | load.map()),
            "map of writes": RunnablePassthrough.assign(b=RunnablePick("items") | save.map()),
            "branch": RunnableBranch(
                (lambda x: "no" in x["question"], RunnablePassthrough.assign(b=save)),
                RunnablePassthrough.assign(b=load) | RunnablePassthrough.assign(c=save),
            ),
            "fallbacks": RunnablePassthrough.assign(b=fail.with_fallbacks([load])),
            "retry": RunnablePassthrough.assign(b=load.with_retry()),
            "message": RunnablePassthrough.assign(b=ask("{question}") | FakeChat(answers=echo)),
        }[shape]
        return first | middle | last, log

    # What stock runs side by side, such as the items of a map, has no order that could be compared: they are equal.
    same(make, {**SESSION, "items": ["x", "x"]}, entries=DIRECT if shape == "branch" else ENTRIES)


def test_a_read_of_the_list_itself_which_is_written_to_costs_no_extra_call() -> None:
    models: list[FakeChat] = []

    def make() -> Any:
        history = ["hello"]
        models.append(FakeChat(answers=echo))

        @fineflow.effects(reads="history")
        def load(x: Any) -> Any:
            return history

        @fineflow.effects(writes="history")
        def save(x: Any) -> None:
            history.append(x["question"])

        loaded = retrieval() | RunnablePassthrough.assign(history=load)
        return loaded | RunnablePassthrough.assign(saved=save) | ask("{history}") | models[-1] | StrOutputParser()

    same(make, entries=DIRECT)
    assert {model.meter.calls for model in models} == {1}


def test_two_equal_reads_are_two_calls() -> None:
    def make() -> Any:
        log: list[Any] = []
        load = declared(log, reads="history")("load", "earlier")
        both = {"one": RunnablePick("session") | load, "two": RunnablePick("session") | load}
        return RunnablePassthrough.assign(**both) | retrieval() | answer("{one} {two} {docs}"), log

    same(make, SESSION)


def test_a_write_that_fails_keeps_stock_from_what_comes_after() -> None:
    def make() -> Any:
        log: list[Any] = []
        save = declared(log, writes="db")("save", ValueError("full"))
        after = declared(log, writes="log")("after", "done")
        return (
            RunnablePassthrough.assign(saved=save)
            | retrieval()
            | RunnablePassthrough.assign(after=after)
            | RunnablePassthrough.assign(answer=answer("{docs} {question}"))
        ), log

    same(make, SESSION, entries=DIRECT)


def test_a_read_behind_a_guard_waits_for_it() -> None:
    def make() -> Any:
        log: list[Any] = []

        def guard(x: Any) -> Any:
            log.append("guard")
            raise PermissionError("no")

        load = declared(log, reads="history")("load", "earlier")
        return RunnableLambda(guard) | RunnablePassthrough.assign(history=load) | retrieval() | answer(), log

    same(make, SESSION, entries=DIRECT)


def test_a_read_whose_argument_an_opaque_step_has_changed_is_called_with_what_stock_has() -> None:
    def make() -> Any:
        log: list[Any] = []

        def change(x: Any) -> Any:
            x["session"] = "other"
            return "changed"

        @fineflow.effects(reads="history")
        def load(x: Any) -> str:
            log.append(x["session"])
            return f"earlier in {x['session']}"

        return RunnablePassthrough.assign(changed=change) | RunnablePassthrough.assign(history=load) | retrieval(), log

    same(make, SESSION, entries=DIRECT)


SETTINGS: Any = {"configurable": {"user": "u1"}}


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_read_of_whom_the_config_names_runs_ahead(sync: bool) -> None:
    seen: list[Any] = []
    writing, reading = Gate(), Gate()

    @fineflow.effects(reads="history")
    def load(x: Any, config: RunnableConfig) -> str:
        reading.wait_sync()
        seen.append(config["configurable"])
        return f"earlier of {config['configurable']['user']}"

    @fineflow.effects(reads="history")
    async def aload(x: Any, config: RunnableConfig) -> str:
        await reading.wait()
        seen.append(config["configurable"])
        return f"earlier of {config['configurable']['user']}"

    model = FakeChat(default="fact", gate=writing)
    chain = (
        RunnablePassthrough.assign(docs=ask("classify {question}") | model | StrOutputParser())
        | RunnablePassthrough.assign(history=RunnablePick("session") | RunnableLambda(load, aload))
        | answer()
    )
    with calling(chain.with_config(max_concurrency=8), sync=sync, config=SETTINGS) as value:
        writing.wait_arrived()
        reading.wait_arrived()
        reading.open()
        writing.open()
    assert "earlier of u1" in value[0]
    assert seen == [{"user": "u1"}], "called once"


@pytest.mark.parametrize("way", ["of the call", "of a step", "missing"])
def test_the_config_is_that_of_its_place(way: str) -> None:
    def make() -> Any:
        log: list[Any] = []

        @fineflow.effects(reads="history")
        def load(x: Any, config: RunnableConfig) -> str:
            log.append("called")
            return f"earlier of {config['configurable'].get('user')} in {x['session']}"

        step = RunnablePassthrough.assign(history=load) | retrieval() | answer()
        return step.with_config(configurable={"user": "u2"}) if way == "of a step" else step, log

    same(make, SESSION, config=SETTINGS if way != "missing" else None)
    plan = planned(make()[0])
    assert plan["load.call"].by_stock is (way == "of a step")


def test_an_async_function_that_is_declared_pure_runs_ahead() -> None:
    def make() -> Any:
        log: list[Any] = []

        @fineflow.pure
        async def shout(x: Any) -> str:
            log.append("called")
            return str(x["question"]).upper()

        return retrieval() | RunnablePassthrough.assign(loud=shout) | ask("{loud}") | FakeChat(answers=echo), log

    plan = planned(make()[0])
    assert plan["shout.call"].effects.kind is Effect.PURE
    assert plan["llm.decode"].after == ()
    assert not plan["shout.call"].by_stock
    same(make, entries=("ainvoke", "astream", "abatch", "invoke"))


@pytest.mark.parametrize("kind", ["async only", "both", "partial", "bound"])
def test_kinds_of_functions(kind: str) -> None:
    def make() -> Any:
        log: list[Any] = []

        @fineflow.effects(reads="history")
        async def aload(x: Any) -> str:
            log.append("called")
            return f"earlier in {x['session']}"

        @fineflow.effects(reads="history")
        def load(x: Any, more: str = "") -> str:
            log.append("called")
            return f"earlier in {x['session']}{more}"

        class Memory:
            @fineflow.effects(reads="history")
            def load(self, x: Any) -> str:
                return load(x)

        step = {
            "async only": RunnableLambda(aload),
            "both": RunnableLambda(load, aload),
            "partial": RunnableLambda(partial(load, more="!")),
            "bound": RunnableLambda(Memory().load),
        }[kind]
        return RunnablePassthrough.assign(history=step) | retrieval() | answer(), log

    entries = ("ainvoke", "astream", "abatch", "invoke") if kind == "async only" else DIRECT
    same(make, SESSION, entries=entries)


def test_a_read_that_starts_a_run_unexpectedly_is_stocks_from_then_on() -> None:
    parts = {"inner": RunnableLambda(lambda x: "earlier")}

    @fineflow.effects(reads="history")
    def load(x: Any) -> Any:
        return parts["inner"].invoke(x)

    step = RunnableLambda(load)
    chain = RunnablePassthrough.assign(history=step) | retrieval() | answer()
    same(lambda: chain, SESSION, entries=DIRECT)
    assert planned(chain)["load.call"].by_stock


def test_batches_write_for_all_inputs_before_any_goes_on() -> None:
    def make() -> Any:
        written: list[str] = []

        @fineflow.effects(writes="db")
        def save(x: Any) -> str:
            written.append(x["question"])
            return "saved"

        @fineflow.effects(reads="db")
        def count(x: Any) -> int:
            return len(written)

        return RunnablePassthrough.assign(saved=save) | RunnablePassthrough.assign(count=count) | retrieval()

    same(make, SESSION, entries=("batch", "abatch"))
    two = [SESSION, {**SESSION, "question": "Which town?"}]
    assert [v["count"] for v in fineflow.optimize(make(), strict=True).batch(two)] == [2, 2]
