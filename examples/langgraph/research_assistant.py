"""A research assistant: each analyst interviews an expert in a subgraph of its own, started by ``Send``.

Web and store are searched by two nodes, and report, introduction and conclusion are written by three: LangGraph runs
these concurrently already, so there is nothing to gain.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any

from graph_services import Services, compare
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel
from typing_extensions import TypedDict

INPUT = {"topic": "planners", "analysts": ["an engineer", "a historian"]}


class SearchQuery(BaseModel):
    """A query for retrieval."""

    search_query: str


class Interview(TypedDict, total=False):
    topic: str
    analyst: str
    question: str
    context: Annotated[list[str], operator.add]
    answer: str
    sections: list[str]


class Section(TypedDict):
    sections: list[str]


class Research(TypedDict, total=False):
    topic: str
    analysts: list[str]
    sections: Annotated[list[str], operator.add]
    introduction: str
    content: str
    conclusion: str
    report: str


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    if prompt.startswith("Search query"):
        return '{"search_query": "planners"}'
    return f"{prompt.split()[0]} {len(prompt)}"


def interview(services: Services) -> Any:
    """Builds the subgraph of one interview."""

    def ask(template: str, seconds: float) -> Any:
        return ChatPromptTemplate.from_template(template) | services.chat(seconds) | StrOutputParser()

    questioner, expert = ask("Question of {analyst} about {topic}", 0.8), ask("Answer {question} from {context}", 1.2)
    section_writer = ask("Section: {answer}", 1.2)
    query_prompt = ChatPromptTemplate.from_template("Search query for {question}")
    query_writer = query_prompt | services.chat(0.6).with_structured_output(SearchQuery)
    web, retriever = services.web_search(0.9), services.store(0.2).as_retriever(search_kwargs={"k": 2})

    def generate_question(state: Interview):
        return {"question": questioner.invoke({"analyst": state["analyst"], "topic": state["topic"]})}

    def search_web(state: Interview):
        query = query_writer.invoke({"question": state["question"]})
        return {"context": [page["content"] for page in web.invoke({"query": query.search_query})]}

    def search_store(state: Interview):
        query = query_writer.invoke({"question": state["question"]})
        return {"context": [each.page_content for each in retriever.invoke(query.search_query)]}

    def generate_answer(state: Interview):
        return {"answer": expert.invoke({"question": state["question"], "context": state["context"]})}

    def write_section(state: Interview):
        return {"sections": [section_writer.invoke({"answer": state["answer"]})]}

    graph = StateGraph(Interview, output_schema=Section)
    for node in (generate_question, search_web, search_store, generate_answer, write_section):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "generate_question")
    graph.add_edge("generate_question", "search_web")
    graph.add_edge("generate_question", "search_store")
    graph.add_edge(["search_web", "search_store"], "generate_answer")
    graph.add_edge("generate_answer", "write_section")
    graph.add_edge("write_section", END)
    return graph.compile()


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""

    def ask(template: str, seconds: float) -> Any:
        return ChatPromptTemplate.from_template(template) | services.chat(seconds) | StrOutputParser()

    content_writer, introducer = ask("Report of {sections}", 2.0), ask("Introduction to {sections}", 0.8)
    concluder = ask("Conclusion of {sections}", 1.4)

    def initiate_interviews(state: Research):
        return [Send("conduct_interview", {"topic": state["topic"], "analyst": each}) for each in state["analysts"]]

    def write_report(state: Research):
        return {"content": content_writer.invoke({"sections": state["sections"]})}

    def write_introduction(state: Research):
        return {"introduction": introducer.invoke({"sections": state["sections"]})}

    def write_conclusion(state: Research):
        return {"conclusion": concluder.invoke({"sections": state["sections"]})}

    def finalize_report(state: Research):
        return {"report": "\n".join([state["introduction"], state["content"], state["conclusion"]])}

    graph = StateGraph(Research)
    graph.add_node("conduct_interview", interview(services))
    for node in (write_report, write_introduction, write_conclusion, finalize_report):
        graph.add_node(node.__name__, node)
    graph.add_conditional_edges(START, initiate_interviews, ["conduct_interview"])
    for name in ("write_report", "write_introduction", "write_conclusion"):
        graph.add_edge("conduct_interview", name)
    graph.add_edge(["write_report", "write_introduction", "write_conclusion"], "finalize_report")
    graph.add_edge("finalize_report", END)
    return graph.compile()


if __name__ == "__main__":
    compare(build, says, INPUT)
