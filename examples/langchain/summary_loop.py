"""Map-reduce summary in plain Python: chunks are summarized in a comprehension, then combined.

The summaries of the chunks run concurrently; stock takes one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_text_splitters import CharacterTextSplitter
from services import compare
from texts import PASSAGES

TEXTS: list[str] = []
INPUT = "\n\n".join(PASSAGES[:5])


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    return f"A summary of {len(prompt)} characters."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    text_splitter = CharacterTextSplitter(separator="\n\n", chunk_size=70, chunk_overlap=0)
    map_chain = PromptTemplate.from_template("Write a concise summary of:\n{text}") | llm | StrOutputParser()
    reduce_chain = PromptTemplate.from_template("Combine these summaries:\n{summaries}") | llm | StrOutputParser()

    def summarize(text: str) -> str:
        chunks = text_splitter.split_text(text)
        summaries = [map_chain.invoke({"text": chunk}) for chunk in chunks]
        return reduce_chain.invoke({"summaries": "\n".join(summaries)})

    return RunnableLambda(summarize)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
