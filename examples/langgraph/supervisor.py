"""A supervisor that sends work to a researcher and a writer, as in LangGraph's tutorial.

The workers are agents in nodes that return a ``Command``. Each step needs the one before, so there is nothing to gain.
"""

from __future__ import annotations

from typing import Any, Literal

from graph_services import Said, Services, compare
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, Field

INPUT = {"messages": [("user", "Write about planners.")]}


class Router(BaseModel):
    """Worker to route to next; FINISH if none is needed."""

    next: Literal["researcher", "writer", "FINISH"] = Field(description="the next worker")


def says(prompt: str) -> Said:
    """Returns the scripted answer to a conversation."""
    if "tasked with managing" in prompt:
        worker = "FINISH" if "The article" in prompt else "writer" if "Facts" in prompt else "researcher"
        return f'{{"next": "{worker}"}}'
    if "You write" in prompt:
        return f"The article ({len(prompt)} characters read)."
    return f"Facts: {len(prompt)} characters" if "web says" in prompt else [("web_search", {"query": "planners"})]


def build(services: Services) -> Any:
    """Builds the graph with stock LangGraph."""
    router = services.chat(0.6).with_structured_output(Router)
    research_agent = create_agent(services.chat(1.0), [services.web_search(0.9)])
    write_agent = create_agent(services.chat(2.0), [], system_prompt="You write articles.")

    def supervisor(state: MessagesState) -> Command[Literal["researcher", "writer", "__end__"]]:
        system = {"role": "system", "content": "You are tasked with managing researcher and writer."}
        following = router.invoke([system, *state["messages"]]).next
        return Command(goto=END if following == "FINISH" else following)

    def researcher(state: MessagesState) -> Command[Literal["supervisor"]]:
        result = research_agent.invoke({"messages": state["messages"]})
        message = HumanMessage(result["messages"][-1].content, name="researcher")
        return Command(update={"messages": [message]}, goto="supervisor")

    def writer(state: MessagesState) -> Command[Literal["supervisor"]]:
        result = write_agent.invoke({"messages": state["messages"]})
        message = HumanMessage(result["messages"][-1].content, name="writer")
        return Command(update={"messages": [message]}, goto="supervisor")

    graph = StateGraph(MessagesState)
    graph.add_edge(START, "supervisor")
    graph.add_node("supervisor", supervisor)
    graph.add_node("researcher", researcher)
    graph.add_node("writer", writer)
    return graph.compile()


if __name__ == "__main__":
    compare(build, says, INPUT)
