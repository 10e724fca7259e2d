"""Corrective RAG in plain functions over a state: retrieve, grade each document, search the web if one fails, answer.

The documents are graded concurrently; stock grades one after the other.
"""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel, Field
from services import compare
from texts import PASSAGES as TEXTS

INPUT = {"question": "What is a planner of tasks?"}


class GradeDocuments(BaseModel):
    """Binary score for relevance check on retrieved documents."""

    binary_score: str = Field(description="Documents are relevant to the question, 'yes' or 'no'")


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "grader" in prompt:
        return '{"binary_score": "yes"}' if "task" in prompt.partition("document:")[2] else '{"binary_score": "no"}'
    if "re-writer" in prompt:
        return "what does a planner of tasks write?"
    return f"A planner writes steps ({len(prompt)} characters read)."


def build(llm: Any, vectorstore: Any) -> Runnable[Any, Any]:
    """Builds the app with stock LangChain."""
    retriever = vectorstore.as_retriever(search_kwargs={"k": 4})
    grade_prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "You are a grader assessing relevance of a retrieved document to a user question."),
            ("human", "User question: {question}\n\nRetrieved document: {document}"),
        ]
    )
    retrieval_grader = grade_prompt | llm.with_structured_output(GradeDocuments)
    rag_prompt = ChatPromptTemplate.from_template("Answer from the context.\n{context}\nQuestion: {question}")
    rag_chain = rag_prompt | llm | StrOutputParser()
    rewrite_prompt = ChatPromptTemplate.from_messages(
        [("system", "You are a question re-writer for web search."), ("human", "Initial question: {question}")]
    )
    question_rewriter = rewrite_prompt | llm | StrOutputParser()

    def retrieve(state: dict[str, Any]) -> dict[str, Any]:
        print("---RETRIEVE---")
        question = state["question"]
        documents = retriever.invoke(question)
        return {"documents": documents, "question": question}

    def grade_documents(state: dict[str, Any]) -> dict[str, Any]:
        print("---CHECK DOCUMENT RELEVANCE TO QUESTION---")
        question = state["question"]
        documents = state["documents"]
        filtered_docs = []
        web_search = "No"
        for d in documents:
            score = retrieval_grader.invoke({"question": question, "document": d.page_content})
            grade = score.binary_score
            if grade == "yes":
                print("---GRADE: DOCUMENT RELEVANT---")
                filtered_docs.append(d)
            else:
                print("---GRADE: DOCUMENT NOT RELEVANT---")
                web_search = "Yes"
                continue
        return {"documents": filtered_docs, "question": question, "web_search": web_search}

    def transform_query(state: dict[str, Any]) -> dict[str, Any]:
        if state["web_search"] == "No":
            return state
        print("---TRANSFORM QUERY---")
        better_question = question_rewriter.invoke({"question": state["question"]})
        found = vectorstore.similarity_search(better_question, k=1)
        web_results = Document(page_content="\n".join([d.page_content for d in found]))
        return {"documents": [*state["documents"], web_results], "question": better_question}

    def generate(state: dict[str, Any]) -> str:
        print("---GENERATE---")
        return rag_chain.invoke({"context": state["documents"], "question": state["question"]})

    return RunnableLambda(retrieve) | grade_documents | transform_query | generate


if __name__ == "__main__":
    compare(build, says, TEXTS, INPUT)
