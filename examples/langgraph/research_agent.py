"""An agent of ``create_agent`` with two tools; one of them searches for several things and sums each up.

The model and the tools take turns, as in stock. Inside the tool the summaries are made side by side.
"""

from __future__ import annotations

from typing import Any

from graph_services import Said, Services, compare
from langchain.agents import create_agent
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool

INPUT = {"messages": [("user", "Compare planners with reflection.")]}


def says(prompt: str) -> Said:
    """Returns the scripted answer to a prompt."""
    if "Sum up" in prompt:
        return f"a summary of {len(prompt)} characters"
    if "a summary" in prompt:
        return f"They differ ({len(prompt)} characters read)."
    return [("research", {"topics": ["planners", "reflection", "memory"]}), ("word_count", {"text": "a b c"})]


def build(services: Services) -> Any:
    """Builds the agent with stock LangChain."""
    retriever = services.store(0.2).as_retriever(search_kwargs={"k": 2})
    summary_prompt = ChatPromptTemplate.from_template("Sum up for {topic}:\n{context}")
    summarize = summary_prompt | services.chat(0.8) | StrOutputParser()

    @tool
    def research(topics: list[str]) -> str:
        """Looks several topics up."""
        found = []
        for topic in topics:
            context = retriever.invoke(topic)
            found.append(summarize.invoke({"topic": topic, "context": context}))
        return "\n".join(found)

    @tool
    def word_count(text: str) -> int:
        """Counts the words of a text."""
        return len(text.split())

    return create_agent(services.chat(1.0), [research, word_count])


if __name__ == "__main__":
    compare(build, says, INPUT)
