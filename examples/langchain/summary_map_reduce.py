"""Map-reduce summary by `load_summarize_chain`: a summary of each document, then one of the summaries.

The summaries of the documents run concurrently; stock's sync code takes one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_classic.chains.summarize import load_summarize_chain
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableLambda
from services import compare
from texts import PASSAGES

TEXTS: list[str] = []
INPUT = PASSAGES[:4]


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    return f"A summary of {len(prompt)} characters."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    chain = load_summarize_chain(llm, chain_type="map_reduce")

    def summarize(texts: list[str]) -> str:
        docs = [Document(page_content=text) for text in texts]
        result = chain.invoke({"input_documents": docs})
        return result["output_text"]

    return RunnableLambda(summarize)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
