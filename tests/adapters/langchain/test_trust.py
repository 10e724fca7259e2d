"""``trust="interfaces"``: classes of the user's own are believed to do what their interface says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.testing import virtual
from fineflow.testing.differential import assert_same


class GatewayModel(BaseChatModel):
    """A chat model behind a company's gateway."""

    seconds: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "gateway"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"{len(messages[-1].text)} letters"))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(self.seconds)
        return self._generate(messages)


class GatewayEmbeddings(Embeddings):
    def embed_query(self, text: str) -> list[float]:
        return [float(len(text)), 1.0]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class ApiRetriever(BaseRetriever):
    seconds: float = 0.0

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document(page_content=f"about {query}")]

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(self.seconds)
        return [Document(page_content=f"about {query}")]


def assistant(seconds: float) -> Runnable[Any, Any]:
    """Two steps of the user's own classes that need nothing from each other, and a third."""
    ask = ChatPromptTemplate.from_template("{question}") | GatewayModel(seconds=seconds) | StrOutputParser()
    found = RunnableLambda(lambda x: x["question"]) | ApiRetriever(seconds=seconds)
    store = InMemoryVectorStore.from_texts(["a", "bb"], GatewayEmbeddings(), ids=["1", "2"])
    near = RunnableLambda(lambda x: x["question"]) | store.as_retriever(search_kwargs={"k": 1})
    return RunnablePassthrough.assign(a=ask) | RunnablePassthrough.assign(b=found) | RunnablePassthrough.assign(c=near)


def looping(seconds: float) -> Runnable[Any, Any]:
    model = GatewayModel(seconds=seconds)

    async def each(texts: list[str]) -> list[str]:
        return [(await model.ainvoke(text)).text for text in texts]

    return RunnableLambda(each)


@pytest.mark.parametrize(
    ("make", "value", "stock", "path"), [(assistant, {"question": "?"}, 2, 1), (looping, ["a", "bb", "ccc"], 3, 1)]
)
def test_gains_only_if_it_is_said(make: Any, value: Any, stock: float, path: float) -> None:
    expected = virtual.run(make(1).ainvoke(value))
    plain = virtual.run(fineflow.optimize(make(1), strict=True).ainvoke(value))
    trusting = virtual.run(fineflow.optimize(make(1), strict=True, trust="interfaces").ainvoke(value))
    assert plain == expected == (trusting.value, stock)
    assert trusting.seconds == path


@pytest.mark.parametrize("trust", ["packages", "interfaces"])
def test_the_same(trust: str) -> None:
    assert_same(lambda: assistant(0), {"question": "?"}, strict=True, trust=trust)
    assert_same(lambda: looping(0), ["a", "b"], strict=True, trust=trust, entries=("ainvoke", "astream"))


def test_explain_says_what_it_would_gain() -> None:
    text = " ".join(str(fineflow.explain(assistant(0), graphs=True)).split())
    assert "GatewayModel, ApiRetriever and GatewayEmbeddings are classes of your own." in text
    assert 'optimize(..., trust="interfaces") gains: ' in text
    assert "are classes of your own" not in str(fineflow.explain(assistant(0), trust="interfaces", graphs=True))


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="trust is"):
        fineflow.optimize(assistant(0), trust="all")
