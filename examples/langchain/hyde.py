"""HyDE: a model writes a passage that could answer the question, and the store is searched by it.

Each step needs the one before: nothing to gain.
"""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from services import compare
from texts import PASSAGES as TEXTS

INPUT = "What is task decomposition for agents?"


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "scientific paper" in prompt:
        return "Decomposition splits tasks into steps."
    return f"It splits a task into steps ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 2})
    prompt_hyde = ChatPromptTemplate.from_template(
        "Please write a scientific paper passage to answer the question\nQuestion: {question}\nPassage:"
    )
    generate_docs_for_retrieval = prompt_hyde | llm | StrOutputParser()
    retrieval_chain = generate_docs_for_retrieval | retriever
    prompt = ChatPromptTemplate.from_template("Answer from this context:\n\n{context}\n\nQuestion: {question}")
    final_rag_chain = prompt | llm | StrOutputParser()

    def ask(question: str) -> str:
        retrieved_docs = retrieval_chain.invoke({"question": question})
        return final_rag_chain.invoke({"context": retrieved_docs, "question": question})

    return RunnableLambda(ask)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
