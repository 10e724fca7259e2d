"""Reranking by a model in a loop, in a retriever of the app's own.

The documents are rated concurrently; stock rates one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_classic.chains import RetrievalQA
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from pydantic import BaseModel, Field
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"query": "What is a planner?"}


class RatingScore(BaseModel):
    """The relevance score of a document to a query."""

    relevance_score: float = Field(..., description="The relevance score of a document to a query.")


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "rate the relevance" in prompt:
        return (
            f'{{"relevance_score": {9 if "planner" in prompt.lower().partition("document:")[2] else len(prompt) % 7}}}'
        )
    return f"It writes steps ({len(prompt)} characters read)."


def rerank_documents(llm: Any, query: str, docs: list[Document], top_n: int = 2) -> list[Document]:
    """Returns the documents that a model rates best."""
    prompt_template = PromptTemplate(
        input_variables=["query", "doc"],
        template="On a scale of 1-10, rate the relevance to the query.\nQuery: {query}\nDocument: {doc}\nScore:",
    )
    llm_chain = prompt_template | llm.with_structured_output(RatingScore)
    scored_docs = []
    for doc in docs:
        input_data = {"query": query, "doc": doc.page_content}
        score = llm_chain.invoke(input_data).relevance_score
        try:
            score = float(score)
        except ValueError:
            score = 0
        scored_docs.append((doc, score))
    reranked_docs = sorted(scored_docs, key=lambda x: x[1], reverse=True)
    return [doc for doc, _ in reranked_docs[:top_n]]


class CustomRetriever(BaseRetriever):
    """Searches a store and reranks what it finds."""

    vectorstore: Any = Field(description="Vector store for initial retrieval")
    llm: Any

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        initial_docs = self.vectorstore.similarity_search(query, k=5)
        return rerank_documents(self.llm, query, initial_docs)


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    custom_retriever = CustomRetriever(vectorstore=vectorstore, llm=llm)
    return RetrievalQA.from_chain_type(llm=llm, chain_type="stuff", retriever=custom_retriever)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
