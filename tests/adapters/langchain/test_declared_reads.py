"""Declared reads: called once, in the right order, with the right argument and config."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from effect_chains import SESSION, answer, calling, declared, planned, retrieval
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableBranch, RunnableConfig, RunnableLambda, RunnablePassthrough, RunnablePick
from pipelines import DIRECT, ENTRIES, ask, echo, same

import fineflow
from fineflow.ir import Effect
from fineflow.testing import virtual
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat


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


@pytest.mark.parametrize("result", [lambda x: x, lambda x: x["documents"], lambda x: [x["documents"]]])
def test_a_result_may_be_a_part_of_the_argument(result: Any) -> None:
    """What is changed in it is changed there: a walk does not ask for what was there before."""
    sent: list[str] = []

    def counted(messages: list[Any]) -> str:
        sent.append(messages[-1].content)
        return str(echo(messages))

    chain = ask("{question}") | FakeChat(answers=counted, prefill=0.2) | StrOutputParser()

    @fineflow.effects(reads="documents")
    async def select(given: Any) -> Any:
        await asyncio.sleep(0.1)
        return result(given)

    async def program(question: str) -> Any:
        given = {"documents": [question]}
        first = await chain.ainvoke({"question": question})
        found = await select(given)
        (found["documents"] if isinstance(found, dict) else found).append("more")
        return first, given, await chain.ainvoke({"question": str(given)})

    stock = virtual.run(program("x")).value
    for_stock = sorted(sent)
    for _ in range(2):
        sent.clear()
        assert virtual.run(fineflow.optimize(program, strict=True)("x")).value == stock
        assert sorted(sent) == for_stock
