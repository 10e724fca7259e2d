"""Functions that print, log or read the clock: stock alone calls them, and no later step waits for them."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import pytest
from effect_chains import SESSION, answer, calling, planned, retrieval
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pipelines import ask, echo, same

import fineflow
from fineflow.ir import Effect
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeVectorStore


class _Kept(logging.Handler):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        self.log.append(record.getMessage())


def _logger(log: list[str]) -> logging.Logger:
    made = logging.Logger("told")
    made.addHandler(_Kept(log))
    return made


def _chain(log: list[str], model: FakeChat | None = None, found: FakeVectorStore | None = None) -> Any:
    """A draft, a function that logs it, a search that needs neither, and an answer."""
    logger = _logger(log)

    def tell(x: Any) -> Any:
        logger.info("draft %s", x["draft"])
        return x["draft"].upper()

    def tell_documents(x: Any) -> None:
        logger.info("%d documents for %s", len(x["docs"]), x["told"])

    draft = ask("{question}") | (model or FakeChat(answers=echo)) | StrOutputParser()
    return (
        RunnablePassthrough.assign(draft=draft)
        | RunnablePassthrough.assign(told=tell)
        | retrieval(found)
        | RunnablePassthrough(tell_documents)
        | answer("{told} {docs} {question}")
    )


def test_no_step_waits_for_a_function_that_only_logs() -> None:
    plan = planned(_chain([]))
    assert plan["tell.call"].effects.kind is Effect.UNORDERED
    assert plan["tell.call"].by_stock
    assert plan["retriever.search"].after == ()
    text = str(fineflow.explain(_chain([]), graphs=True))
    assert "logs, so only stock calls it; no later step waits for that" in text


@pytest.mark.parametrize("sync", [True, False], ids=["invoke", "ainvoke"])
def test_a_search_starts_before_an_earlier_function_has_logged(sync: bool) -> None:
    gate = Gate()
    found = FakeVectorStore.from_texts(["it"], FakeVectorStore().embedding, gate=gate)
    written, log = Gate(), list[str]()
    with calling(_chain(log, FakeChat(answers=echo, gate=written), found), sync=sync) as answers:
        gate.wait_arrived()
        assert log == []
        written.open()
        gate.open()
    assert answers and isinstance(answers[0], str), answers
    assert [line.split()[0] for line in log] == ["draft", "1"]


def test_the_same_answers_and_lines_as_stock() -> None:
    def make() -> Any:
        log: list[str] = []
        return _chain(log), log

    same(make, SESSION)


def test_a_guard_that_logs_is_still_a_guard() -> None:
    def make() -> Any:
        log: list[str] = []
        logger = _logger(log)

        def guard(x: Any) -> Any:
            logger.warning("refused")
            if x["session"]:
                raise PermissionError("no")
            return x

        return RunnableLambda(guard) | retrieval() | answer("{docs} {question}"), log

    assert planned(make()[0])["guard.call"].effects.kind is Effect.OPAQUE
    same(make, SESSION)


def test_two_that_log_keep_stocks_batch() -> None:
    log: list[str] = []
    draft = RunnablePassthrough.assign(draft=ask("{question}") | FakeChat(answers=echo))
    chain = RunnableLambda(_telling(log)) | draft | retrieval() | _telling(log) | answer("{docs}")
    fineflow.optimize(chain, eager=True, strict=True).batch([SESSION] * 3)
    assert [line[0] for line in log] == ["1", "1", "1", "2", "2", "2"]


def _telling(log: list[str]) -> Any:
    logger = _logger(log)

    def tell(x: Any) -> Any:
        logger.info("%d %s", 1 + ("docs" in x), x["session"])
        return x

    return tell


def test_a_plan_ends_when_the_function_does_more_than_print(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    chain = RunnablePassthrough.assign(a=lambda x: _shown(x["question"])) | retrieval() | answer("{docs} {a}")
    fast = fineflow.optimize(chain, eager=True)
    stock = fast.invoke(SESSION)
    assert Effect.UNORDERED in _kinds(fast)
    monkeypatch.setitem(globals(), "_shown", lambda text: log.append(text) or _today())
    assert fast.invoke(SESSION) == stock
    assert log == [SESSION["question"]]
    assert Effect.OPAQUE in _kinds(fast)
    assert Effect.UNORDERED not in _kinds(fast)


def _kinds(fast: Any) -> set[Effect]:
    plan = fineflow.explain(fast)
    assert plan.e_graph is not None
    return {p.effects.kind for p in plan.e_graph}


def _shown(text: str) -> str:
    return _today()


def _today() -> str:
    return str(datetime.date.today().isoformat())
