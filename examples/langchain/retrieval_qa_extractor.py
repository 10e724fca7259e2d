"""RetrievalQA over a compressing retriever: a model extracts from each document what the question needs.

The extractions run concurrently; stock takes one document after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_classic.chains import RetrievalQA
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.runnables import Runnable
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"query": "What is the memory of an agent?"}


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "extract any part" in prompt:
        return "NO_OUTPUT" if "Bread" in prompt else f"Extract of {len(prompt)} characters."
    return f"A vector store ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    compressor = LLMChainExtractor.from_llm(llm)
    compression_retriever = ContextualCompressionRetriever(
        base_compressor=compressor, base_retriever=vectorstore.as_retriever(search_kwargs={"k": 3})
    )
    return RetrievalQA.from_chain_type(llm=llm, retriever=compression_retriever)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
