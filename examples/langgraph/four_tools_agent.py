"""An agent of ``create_agent`` that calls four tools in one turn, with its model on an (emulated) engine.

LangGraph runs the tools concurrently already. Those that are declared to read start even earlier: each when the model
has written its call, while it writes the next ones.
"""

from __future__ import annotations

from typing import Any

from graph_services import Said, Services, compare
from langchain.agents import create_agent
from langchain_core.tools import tool

import fineflow

INPUT = {"messages": [("user", "Tell me about planners.")]}


def says(prompt: str) -> Said:
    """Returns the scripted answer to a conversation."""
    if "<tool>" in prompt:
        return f"Planners write steps ({len(prompt)} characters read)."
    return [
        ("web_search", {"query": "planners"}),
        ("search_notes", {"query": "planners"}),
        ("count_words", {"text": "planners write steps"}),
        ("add", {"a": 2, "b": 3}),
    ]


def build(services: Services) -> Any:
    """Builds the agent with stock LangChain, on an engine of fineflow's."""
    retriever = services.store(0.2).as_retriever(search_kwargs={"k": 2})
    web_search = services.web_search(0.9)
    fineflow.effects(reads="the web")(web_search.func)

    @tool
    def search_notes(query: str) -> str:
        """Searches the notes."""
        return "passages: " + " ".join(each.page_content for each in retriever.invoke(query))

    @tool
    def count_words(text: str) -> int:
        """Counts the words of a text."""
        return len(text.split())

    @tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    return create_agent(services.engine(), [search_notes, web_search, count_words, add])


if __name__ == "__main__":
    compare(build, says, INPUT)
