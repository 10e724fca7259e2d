"""Contextual retrieval: a model situates each chunk in its document before the chunks are embedded and searched.

The chunks are situated concurrently; stock takes one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from services import compare
from texts import PASSAGES

TEXTS: list[str] = []
INPUT = {"document": PASSAGES[:4], "question": "What is the memory of an agent?"}


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "situate" in prompt:
        return f"Of a text about agents, part {len(prompt) % 7}."
    return f"A vector store ({len(prompt)} characters read)."


class ContextualRetrieval:
    """Adds context to chunks, and answers from them."""

    def __init__(self, llm: Any, embeddings: Any) -> None:
        self.llm = llm
        self.embeddings = embeddings

    def process_document(self, document: list[str]) -> list[Document]:
        """Returns the chunks with their context in front."""
        contextualized_chunks = []
        for i, chunk in enumerate(document):
            context = self._generate_context("\n".join(document), chunk)
            contextualized_chunks.append(Document(page_content=f"{context}\n\n{chunk}", metadata={"chunk": i}))
        return contextualized_chunks

    def _generate_context(self, document: str, chunk: str) -> str:
        prompt = ChatPromptTemplate.from_template(
            "Here is the document:\n{document}\nPlease situate this chunk within it:\n{chunk}\nContext:"
        )
        messages = prompt.format_messages(document=document, chunk=chunk)
        response = self.llm.invoke(messages)
        return response.content

    def generate_answer(self, query: str, relevant_chunks: list[str]) -> str:
        """Returns the answer from some chunks."""
        prompt = ChatPromptTemplate.from_template("Answer {query} from these chunks:\n{chunks}")
        chain = prompt | self.llm | StrOutputParser()
        return chain.invoke({"query": query, "chunks": "\n\n".join(relevant_chunks)})

    def run(self, inputs: dict[str, Any]) -> str:
        """Indexes a document and answers a question about it."""
        chunks = self.process_document(inputs["document"])
        store = InMemoryVectorStore.from_documents(chunks, self.embeddings)
        results = store.similarity_search(inputs["question"], k=2)
        return self.generate_answer(inputs["question"], [doc.page_content for doc in results])


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    return RunnableLambda(ContextualRetrieval(llm, vectorstore.embeddings).run)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
