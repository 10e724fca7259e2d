"""Pure functions that take time are called once: the graph computes, and stock claims the result or a copy of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from effect_chains import SESSION, answer, calling, planned, retrieval
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pipelines import DIRECT, ask, same

import fineflow
from fineflow.adapters.core import durations
from fineflow.adapters.langchain.lowering.function_claims import ABSENT, fresh_copy
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore
from fineflow.testing.virtual import run

INPUT = {"question": "What is it?", "session": "s"}


@pytest.fixture(autouse=True)
def _unmeasured() -> None:
    durations._calls.clear()


def _memory(declare: Any) -> Any:
    """Something computed in 0.3 s, a search in 0.2 s, an answer in 0.5 s."""

    async def compute(x: Any) -> str:
        await asyncio.sleep(0.3)
        return f"earlier in {x['session']}"

    store = FakeVectorStore.from_texts(["it is here"], FakeEmbeddings(), latency=0.2)
    model = FakeChat(default="so it is", prefill=0.2, step=0.1)
    history = RunnablePassthrough.assign(history=RunnableLambda(declare(compute)))
    return history | retrieval(store) | ask("{history} {docs} {question}") | model


@pytest.mark.parametrize("declare", [fineflow.pure, fineflow.effects(reads="history")], ids=["pure", "effects"])
def test_a_pure_function_gains_what_one_that_reads_does(declare: Any) -> None:
    assert run(_memory(declare).ainvoke(INPUT)).seconds == pytest.approx(1.0, abs=0.01)
    fast = fineflow.optimize(_memory(declare), strict=True)
    for _ in range(4):  # also once its duration is known
        assert run(fast.ainvoke(INPUT)).seconds == pytest.approx(0.8, abs=0.01)


class _Counted:
    """A pure function that counts its calls, and may wait. returns: makes the result of the argument."""

    def __init__(self, returns: Callable[[Any], Any], gate: Gate | None = None) -> None:
        self.calls: list[str] = []
        self.returned: list[Any] = []

        @fineflow.pure
        def compute(x: Any) -> Any:
            self.calls.append(threading.current_thread().name)
            if gate is not None:
                gate.wait_sync()
            self.returned.append(returns(x))
            return self.returned[-1]

        self.function = compute


def _chain(counted: _Counted, after: Any = None) -> Any:
    """The function, something that needs it ahead, and a step that sees its value."""
    computed = RunnablePassthrough.assign(found=counted.function)
    shown = RunnablePassthrough.assign(after=after or (lambda x: x["question"]))
    return retrieval() | computed | shown | RunnablePassthrough.assign(answer=answer("{found} {docs}"))


IMMUTABLE: list[Callable[[Any], Any]] = [
    lambda x: x["question"].upper(),
    lambda x: ("a", 1, None),
    lambda x: len(x["docs"]),
]
FRESH: list[Callable[[Any], Any]] = [
    lambda x: [x["question"], {"a": [1]}],
    lambda x: {"a": {"b"}},
    lambda x: [Document("new", metadata={"k": [x["question"]]})],
]
SHARING: list[Callable[[Any], Any]] = [
    lambda x: x["docs"][:1],
    lambda x: [x["docs"][0].metadata],
    lambda x: {"rest": x},
    lambda x: object,
]


@pytest.mark.parametrize("entry", DIRECT)
@pytest.mark.parametrize("returns", [*IMMUTABLE, *FRESH])
def test_it_is_called_once(returns: Callable[[Any], Any], entry: str) -> None:
    counted = _Counted(returns)
    chain = _chain(counted)
    assert planned(chain)["compute.call"].meta["claimed"]
    fast = fineflow.optimize(chain, strict=True, eager=True)
    got = fast.invoke(SESSION) if entry == "invoke" else asyncio.run(fast.ainvoke(SESSION))
    assert len(counted.calls) == 1
    assert got["found"] == counted.returned[0]


@pytest.mark.parametrize("returns", SHARING)
def test_a_value_that_shares_parts_with_the_argument_is_stocks_own(returns: Callable[[Any], Any]) -> None:
    counted = _Counted(returns)
    got = fineflow.optimize(_chain(counted), strict=True, eager=True).invoke(SESSION)
    assert any(got["found"] is each for each in counted.returned)
    if returns is SHARING[0]:
        assert got["found"][0] is got["docs"][0]


@pytest.mark.parametrize("returns", [*IMMUTABLE, *FRESH, *SHARING])
def test_the_same_answer_when_a_later_step_changes_the_value(returns: Callable[[Any], Any]) -> None:
    def make() -> Any:
        def change(x: Any) -> Any:
            if isinstance(x["found"], list) and isinstance(x["found"][0], Document):
                x["found"][0].metadata["seen"] = True
            if isinstance(x["found"], list):
                x["found"].append("changed")
            return len(x["docs"])

        return _chain(_Counted(returns), change)

    same(make, SESSION, entries=DIRECT)


def test_the_sides_hold_different_objects() -> None:
    gate = Gate()
    counted = _Counted(lambda x: [x["question"]], gate)
    found: list[Any] = []
    chain = _chain(counted, lambda x: found.append(x["found"]) or "")  # type: ignore[func-returns-value]
    with calling(chain) as got:
        gate.wait_arrived()
        gate.open()
    assert len(counted.calls) == 1
    assert got[0]["found"] is found[0]


@pytest.mark.parametrize("sync", [True, False], ids=["invoke", "ainvoke"])
def test_stock_waits_for_what_the_graph_computes(sync: bool) -> None:
    gate = Gate()
    counted = _Counted(lambda x: x["question"], gate)
    with calling(_chain(counted), sync=sync) as got:
        gate.wait_arrived()
        assert not got
        gate.open()
    assert got[0]["found"] == SESSION["question"]
    assert len(counted.calls) == 1


def test_a_failure_is_stocks_own() -> None:
    def make() -> Any:
        log: list[str] = []

        @fineflow.pure
        def fails(x: Any) -> Any:
            log.append("called")
            raise KeyError("no")

        return RunnablePassthrough.assign(found=fails) | retrieval() | answer("{found} {docs}"), log

    chain, _ = make()
    with pytest.raises(KeyError) as stock:
        chain.invoke(SESSION)
    chain, _ = make()
    with pytest.raises(KeyError) as ours:
        fineflow.optimize(chain, strict=True, eager=True).invoke(SESSION)
    assert [each.name for each in ours.traceback][-1] == "fails"
    assert not any("function_claims.py" in str(each.path) and each.name == "start" for each in ours.traceback)
    assert str(ours.value) == str(stock.value)


def test_an_argument_that_a_step_changes_in_place_gives_stocks_value() -> None:
    def make() -> Any:
        def change(x: Any) -> Any:
            x["parts"].append("more")
            return "changed"

        @fineflow.pure
        def count(x: Any) -> Any:
            return len(x["parts"])

        changed = RunnablePassthrough.assign(changed=change)
        return changed | RunnablePassthrough.assign(found=count) | retrieval() | answer("{found} {docs}")

    for entry in DIRECT:
        same(make, {**SESSION, "parts": ["one"]}, entries=(entry,))


def test_a_quick_function_is_soon_called_by_both_sides_and_a_slow_one_is_not() -> None:
    def quick(x: Any) -> Any:
        return x["question"]

    chain = RunnablePassthrough.assign(found=fineflow.pure(quick)) | retrieval() | answer("{found} {docs}")
    fast = fineflow.optimize(chain, strict=True, eager=True)
    assert planned(fast)["quick.call"].meta["claimed"]
    stock = fast.invoke(SESSION)
    for _ in range(2):
        durations.computed(quick, 0.0001)
    assert "claimed" not in planned(fast)["quick.call"].meta
    assert fast.invoke(SESSION) == stock

    def heavy(x: Any) -> Any:
        return len([i for i in range(200_000) if i % 3 and i % 5]) and x["question"]

    chain = RunnablePassthrough.assign(found=heavy) | retrieval() | answer("{found} {docs}")
    assert "claimed" not in planned(chain)["heavy.call"].meta
    fast = fineflow.optimize(chain, strict=True, eager=True)
    for _ in range(2):
        fast.invoke(SESSION)
    assert durations.slow(heavy)
    assert planned(fast)["heavy.call"].meta["claimed"]
    assert fast.invoke(SESSION) == chain.invoke(SESSION)


def test_fresh_copies() -> None:
    inner = ["a"]
    doc = Document("a", metadata={"k": inner})
    for value in ([inner], {"a": doc}, (inner,), [{1, 2}], [doc, doc]):
        made: Any = fresh_copy(value, ["other"])
        assert made == value
        assert made is not value
        assert fresh_copy(value, [value]) is ABSENT
    assert fresh_copy([doc, doc])[0] is not doc
    twice = fresh_copy([inner, inner])
    assert twice[0] is twice[1]
    assert fresh_copy(doc, {"deep": [inner]}) is ABSENT
    assert fresh_copy([object()]) is ABSENT
    assert fresh_copy([[]] * 3000) is ABSENT
    assert fresh_copy("text", object()) == "text"
