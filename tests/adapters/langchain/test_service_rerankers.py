"""Rerankers of packages that ask a service: they run ahead, and their documents, callbacks and errors are stock's."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import CohereRerank
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat, FakeVectorStore

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
QUESTION = {"question": "Where?"}


class Undeclared:
    """A client with the interface of the service's own, which prefers long texts."""

    def __init__(self, seconds: float = 0.0, error: str = "") -> None:
        self.seconds, self.error = seconds, error

    def rerank(self, *, query: str, documents: list[str], model: str, top_n: int, max_chunks_per_doc: Any) -> Any:
        time.sleep(self.seconds)
        if self.error:
            raise RuntimeError(self.error)
        order = sorted(range(len(documents)), key=lambda i: (-len(documents[i]), i))[:top_n]
        return SimpleNamespace(results=[SimpleNamespace(index=i, relevance_score=len(documents[i])) for i in order])


@fineflow.external
class Client(Undeclared):
    """One that is declared."""

    def rerank(self, **asked: Any) -> Any:
        return super().rerank(**asked)


class Counting(CohereRerank):
    """A subclass with another ``rerank``, which may do anything."""

    def rerank(self, *args: Any, **named: Any) -> Any:
        return super().rerank(*args, **named)


def chain(client: Any, kind: type[CohereRerank] = CohereRerank, seconds: float = 0.0) -> Runnable[Any, Any]:
    reranker = kind(client=client, top_n=2)
    store = FakeVectorStore(latency=seconds)
    store.add_texts(["short", "of middle length", "the longest of the three"])
    found = ContextualCompressionRetriever(base_retriever=store.as_retriever(), base_compressor=reranker)
    ask = ChatPromptTemplate.from_template("Classify {question}") | FakeChat(prefill=2 * seconds) | StrOutputParser()
    return RunnablePassthrough.assign(category=ask) | RunnablePassthrough.assign(
        context=(lambda x: x["question"]) | found
    )


@pytest.mark.parametrize("error", ["", "the service is full"])
def test_is_stock(error: str) -> None:
    assert_same(lambda: chain(Client(error=error)), QUESTION, strict=True)


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc/self/task")
def test_runs_beside_what_it_does_not_read() -> None:
    app = chain(Client(1.0), seconds=1.0)
    stock = virtual_threads.run(lambda: app.invoke(QUESTION))
    fast = virtual_threads.run(lambda: fineflow.optimize(app, strict=True).invoke(QUESTION))
    assert fast.value == stock.value
    assert [each.metadata["relevance_score"] for each in fast.value["context"]] == [24, 16]
    assert (stock.seconds, fast.seconds) == (4.0, 2.0)


def test_what_may_be_other_code_stays_and_explain_says_the_next_step() -> None:
    own = " ".join(str(fineflow.explain(chain(Undeclared()), graphs=True)).split())
    assert "Undeclared is a class of your own; see fineflow.external" in own
    assert "fineflow.external(Undeclared) gains" in own
    other = " ".join(str(fineflow.explain(chain(Client(), Counting), graphs=True)).split())
    assert "compressor Counting is not recognised" in other
