"""Chains, state and scripted answers that the self-RAG and the adaptive RAG graph share."""

from __future__ import annotations

from typing import Any

from graph_services import Services
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Grade(BaseModel):
    """Binary score of a check."""

    binary_score: str = Field(description="'yes' or 'no'")


class GraphState(TypedDict):
    question: str
    generation: str
    documents: list[Document]


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "relevance" in prompt:
        return '{"binary_score": "yes"}' if "task" in prompt.partition("document:")[2] else '{"binary_score": "no"}'
    if "grader" in prompt:
        return '{"binary_score": "yes"}'
    return f"A planner writes steps ({len(prompt)} characters read)."


def parts(services: Services) -> tuple[Any, ...]:
    """Returns the retriever and the chains: three graders, the answer and the rewriter."""

    def grader(system: str, human: str) -> Any:
        prompt = ChatPromptTemplate.from_messages([("system", system), ("human", human)])
        return prompt | services.chat(0.6).with_structured_output(Grade)

    rewrite = ChatPromptTemplate.from_template("You are a question re-writer. Question: {question}")
    rag_prompt = ChatPromptTemplate.from_template("Answer from the context.\n{context}\nQuestion: {question}")
    return (
        services.store(0.2).as_retriever(search_kwargs={"k": 4}),
        grader("You are a grader assessing relevance.", "Retrieved document: {document}\nUser question: {question}"),
        grader("You are a grader of facts.", "Set of facts: {documents}\nLLM generation: {generation}"),
        grader("You are a grader of answers.", "User question: {question}\nLLM generation: {generation}"),
        rag_prompt | services.chat(2.0) | StrOutputParser(),
        rewrite | services.chat(0.8) | StrOutputParser(),
    )
