"""An article is drafted, a person reviews it, and it is published: a checkpointer, an interrupt, and a resumed run.

The draft's title, summary and tags are made side by side, before the interrupt.
"""

from __future__ import annotations

from typing import Any

from graph_services import Services, compare
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

INPUT = {"article": "Planners write steps. Executors carry them out."}


class State(TypedDict, total=False):
    article: str
    title: str
    summary: str
    tags: str
    approved: bool
    published: str


def says(prompt: str) -> str:
    """Returns the scripted answer to a prompt."""
    return f"{prompt.split()[0]}: {len(prompt)} characters"


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""

    def ask(template: str, seconds: float) -> Any:
        return ChatPromptTemplate.from_template(template) | services.chat(seconds) | StrOutputParser()

    title_chain, tags_chain = ask("Title for {article}", 0.6), ask("Tags for {article}", 0.6)
    summary_chain = ask("Summary of {article}", 1.2)
    publish_chain = ask("Announce {title}: {summary}", 0.8)

    def draft(state: State):
        title = title_chain.invoke({"article": state["article"]})
        summary = summary_chain.invoke({"article": state["article"]})
        tags = tags_chain.invoke({"article": state["article"]})
        return {"title": title, "summary": summary, "tags": tags}

    def review(state: State):
        return {"approved": interrupt({"title": state["title"], "summary": state["summary"]})}

    def publish(state: State):
        return {"published": publish_chain.invoke({"title": state["title"], "summary": state["summary"]})}

    graph = StateGraph(State)
    graph.add_node("draft", draft)
    graph.add_node("review", review)
    graph.add_node("publish", publish)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "review")
    graph.add_conditional_edges("review", lambda state: "publish" if state["approved"] else END, ["publish", END])
    graph.add_edge("publish", END)
    return graph.compile(checkpointer=InMemorySaver())


if __name__ == "__main__":
    compare(build, says, INPUT)
