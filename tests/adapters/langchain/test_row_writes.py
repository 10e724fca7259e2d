"""Vectors arrive while their store writes rows: nobody can tell, whatever fails. Others get all vectors at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from pipelines import DIRECT
from row_stores import PIPELINED, WHOLE, InOneTransaction, RowStore, rows, table
from test_ingest import WordEngine

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.runtime.queues import arriving
from fineflow.testing import virtual_threads
from fineflow.testing.differential import differences, observe
from fineflow.testing.gates import Gate, wait_until

TEXTS = ["Paris is a capital", "Lyon is a town", "Rome is old", "France is large", "cheese", "wine", "bread"]
KINDS = (*PIPELINED, *WHOLE)


def chain(store: Any) -> Any:
    """Writes texts, searches, and shows what was found."""
    return (
        RunnablePassthrough.assign(ids=RunnablePick("documents") | RunnableLambda(store.add_documents))
        | RunnablePassthrough.assign(found=RunnablePick("question") | store.as_retriever())
        | RunnableLambda(lambda x: [*x["ids"], *(doc.page_content for doc in x["found"])])
    )


def given(texts: list[str]) -> dict[str, Any]:
    return {"question": "town", "documents": [Document(text) for text in texts]}


def with_(text: str, at: int) -> list[str]:
    return [*TEXTS[:at], text, *TEXTS[at:]]


BOTH = "a row is refused before a vector fails"
INPUTS = {
    "all written": TEXTS,
    "a row is refused": with_("refused", 4),
    "the first row is refused": with_("refused", 0),
    "an early vector fails": with_("poison", 1),
    "a late vector fails": with_("poison", 6),
    "the last vector fails": with_("poison", 7),
    BOTH: [*with_("refused", 2), "poison"],
    "a vector fails before a row is refused": [*with_("poison", 2), "refused"],
    "less than a batch": TEXTS[:1],
    "nothing": [],
}


@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_same_answer_and_the_same_rows(kind: type[RowStore], case: str) -> None:
    for entry in (*DIRECT, "stream", "astream") if case == "all written" else DIRECT:
        seen, left = [], []
        for optimized in (False, True):
            store = kind(EngineEmbeddings(WordEngine()), table())
            runnable = fineflow.optimize(chain(store), strict=True, eager=True) if optimized else chain(store)
            seen.append(observe(runnable, entry, given(INPUTS[case])))
            left.append(rows(store))
        assert left[1] == left[0]
        if case == BOTH and kind in PIPELINED:
            # The one thing that can be told: stock fails before it gets to the row.
            assert "IntegrityError" in str(seen[1].error) and "cannot embed" in str(seen[0].error)
        else:
            assert not (found := differences(*seen)), found


@pytest.mark.parametrize("kind", PIPELINED, ids=lambda kind: kind.__name__)
def test_rows_are_written_while_vectors_are_made(kind: type[RowStore]) -> None:
    embedding = Gate()
    store = kind(EngineEmbeddings(WordEngine(embedding)), table())
    found: list[Any] = []
    mine = fineflow.optimize(chain(store), strict=True, eager=True)
    thread = threading.Thread(target=lambda: found.append(mine.invoke(given(TEXTS))))
    thread.start()
    embedding.let(4)  # two batches of two
    wait_until(lambda: store.connection.in_transaction)
    wait_until(lambda: store.connection.total_changes == 4)
    assert not found
    embedding.open()
    thread.join(10)
    assert found == [chain(kind(EngineEmbeddings(WordEngine()), table())).invoke(given(TEXTS))]


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_stores_with_a_catch_get_all_vectors_at_once(kind: type[RowStore], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving.Arriving, "__init__", lambda *args: pytest.fail("vectors are handed over one by one"))
    store = kind(EngineEmbeddings(WordEngine()), table())
    fineflow.optimize(chain(store), strict=True, eager=True).invoke(given(TEXTS))
    assert store.connection.execute("SELECT count(*) FROM rows").fetchone() == (len(TEXTS),)


def handed_over(store: RowStore, monkeypatch: pytest.MonkeyPatch, runnable: Any = None) -> bool:
    """Returns True if the store gets its vectors one after the other."""
    made: list[Any] = []
    begin = arriving.Arriving.__init__
    monkeypatch.setattr(arriving.Arriving, "__init__", lambda *args: (made.append(args), begin(*args))[1])
    (runnable or fineflow.optimize(chain(store), strict=True, eager=True)).invoke(given(TEXTS))
    return bool(made)


def test_only_where_a_failure_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(connection: Any) -> RowStore:
        return InOneTransaction(EngineEmbeddings(WordEngine()), connection)

    assert handed_over(store(table()), monkeypatch)
    assert not handed_over(store(table(isolation=None)), monkeypatch), "each statement is committed"
    begun = table()
    begun.execute("INSERT INTO rows VALUES (0, 'before', ?)", (str([0.0] * 32),))
    assert not handed_over(store(begun), monkeypatch), "what was written before would be undone, too"


def test_only_in_optimized_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    store = InOneTransaction(EngineEmbeddings(WordEngine()), table())
    assert not handed_over(store, monkeypatch, chain(store))


class Keeps(InOneTransaction):
    """A store whose connection is another one each time."""

    @property
    def connection(self) -> Any:
        return self.__dict__["connection"]

    @connection.setter
    def connection(self, value: Any) -> None:
        self.__dict__["connection"] = value


def test_a_connection_that_is_a_property_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not handed_over(Keeps(EngineEmbeddings(WordEngine()), table()), monkeypatch)


def test_a_name_that_stands_for_something_else_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    import row_stores

    monkeypatch.setattr(row_stores, "zip", zip, raising=False)
    assert handed_over(InOneTransaction(EngineEmbeddings(WordEngine()), table()), monkeypatch)
    monkeypatch.setattr(row_stores, "zip", lambda *args, strict: zip(*args, strict=strict), raising=False)
    assert not handed_over(InOneTransaction(EngineEmbeddings(WordEngine()), table()), monkeypatch)


class SlowEngine(WordEngine):
    """Takes a second for a batch."""

    async def execute(self, op: Any, items: Any) -> list[Any]:
        await asyncio.sleep(1.0)
        return await super().execute(op, items)


def test_a_transaction_does_not_stay_open_for_long() -> None:
    """Rows are not begun before the last vectors are expected within two seconds."""
    began: list[float] = []

    def run() -> None:
        clock = asyncio.new_event_loop()
        store = InOneTransaction(EngineEmbeddings(SlowEngine()), table(waits=lambda: began.append(clock.time())))
        fineflow.optimize(chain(store), strict=True, eager=True).invoke(given([*TEXTS, *TEXTS]))  # seven batches
        clock.close()

    assert arriving.LONGEST == 2.0
    ran = virtual_threads.run(run)
    assert began[:2] == [5.0, 5.0]
    assert began[-1] == 7.0
    assert ran.seconds >= 7.0


def test_a_call_that_is_stopped_leaves_nothing(deadline_passes: Callable[[], None]) -> None:
    embedding = Gate()
    store = InOneTransaction(EngineEmbeddings(WordEngine(embedding)), table())
    mine = fineflow.optimize(chain(store), strict=True, eager=True, timeout=30)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            mine.invoke(given(TEXTS))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    embedding.let(2)
    wait_until(lambda: store.connection.in_transaction)
    deadline_passes()
    thread.join(10)
    assert [type(error).__name__ for error in errors] == ["TimeoutError"]
    wait_until(lambda: not store.connection.in_transaction)
    assert rows(store) == [False, 0]
    embedding.open()


# --- what does not wait for a write


class Changing:
    """Takes a second for the documents, and changes the last of them."""

    def run(self, documents: list[Any]) -> int:
        time.sleep(1.0)
        documents[-1] = "changed"
        return len(documents)


def beside(question: Any) -> Any:
    """Takes the documents of the input, then asks about the question."""
    model = ChatEngine(engine=EmulatedLLM(lambda prompt: "word " * len(prompt.split())))
    prompt = ChatPromptTemplate.from_template("Repeat all of it, word by word, without any other word: {question}")
    return RunnablePassthrough.assign(kept=RunnablePick("documents") | RunnableLambda(Changing().run)) | (
        RunnablePassthrough.assign(answer=prompt | model | StrOutputParser())
    )


@pytest.mark.parametrize("question", ["which bridge is the oldest one", ["which", "one"]], ids=["text", "a list"])
def test_a_text_in_the_input_is_asked_about_while_a_function_has_other_values(question: Any) -> None:
    """A list might be changed meanwhile: it is read when the function has ended."""

    def ran(app: Any) -> tuple[Any, float]:
        took = virtual_threads.run(lambda: app.invoke({"question": question, "documents": ["a", "b"]}))
        return took.value, took.seconds

    value, stock = ran(beside(question))
    found, seconds = ran(fineflow.optimize(beside(question), strict=True, eager=True))
    assert found == value
    assert stock > 1.4
    assert (seconds < 1.05) == (type(question) is str)


def test_the_documents_that_were_changed_are_asked_about_as_they_are() -> None:
    """The list that the function has, under two keys."""
    documents = ["a", "b"]

    def given() -> dict[str, Any]:
        documents[:] = ["a", "b"]
        return {"question": documents, "documents": documents}

    expected = virtual_threads.run(lambda: beside("").invoke(given())).value
    fast = fineflow.optimize(beside(""), strict=True, eager=True)
    assert virtual_threads.run(lambda: fast.invoke(given())).value == expected
