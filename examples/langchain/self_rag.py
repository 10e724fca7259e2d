"""Self-RAG in plain functions: documents are graded, and the answer is checked for grounding and for usefulness.

The documents are graded concurrently. The second check is made only if the first one succeeds, so it waits for it.
"""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"question": "What is the memory of an agent?"}


class Grade(BaseModel):
    """Binary score: 'yes' or 'no'."""

    binary_score: str


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "Score" in prompt:
        return '{"binary_score": "no"}' if "Bread" in prompt else '{"binary_score": "yes"}'
    return f"A vector store ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever()
    grader = llm.with_structured_output(Grade)
    retrieval_grader = ChatPromptTemplate.from_template("Score relevance.\n{document}\n{question}") | grader
    hallucination_grader = ChatPromptTemplate.from_template("Score grounding.\n{documents}\n{generation}") | grader
    answer_grader = ChatPromptTemplate.from_template("Score usefulness.\n{question}\n{generation}") | grader
    rag_chain = ChatPromptTemplate.from_template("Answer: {context} {question}") | llm | StrOutputParser()

    def format_docs(docs: list[Any]) -> str:
        return "\n\n".join(doc.page_content for doc in docs)

    def run(state: dict[str, Any]) -> dict[str, Any]:
        question = state["question"]
        documents = [
            d
            for d in retriever.invoke(question)
            if retrieval_grader.invoke({"question": question, "document": d.page_content}).binary_score == "yes"
        ]
        generation = rag_chain.invoke({"context": format_docs(documents), "question": question})
        score = hallucination_grader.invoke({"documents": format_docs(documents), "generation": generation})
        if score.binary_score == "yes":
            score = answer_grader.invoke({"question": question, "generation": generation})
            if score.binary_score == "yes":
                return {"generation": generation, "verdict": "useful"}
            return {"generation": generation, "verdict": "not useful"}
        return {"generation": generation, "verdict": "not supported"}

    return RunnableLambda(run)


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
