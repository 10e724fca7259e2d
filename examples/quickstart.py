"""Quickstart: a LangChain pipeline, stock and optimized with one line, its plan, and the gain.

Needs no model hub: the chat model and the embedding model come with `pip install ".[demo]"`.
"""

from __future__ import annotations

import tempfile
import time
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.demo.data import QUESTIONS, default_model, write_corpus
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.langchain import ChatEngine, EngineEmbeddings

CLASSIFY = ChatPromptTemplate.from_messages(
    [
        (
            "system",
            "You classify questions. Reply with JSON only: complexity (low or high), joint_reasoning (true or false), "
            "pieces (how many facts are needed) and summary_words (how long a summary should be).",
        ),
        ("human", "Question: {question}"),
    ]
)
ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the context. Keep the answer short."),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)


def corpus() -> list[Document]:
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        return [Document(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).iterdir())]


def build() -> Runnable[dict[str, str], dict[str, Any]]:
    """Builds a stock LangChain pipeline: classify the question, retrieve, answer, one step after the other."""
    llm = ChatEngine(engine=TransformersEngine(default_model()), max_tokens=64)
    store = InMemoryVectorStore(EngineEmbeddings(SentenceTransformerEngine(bundled_minilm())))
    store.add_documents(corpus())
    retriever = store.as_retriever(search_kwargs={"k": 1})
    return (
        RunnablePassthrough.assign(category=CLASSIFY | llm | JsonOutputParser())
        | RunnablePassthrough.assign(context=itemgetter("question") | retriever | (lambda docs: docs[0].page_content))
        | RunnablePassthrough.assign(answer=ANSWER | llm | StrOutputParser())
    )


def seconds(chain: Runnable[Any, Any], question: str) -> float:
    start = time.perf_counter()
    chain.invoke({"question": question})
    return time.perf_counter() - start


def main() -> None:
    chain = build()
    fast = fineflow.optimize(chain)  # the only change

    print(fineflow.explain(chain), end="\n\n")
    equal = True
    for question in QUESTIONS:
        stock, ours = chain.invoke({"question": question}), fast.invoke({"question": question})
        equal = equal and stock == ours
        print(f"{question}\n    {ours['answer']}    {ours['category']}")
    times = [(seconds(chain, question), seconds(fast, question)) for question in QUESTIONS * 3]
    stock_time, fast_time = (median(column) * 1000 for column in zip(*times, strict=True))
    print(f"\nequal: {equal}")
    print(f"median of one call: stock {stock_time:.0f} ms, fineflow {fast_time:.0f} ms")


if __name__ == "__main__":
    main()
