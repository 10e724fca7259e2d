"""RAG-fusion: a model writes four queries, each is searched, and the results are fused by reciprocal rank.

Nothing to gain: stock searches all queries at once (`.map()`), and each other step needs the one before.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.load import dumps, loads
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"question": "What is task decomposition for agents?"}


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "multiple search queries" in prompt:
        return "what is a task\nhow do agents split a task\nsteps of an agent\nplanner and executor"
    return f"It splits a task into steps ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 3})
    prompt_rag_fusion = ChatPromptTemplate.from_template(
        "You generate multiple search queries based on a single input query.\n"
        "Generate multiple search queries related to: {question}\nOutput (4 queries):"
    )
    generate_queries = prompt_rag_fusion | llm | StrOutputParser() | (lambda x: x.split("\n"))

    def reciprocal_rank_fusion(results: list[list[Document]], k: int = 60) -> list[tuple[Document, float]]:
        fused_scores: dict[str, float] = {}
        for docs in results:
            for rank, doc in enumerate(docs):
                doc_str = dumps(doc)
                if doc_str not in fused_scores:
                    fused_scores[doc_str] = 0
                fused_scores[doc_str] += 1 / (rank + k)
        ranked = sorted(fused_scores.items(), key=lambda x: x[1], reverse=True)
        return [(loads(doc, allowed_objects=[Document]), score) for doc, score in ranked]

    retrieval_chain_rag_fusion = generate_queries | retriever.map() | reciprocal_rank_fusion
    prompt = ChatPromptTemplate.from_template("Answer the question from this context:\n{context}\n\n{question}")
    return (
        {"context": retrieval_chain_rag_fusion, "question": itemgetter("question")} | prompt | llm | StrOutputParser()
    )


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
