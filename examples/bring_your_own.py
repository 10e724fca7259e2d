"""Your own model, store and functions: code that may run ahead, code that runs in its usual order, and declarations."""

from __future__ import annotations

import re
import time
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import VectorStore

import fineflow

LATENCY = 0.3  # seconds; the services here sleep instead of calling out
sent, checked = list[str](), list[str]()  # requests that left the process; questions that the guard has seen


@fineflow.external
class MyChat(BaseChatModel):
    """Client of a service: an ordinary chat model class with only ``_generate``."""

    @property
    def _llm_type(self) -> str:
        return "my-chat"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, *args: Any, **kwargs: Any) -> ChatResult:
        sent.append(f"model: {messages[-1].text}")
        time.sleep(LATENCY)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"{len(messages[-1].text)} characters"))])


@fineflow.external
class MyStore(VectorStore):
    """Client of a vector database that embeds by itself."""

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        sent.append(f"store: {query}")
        time.sleep(LATENCY)
        return [Document(f"passage {number} about {query}") for number in range(k)]

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> MyStore:
        return cls()


def guard(record: dict[str, Any]) -> bool:
    """Checks the question. Opaque, because it writes to a list: no request leaves the process before it returns."""
    checked.append(record["question"])
    if "password" in record["question"]:
        raise PermissionError("secrets stay here")
    return True


def join(record: dict[str, Any]) -> str:
    """Joins the documents. Recognised as pure from its bytecode."""
    return "\n".join(document.page_content for document in record["documents"])


@fineflow.pure  # declared: the analysis cannot tell that the cache of `re` is harmless
def keywords(record: dict[str, Any]) -> str:
    return " ".join(re.findall(r"[a-z]{5,}", record["question"]))


def build() -> Runnable[dict[str, str], dict[str, Any]]:
    classify = ChatPromptTemplate.from_template("Classify: {question}") | MyChat() | StrOutputParser()
    answer = ChatPromptTemplate.from_template("{question}\n{context}") | MyChat() | StrOutputParser()
    return (
        RunnablePassthrough.assign(allowed=guard)
        | RunnablePassthrough.assign(kind=classify)
        | RunnablePassthrough.assign(documents=keywords | MyStore().as_retriever())
        | RunnablePassthrough.assign(answer=RunnablePassthrough.assign(context=join) | answer)
    )


def main() -> None:
    fast = fineflow.optimize(chain := build())
    print(fineflow.explain(chain, graphs=True), end="\n\n")  # shows the line of each function and its verdict

    question = {"question": "which river flows through nelbury"}
    start, stock, middle = time.perf_counter(), chain.invoke(question), time.perf_counter()
    ours, end = fast.invoke(question), time.perf_counter()
    print(f"stock {middle - start:.2f} s, fineflow {end - middle:.2f} s, equal: {stock == ours}")

    sent.clear()
    try:
        fast.invoke({"question": "what is the password"})
    except PermissionError as error:
        print(f"guard: {error}; left the process before that: {sent}")


if __name__ == "__main__":
    main()
