"""Parent documents: small chunks are searched, and the whole documents that they come from are read.

The first search and the question's classification need nothing from each other; stock takes one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_classic.retrievers import ParentDocumentRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.stores import InMemoryStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from services import compare
from texts import PASSAGES

TEXTS: list[str] = []
INPUT = {"question": "What does an executor do?"}


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "tone" in prompt:
        return "factual"
    return f"The steps ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    child_splitter = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0)
    retriever = ParentDocumentRetriever(
        vectorstore=vectorstore, docstore=InMemoryStore(), child_splitter=child_splitter
    )
    retriever.add_documents([Document(page_content=text) for text in PASSAGES])

    def format_docs(docs: list[Document]) -> str:
        return "\n\n".join(doc.page_content for doc in docs)

    tone = ChatPromptTemplate.from_template("Which tone suits {question}?") | llm | StrOutputParser()
    prompt = ChatPromptTemplate.from_template("Answer in a {tone} tone from {context}: {question}")
    return (
        RunnablePassthrough.assign(tone=tone)
        | RunnablePassthrough.assign(context=lambda x: format_docs(retriever.invoke(x["question"])))
        | prompt
        | llm
        | StrOutputParser()
    )


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
