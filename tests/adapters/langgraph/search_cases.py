"""Agents with tools that search, of which nobody has declared what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from agent_cases import Agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import BaseTool, Tool, create_retriever_tool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from pydantic import BaseModel

from fineflow.testing.langchain import FakeRetriever
from fineflow.testing.llamaindex.fakes import FakeEmbedding

Tools = Callable[..., Sequence[BaseTool]]


class Noted(list[str]):
    """Tells an agent of the searches of a retriever, by their labels."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent

    def append(self, label: str) -> None:
        self._agent.note(label)
        super().append(label)


class Changes(BaseCallbackHandler):
    """Changes what a tool is going to ask for, when the model has written its calls."""

    def __init__(self, suffix: list[str]) -> None:
        self._suffix = suffix

    def on_llm_end(self, *args: Any, **more: Any) -> None:
        self._suffix[0] = " now"


def retriever(agent: Agent, name: str, seconds: float, fails: bool = False) -> FakeRetriever:
    failing: dict[str, Exception] = {"written": ValueError(f"no {name}")} if fails else {}
    made = FakeRetriever(documents=[Document(f"a page of the {name}")], latency=seconds, failing=failing)
    made.meter.labels = Noted(agent)
    return made


def retriever_tools(agent: Agent, fails: bool = False) -> list[BaseTool]:
    web, docs = retriever(agent, "web", 0.9, fails), retriever(agent, "docs", 0.2)
    return [create_retriever_tool(web, "web", "Searches the web."), create_retriever_tool(docs, "docs", "Searches.")]


def functions(agent: Agent, fails: bool = False) -> list[BaseTool]:
    """Tools as the tutorials of LangChain have them, one with an artifact."""
    found, read = retriever(agent, "web", 0.9, fails), retriever(agent, "docs", 0.2)

    @tool(response_format="content_and_artifact")
    def web(query: str) -> Any:
        """Searches the web."""
        retrieved = found.invoke(query)
        return "\n\n".join(f"Source: {each.metadata}\nContent: {each.page_content}" for each in retrieved), retrieved

    @tool
    def docs(query: str) -> str:
        """Searches the documents."""
        return "\n".join([each.page_content for each in read.invoke(query)])

    return [web, docs]


def coroutines(agent: Agent, fails: bool = False) -> list[BaseTool]:
    found, read = retriever(agent, "web", 0.9, fails), retriever(agent, "docs", 0.2)

    @tool
    async def web(query: str) -> str:
        """Searches the web."""
        return str(await found.ainvoke(query))

    @tool
    async def docs(query: str) -> str:
        """Searches the documents."""
        return str(await read.ainvoke(query))

    return [web, docs]


def searched(agent: Agent, name: str, seconds: float) -> Any:
    def latency(text: str) -> float:
        agent.note(text)
        return seconds

    embeddings = FakeEmbedding(latency=latency)
    return VectorStoreIndex([TextNode(text=f"a page of the {name}")], embed_model=embeddings).as_retriever()


def index_tools(agent: Agent, fails: bool = False) -> list[BaseTool]:
    """Tools that ask an index of LlamaIndex."""
    web, docs = searched(agent, "web", 0.9), searched(agent, "docs", 0.2)

    @tool("web")
    def search(query: str) -> str:
        """Searches the web."""
        return str([node.text for node in web.retrieve(query)])

    @tool("docs")
    def read(query: str) -> str:
        """Searches the documents."""
        return str([node.text for node in docs.retrieve(query)])

    return [search, read]


class Query(BaseModel):
    query: str


def as_tools(agent: Agent, fails: bool = False) -> list[BaseTool]:
    """Tools that take a text: one whose function is the retriever's own ``invoke``, one of a function."""
    web, docs = retriever(agent, "web", 0.9, fails), retriever(agent, "docs", 0.2)
    read = lambda query: str(docs.invoke(query))  # noqa: E731
    return [web.as_tool(name="web", description="Searches."), Tool("docs", read, "Searches.")]


def chains_as_tools(agent: Agent, fails: bool = False) -> list[BaseTool]:
    """Tools of chains, which take a dict: one by ``as_tool``, one by ``tool``."""
    web, docs = retriever(agent, "web", 0.9, fails), retriever(agent, "docs", 0.2)
    shown = ChatPromptTemplate.from_template("{found}")
    searches: Any = itemgetter("query") | web
    reads: Any = {"found": itemgetter("query") | docs} | shown
    made = searches.as_tool(name="web", description="Searches.", arg_types={"query": str})
    return [made, tool("docs", reads.with_types(input_type=Query), description="Searches.")]


def asked(*names: str, argument: str = "query") -> list[Any]:
    """Returns calls of tools whose queries are long enough to take the model some time."""
    text = "what is written about the bridges and the rivers of the town and of its neighbours"
    return [(name, {argument: f"{text} {number}"}) for number, name in enumerate(names)]


def saves(agent: Agent) -> BaseTool:
    @tool
    def save(query: str) -> str:
        """Saves a text in the archive."""
        agent.note("saved")
        return "saved"

    return save


def graph_of(node: Any) -> Any:
    """Returns what makes a graph of a model's node and a ``ToolNode``, as tutorials on agentic RAG do."""

    def make(model: Any, tools: Any, **settings: Any) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("model", node(model, tools))
        graph.add_node("retrieve", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition, {"tools": "retrieve", END: END})
        graph.add_edge("retrieve", "model")
        return graph.compile(**settings)

    return make


def offers_a_list(model: Any, tools: Any) -> Any:
    def call_model(state: MessagesState) -> Any:
        return {"messages": [model.bind_tools(tools).invoke(state["messages"])]}

    return call_model


def offers_each(model: Any, tools: Any) -> Any:
    web, docs = tools

    def call_model(state: MessagesState) -> Any:
        response = model.bind_tools([web, docs]).invoke(state["messages"])
        return {"messages": [response]}

    return call_model


def calls_a_tool_itself(model: Any, tools: Any) -> Any:
    bound, docs = model.bind_tools(tools), tools[1]

    def call_model(state: MessagesState) -> Any:
        response = bound.invoke(state["messages"])
        docs.invoke("what is new")
        return {"messages": [response]}

    return call_model
