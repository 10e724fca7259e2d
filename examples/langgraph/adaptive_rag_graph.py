"""Adaptive RAG: a router chooses the web or the store; the rest is self-RAG.

The router is a conditional edge that calls a model. The documents are graded side by side.
"""

from __future__ import annotations

from typing import Any, Literal

from graph_parts import GraphState, parts
from graph_parts import says as said
from graph_services import Services, compare
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field

INPUT = {"question": "What is a planner of tasks?"}


class RouteQuery(BaseModel):
    """Route a user query to the most relevant datasource."""

    datasource: Literal["vectorstore", "web_search"] = Field(description="Where to search")


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    return '{"datasource": "vectorstore"}' if "routing" in prompt else said(prompt)


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""
    retriever, retrieval_grader, hallucination_grader, answer_grader, rag_chain, question_rewriter = parts(services)
    route_prompt = ChatPromptTemplate.from_messages(
        [("system", "You are an expert at routing a user question."), ("human", "{question}")]
    )
    question_router = route_prompt | services.chat(0.6).with_structured_output(RouteQuery)
    web_search_tool = services.web_search(0.9)

    def retrieve(state):
        return {"documents": retriever.invoke(state["question"]), "question": state["question"]}

    def web_search(state):
        docs = web_search_tool.invoke({"query": state["question"]})
        web_results = Document(page_content="\n".join([d["content"] for d in docs]))
        return {"documents": [web_results], "question": state["question"]}

    def generate(state):
        generation = rag_chain.invoke({"context": state["documents"], "question": state["question"]})
        return {"documents": state["documents"], "question": state["question"], "generation": generation}

    def grade_documents(state):
        filtered_docs = []
        for d in state["documents"]:
            score = retrieval_grader.invoke({"question": state["question"], "document": d.page_content})
            if score.binary_score == "yes":
                filtered_docs.append(d)
        return {"documents": filtered_docs, "question": state["question"]}

    def transform_query(state):
        return {"documents": state["documents"], "question": question_rewriter.invoke({"question": state["question"]})}

    def route_question(state):
        source = question_router.invoke({"question": state["question"]})
        return "web_search" if source.datasource == "web_search" else "vectorstore"

    def decide_to_generate(state):
        return "generate" if state["documents"] else "transform_query"

    def grade_generation_v_documents_and_question(state):
        score = hallucination_grader.invoke({"documents": state["documents"], "generation": state["generation"]})
        if score.binary_score == "yes":
            score = answer_grader.invoke({"question": state["question"], "generation": state["generation"]})
            return "useful" if score.binary_score == "yes" else "not useful"
        return "not supported"

    workflow = StateGraph(GraphState)
    workflow.add_node("web_search", web_search)
    workflow.add_node("retrieve", retrieve)
    workflow.add_node("grade_documents", grade_documents)
    workflow.add_node("generate", generate)
    workflow.add_node("transform_query", transform_query)
    workflow.add_conditional_edges(START, route_question, {"web_search": "web_search", "vectorstore": "retrieve"})
    workflow.add_edge("web_search", "generate")
    workflow.add_edge("retrieve", "grade_documents")
    workflow.add_conditional_edges("grade_documents", decide_to_generate, ["transform_query", "generate"])
    workflow.add_edge("transform_query", "retrieve")
    workflow.add_conditional_edges(
        "generate",
        grade_generation_v_documents_and_question,
        {"not supported": "generate", "useful": END, "not useful": "transform_query"},
    )
    return workflow.compile()


if __name__ == "__main__":
    compare(build, says, INPUT)
