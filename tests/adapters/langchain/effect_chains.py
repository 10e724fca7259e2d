"""Chains with declared effects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnablePassthrough, RunnablePick
from pipelines import QUESTION, ask, echo, store

import fineflow
from fineflow.testing.langchain import FakeChat, FakeVectorStore

SESSION = {**QUESTION, "session": "s7"}


def answer(text: str = "{history} {docs} {question}") -> Any:
    return ask(text) | FakeChat(answers=echo) | StrOutputParser()


def retrieval(found: FakeVectorStore | None = None) -> Any:
    return RunnablePassthrough.assign(docs=RunnablePick("question") | (found or store()).as_retriever())


@contextmanager
def calling(chain: Any, input: Any = SESSION, *, sync: bool = True, config: Any = None) -> Iterator[list[Any]]:
    """The call runs in a thread of its own while the block looks at it; its value is in the list afterwards."""
    made = fineflow.optimize(chain, strict=True)
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(made.invoke(input, config) if sync else asyncio.run(made.ainvoke(input, config)))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    yield found
    thread.join(10)
    assert not thread.is_alive()


# --- what is planned


def planned(chain: Any) -> dict[str, Any]:
    graph = fineflow.explain(chain).e_graph
    assert graph is not None
    return {p.name.rpartition("/")[2]: p for p in graph}


# --- that nobody can tell


def declared(log: list[Any], **effects: Any) -> Callable[[str, Any], Callable[[Any], Any]]:
    """Functions of one declaration that note their calls, and return or raise what they are made with."""

    def make(name: str, result: Any) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            log.append((name, sorted(x) if isinstance(x, dict) else x))
            if isinstance(result, Exception):
                raise type(result)(*result.args)
            return result

        return fineflow.effects(**effects)(function)

    return make
