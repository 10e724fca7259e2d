"""What declared effects, writes and histories save, in virtual seconds: exact figures, the same on every machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.vectorstores import InMemoryVectorStore
from pipelines import ask

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.ir import Op
from fineflow.passes import PASSES, prune
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore
from fineflow.testing.virtual import run

WITHOUT = tuple(each for each in PASSES if each is not prune)
INPUT = {
    "question": "What is it?",
    "session": "s",
    "documents": [Document(f"it is {i}", id=str(i)) for i in range(8)],
}
CONFIG: Any = {"configurable": {"session_id": "s"}}

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")


class Engine:
    """An embedding engine: 0.1 s per batch of at most four."""

    name = "words"
    ops = frozenset({Op.EMBED})
    max_batch = 4

    def __init__(self) -> None:
        self._words = FakeEmbeddings()

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        await asyncio.sleep(0.1)
        return [self._words.vector(text) for _, text in items]

    async def aclose(self) -> None:
        pass


def model() -> FakeChat:
    return FakeChat(default="so it is", prefill=0.2, step=0.1)


def searched() -> Any:
    store = FakeVectorStore.from_texts(["it is here", "it is there"], FakeEmbeddings(), latency=0.2)
    return RunnablePassthrough.assign(docs=RunnablePick("question") | store.as_retriever())


async def slowly(x: Any) -> str:
    await asyncio.sleep(0.3)
    return f"earlier in {x['session']}"


def memory(declare: Any) -> Any:
    """A history that is read in 0.3 s, a search in 0.2 s, an answer in 0.5 s."""

    async def load(x: Any) -> str:
        return await slowly(x)

    history = RunnablePassthrough.assign(history=RunnableLambda(declare(load)))
    return history | searched() | ask("{history} {docs} {question}") | model() | StrOutputParser()


def saving(declare: Any) -> Any:
    """A log that is written in 0.3 s, before a search and an answer."""

    async def audit(x: Any) -> None:
        await slowly(x)

    chain = RunnablePassthrough.assign(_=RunnableLambda(declare(audit))) | searched()
    return chain | RunnablePassthrough.assign(answer=ask("{docs} {question}") | model() | StrOutputParser())


class Slow(InMemoryChatMessageHistory):
    async def aget_messages(self) -> list[BaseMessage]:
        await asyncio.sleep(0.3)
        return self.messages


def conversation(declare: Any) -> Any:
    """The same with ``RunnableWithMessageHistory``."""
    sessions: dict[str, Any] = {}

    def get_session_history(session_id: str) -> Any:
        return sessions.setdefault(session_id, Slow())

    prompt = ChatPromptTemplate.from_messages([("system", "{docs}"), MessagesPlaceholder("history"), "{question}"])
    return RunnableWithMessageHistory(
        searched() | prompt | model() | StrOutputParser(),
        declare(get_session_history),
        input_messages_key="question",
        history_messages_key="history",
    )


def ingesting(declare: Any) -> Any:
    """A model that classifies in 0.5 s, eight documents that are embedded in 0.2 s, written and searched."""
    store = InMemoryVectorStore(EngineEmbeddings(Engine()))
    return (
        RunnablePassthrough.assign(kind=ask("classify {question}") | model() | StrOutputParser())
        | RunnablePassthrough.assign(
            ids=RunnablePick("documents") | RunnableLambda(store.add_documents, store.aadd_documents)
        )
        | RunnablePassthrough.assign(found=RunnablePick("question") | store.as_retriever())
        | RunnablePassthrough.assign(answer=ask("{found} {question}") | model() | StrOutputParser())
    )


def undeclared(function: Any) -> Any:
    return function


def seconds(chain: Any) -> float:
    return run(chain.ainvoke(INPUT, CONFIG)).seconds


@pytest.mark.parametrize(
    ("make", "declare", "stock", "ours"),
    [
        (memory, fineflow.effects(reads="history"), 1.0, 0.8),
        (saving, fineflow.effects(writes="log"), 1.0, 0.7),
        (conversation, fineflow.effects(writes="history"), 1.0, 0.8),
        (ingesting, undeclared, 1.3, 1.0),
    ],
    ids=["read of a history", "write of a log", "RunnableWithMessageHistory", "documents written"],
)
def test_what_is_saved(make: Any, declare: Any, stock: float, ours: float) -> None:
    assert seconds(make(declare)) == pytest.approx(stock, abs=0.01)
    assert seconds(fineflow.optimize(make(declare), strict=True)) == pytest.approx(ours, abs=0.01)
    assert seconds(fineflow.optimize(make(declare), strict=True, passes=WITHOUT)) == pytest.approx(stock, abs=0.01)
    if make is not ingesting:
        assert seconds(fineflow.optimize(make(undeclared), strict=True)) == pytest.approx(stock, abs=0.01)
