"""Agents with tools that ask a model, of which nobody has declared what they do."""

from __future__ import annotations

from typing import Any

from agent_cases import Agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import BaseTool, tool
from search_cases import Noted, Tools, retriever

from fineflow.testing.langchain import FakeChat

PROMPT = ChatPromptTemplate.from_template("Sum up {query}.")


def service(agent: Agent, seconds: float, fails: bool = False) -> BaseChatModel:
    """Returns a model of a provider, which tells an agent of what it is asked."""
    made = FakeChat(prefill=seconds, default="a summary", answers={"Sum": ValueError("no model")} if fails else {})
    made.meter.labels = Noted(agent)
    return made


def functions(agent: Agent, fails: bool = False) -> list[BaseTool]:
    slow, quick = service(agent, 0.9, fails), PROMPT | service(agent, 0.2) | StrOutputParser()

    @tool
    def web(query: str) -> str:
        """Sums up."""
        return str(slow.invoke(f"Sum up {query}.").content)

    @tool
    def docs(query: str) -> str:
        """Sums up."""
        return quick.invoke({"query": query})

    return [web, docs]


def coroutines(agent: Agent, fails: bool = False) -> list[BaseTool]:
    slow, quick = service(agent, 0.9, fails), service(agent, 0.2)

    @tool
    async def web(query: str) -> str:
        """Sums up."""
        said = await slow.ainvoke([SystemMessage("You write."), HumanMessage(content=f"Sum up {query}.")])
        return str(said.content)

    @tool
    async def docs(query: str) -> str:
        """Sums up."""
        return str((await quick.ainvoke([{"role": "user", "content": f"Sum up {query}."}])).content)

    return [web, docs]


def chains(agent: Agent, fails: bool = False) -> list[BaseTool]:
    """Chains as tools."""
    models = {"web": service(agent, 0.9, fails), "docs": service(agent, 0.2)}
    made = {name: PROMPT | model | StrOutputParser() for name, model in models.items()}
    return [chain.as_tool(name=name, description="Sums up.") for name, chain in made.items()]


def search_first(agent: Agent) -> list[BaseTool]:
    """Tools that search, and ask a model about what they have found."""
    found, model = retriever(agent, "web", 0.3), service(agent, 0.5)

    @tool
    def web(query: str) -> str:
        """Searches the web."""
        text = "\n".join(each.page_content for each in found.invoke(query))
        return str(model.invoke(f"Sum up {text} for {query}.").content)

    return [web, *functions(agent)[1:]]


class OneEngine(Agent):
    """Tools ask the model on the engine that writes their calls. prompts: what they asked."""

    def __init__(self, *calls: Any, **made: Any) -> None:
        self.prompts: list[str] = []
        super().__init__(*calls, **made)

    def _says(self, prompt: str) -> str:
        if "Sum up" not in prompt:
            return super()._says(prompt)
        self.prompts.append(prompt)
        return "word " * (120 if "0" in prompt else 30)


def of_the_engine(agent: Agent) -> list[BaseTool]:
    chain, model = PROMPT | agent.model | StrOutputParser(), agent.model

    @tool
    def web(query: str) -> str:
        """Sums up."""
        return str(model.invoke(f"Sum up {query}.").content)

    return [web, chain.as_tool(name="docs", description="Sums up.")]


ASKING: list[Tools] = [functions, coroutines, chains]
