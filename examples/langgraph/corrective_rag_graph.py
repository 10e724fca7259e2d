"""Corrective RAG: retrieve, grade each document, rewrite the question and search the web if one fails, generate.

The four documents are graded side by side; stock grades one after the other.
"""

from __future__ import annotations

from typing import Any

from graph_services import Services, compare
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

INPUT = {"question": "What is a planner of tasks?"}
FAILING = {"question": "Which flour does a planner of tasks need?"}
"""A question for which a document is found that is not relevant."""


class GradeDocuments(BaseModel):
    """Binary score for relevance check on retrieved documents."""

    binary_score: str = Field(description="Documents are relevant to the question, 'yes' or 'no'")


class GraphState(TypedDict):
    question: str
    generation: str
    web_search: str
    documents: list[Document]


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if "grader" in prompt:
        return '{"binary_score": "no"}' if "Bread" in prompt.partition("document:")[2] else '{"binary_score": "yes"}'
    if "re-writer" in prompt:
        return "what does a planner of tasks write?"
    return f"A planner writes steps ({len(prompt)} characters read)."


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""
    retriever = services.store(0.2).as_retriever(search_kwargs={"k": 4})
    grade_prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "You are a grader assessing relevance of a retrieved document to a user question."),
            ("human", "User question: {question}\n\nRetrieved document: {document}"),
        ]
    )
    retrieval_grader = grade_prompt | services.chat(0.6).with_structured_output(GradeDocuments)
    rag_prompt = ChatPromptTemplate.from_template("Answer from the context.\n{context}\nQuestion: {question}")
    rag_chain = rag_prompt | services.chat(2.0) | StrOutputParser()
    rewrite_prompt = ChatPromptTemplate.from_messages(
        [("system", "You are a question re-writer for web search."), ("human", "Initial question: {question}")]
    )
    question_rewriter = rewrite_prompt | services.chat(0.8) | StrOutputParser()
    web_search_tool = services.web_search(0.9)

    def retrieve(state):
        print("---RETRIEVE---")
        question = state["question"]
        documents = retriever.invoke(question)
        return {"documents": documents, "question": question}

    def generate(state):
        print("---GENERATE---")
        question = state["question"]
        documents = state["documents"]
        generation = rag_chain.invoke({"context": documents, "question": question})
        return {"documents": documents, "question": question, "generation": generation}

    def grade_documents(state):
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

    def transform_query(state):
        print("---TRANSFORM QUERY---")
        better_question = question_rewriter.invoke({"question": state["question"]})
        return {"documents": state["documents"], "question": better_question}

    def web_search(state):
        print("---WEB SEARCH---")
        documents = state["documents"]
        docs = web_search_tool.invoke({"query": state["question"]})
        web_results = Document(page_content="\n".join([d["content"] for d in docs]))
        documents.append(web_results)
        return {"documents": documents, "question": state["question"]}

    def decide_to_generate(state):
        print("---ASSESS GRADED DOCUMENTS---")
        return "transform_query" if state["web_search"] == "Yes" else "generate"

    workflow = StateGraph(GraphState)
    workflow.add_node("retrieve", retrieve)
    workflow.add_node("grade_documents", grade_documents)
    workflow.add_node("generate", generate)
    workflow.add_node("transform_query", transform_query)
    workflow.add_node("web_search_node", web_search)
    workflow.add_edge(START, "retrieve")
    workflow.add_edge("retrieve", "grade_documents")
    workflow.add_conditional_edges("grade_documents", decide_to_generate, ["transform_query", "generate"])
    workflow.add_edge("transform_query", "web_search_node")
    workflow.add_edge("web_search_node", "generate")
    workflow.add_edge("generate", END)
    return workflow.compile()


if __name__ == "__main__":
    compare(build, says, INPUT)
    compare(build, says, FAILING)
