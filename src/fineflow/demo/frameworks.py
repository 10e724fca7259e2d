"""The demo's app in each framework: the module that builds it, and the methods that call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

LANGCHAIN, LLAMAINDEX = "langchain", "llamaindex"


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework. title: its name. entries: names of the app's sync and async entry method.

    module: builds the app from components; has ``load_documents``, ``split_documents``, ``index``, ``build`` and
    ``SUFFIXES``. ask, aask: call the app with a question and return its answer as a record; raise the app's exceptions.
    """

    title: str
    entries: tuple[str, str]
    module: str
    ask: Callable[[Any, str], Mapping[str, Any]]
    aask: Callable[[Any, str], Awaitable[Mapping[str, Any]]]

    @property
    def app(self) -> Any:
        return import_module(self.module)


def _invoke(chain: Any, question: str) -> Mapping[str, Any]:
    value: Mapping[str, Any] = chain.invoke({"question": question})
    return value


async def _ainvoke(chain: Any, question: str) -> Mapping[str, Any]:
    value: Mapping[str, Any] = await chain.ainvoke({"question": question})
    return value


def _query(engine: Any, question: str) -> Mapping[str, Any]:
    return _said(question, engine.query(question))


async def _aquery(engine: Any, question: str) -> Mapping[str, Any]:
    return _said(question, await engine.aquery(question))


def _said(question: str, response: Any) -> Mapping[str, Any]:
    nodes = [(node.node_id, node.text, node.score) for node in response.source_nodes]
    return {
        "question": question,
        "documents": [node.node for node in response.source_nodes],
        "answer": response.response,
        "nodes": nodes,
        "metadata": response.metadata,
    }


FRAMEWORKS = {
    LANGCHAIN: Framework("LangChain", ("invoke", "ainvoke"), "fineflow.demo.app", _invoke, _ainvoke),
    LLAMAINDEX: Framework("LlamaIndex", ("query", "aquery"), "fineflow.demo.index_app", _query, _aquery),
}
