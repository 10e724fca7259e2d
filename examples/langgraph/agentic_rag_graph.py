"""Agentic RAG: the model decides to call a retriever tool; a router grades what it found; then the answer.

Every node makes one call, and each needs the one before: there is nothing to gain.
"""

from __future__ import annotations

from typing import Any

from graph_services import Said, Services, compare
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import create_retriever_tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel, Field

INPUT = {"messages": [("user", "What is a planner of tasks?")]}


class GradeDocuments(BaseModel):
    """Grade documents using a binary score for relevance check."""

    binary_score: str = Field(description="'yes' if relevant, or 'no' if not relevant")


def says(prompt: str) -> Said:
    """Returns the scripted answer to a prompt."""
    if "grader" in prompt:
        return '{"binary_score": "yes"}'
    if "context" in prompt:
        return f"A planner writes steps ({len(prompt)} characters read)."
    return [("retrieve_posts", {"query": "planner of tasks"})]


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""
    retriever = services.store(0.2).as_retriever(search_kwargs={"k": 2})
    retriever_tool = create_retriever_tool(retriever, "retrieve_posts", "Search and return posts.")
    response_model, answer_model = services.chat(0.6), services.chat(2.0)
    grader = services.chat(0.6).with_structured_output(GradeDocuments)
    grade_prompt = ChatPromptTemplate.from_template("You are a grader. Document: {context} Question: {question}")

    def generate_query_or_respond(state: MessagesState):
        response = response_model.bind_tools([retriever_tool]).invoke(state["messages"])
        return {"messages": [response]}

    def grade_documents(state: MessagesState):
        question, context = state["messages"][0].content, state["messages"][-1].content
        response = (grade_prompt | grader).invoke({"question": question, "context": context})
        return "generate_answer" if response.binary_score == "yes" else "rewrite_question"

    def rewrite_question(state: MessagesState):
        response = response_model.invoke([("user", f"Improve: {state['messages'][0].content}")])
        return {"messages": [("user", response.content)]}

    def generate_answer(state: MessagesState):
        question, context = state["messages"][0].content, state["messages"][-1].content
        response = answer_model.invoke([("user", f"Question: {question}\ncontext: {context}")])
        return {"messages": [response]}

    workflow = StateGraph(MessagesState)
    workflow.add_node(generate_query_or_respond)
    workflow.add_node("retrieve", ToolNode([retriever_tool]))
    workflow.add_node(rewrite_question)
    workflow.add_node(generate_answer)
    workflow.add_edge(START, "generate_query_or_respond")
    workflow.add_conditional_edges("generate_query_or_respond", tools_condition, {"tools": "retrieve", END: END})
    workflow.add_conditional_edges("retrieve", grade_documents, ["generate_answer", "rewrite_question"])
    workflow.add_edge("generate_answer", END)
    workflow.add_edge("rewrite_question", "generate_query_or_respond")
    return workflow.compile()


if __name__ == "__main__":
    compare(build, says, INPUT)
