"""Documents are embedded, and the first question is asked: two statements, which overlap in a session.

Stock (LangChain's own code) embeds all documents before the chain begins. In ``fineflow.session()`` the model already
writes search queries meanwhile; searches wait until the store is complete, and so does everybody else who reads it.

The models emulate remote services: the answers are scripted, and they sleep. Needs `pip install ".[demo]"`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

import fineflow
from fineflow.testing.langchain import FakeChat, FakeEmbeddings

QUESTION = "Which bridge crosses the river?"
DOCUMENTS = [Document(f"Fact {i}: stone bridge number {i} crosses the river.", id=str(i)) for i in range(30)]
QUERIES = "stone bridges\nold crossings of the river\nbridges in the harbour"
LLM = FakeChat(answers={"different versions": QUERIES}, default="The stone bridge.", prefill=0.4)


def joined(docs: list[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


def over(store: VectorStore) -> Runnable[Any, Any]:
    retriever = MultiQueryRetriever.from_llm(store.as_retriever(search_kwargs={"k": 2}), LLM)
    prompt = ChatPromptTemplate.from_template("Answer {question} from {context}")
    return {"context": retriever | joined, "question": RunnablePassthrough()} | prompt | LLM | StrOutputParser()


def run(session: Any, optimize: Callable[[Any], Any]) -> tuple[str, list[str], float]:
    """Returns the answer, the ids in the store, and the seconds that both statements took."""
    start = time.perf_counter()
    with session:
        store = InMemoryVectorStore.from_documents(DOCUMENTS, FakeEmbeddings(per_text=0.02))
        answer = optimize(over(store)).invoke(QUESTION)
    return answer, list(store.store), time.perf_counter() - start


def main() -> None:
    expected, ids, stock = run(nullcontext(), lambda chain: chain)
    run(fineflow.session(), fineflow.optimize)  # the first call imports and plans
    answer, found, ours = run(fineflow.session(), fineflow.optimize)
    print(f"{QUESTION}\n{answer}")
    print("equal:", answer == expected and found == ids)
    print(f"stock {1000 * stock:.0f} ms, fineflow {1000 * ours:.0f} ms")


if __name__ == "__main__":
    main()
