"""A chain as users write them, every call of which is verified."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

import fineflow
from fineflow import Difference, Verify

SCRIPTS: dict[str, list[Any]] = {}
seen_context: list[str] = []
ASKED = {"question": "where?"}
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@fineflow.external
class Search(BaseRetriever):
    """A retriever as users write them. script: names what its first calls find or raise (``SCRIPTS``)."""

    script: str = ""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        seen_context.append(tenant.get())
        script = SCRIPTS.get(self.script)
        text = script.pop(0) if script else "bridge"
        if isinstance(text, Exception):
            raise text
        return [Document(text, metadata={"query": query})]


def scripted(*found: Any) -> Search:
    """Makes a retriever whose first calls find this; the object itself never changes."""
    name = f"script {len(SCRIPTS)}"
    SCRIPTS[name] = list(found)
    return Search(script=name)


@fineflow.external
class Model(BaseChatModel):
    """A chat model as users write them, which repeats its prompt."""

    temperature: float | None = 0.0
    failing: bool = False

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        **_: Any,
    ) -> ChatResult:
        if self.failing:
            raise ValueError("the model is gone")
        message = AIMessage(content=f"said: {messages[-1].content}", response_metadata={"took": threading.get_ident()})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        **_: Any,
    ) -> Iterator[ChatGenerationChunk]:
        if self.failing:
            raise ValueError("the model is gone")
        for word in f"said: {messages[-1].content}".split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))

    @property
    def _llm_type(self) -> str:
        return "repeats"


def rag(search: Any = None, model: Any = None) -> Any:
    prompt = ChatPromptTemplate.from_template("{context} {question} {more}")
    more = RunnablePassthrough.assign(more=itemgetter("question") | Search())  # may begin together with the other one
    found = RunnablePassthrough.assign(context=itemgetter("question") | (search or Search()))
    return found | more | prompt | (model or Model()) | StrOutputParser()


class Reported(list[Difference]):
    """The differences that were reported."""

    def __call__(self, difference: Difference) -> None:
        self.append(difference)


def optimized(chain: Any, report: Any = None, **options: Any) -> Any:
    settings = {name: options.pop(name) for name in ("exact", "waiting") if name in options}
    return fineflow.optimize(chain, eager=True, verify=Verify(1.0, report=report, seed=1, **settings), **options)


def explained(fast: Any) -> str:
    return " ".join(fineflow.explain(fast).summary)


def acall(obj: Any, entry: str, given: Any) -> Any:
    async def call() -> Any:
        if entry == "astream":
            return [chunk async for chunk in obj.astream(given)]
        return await getattr(obj, entry)(given)

    return asyncio.run(call())


CALLS = {
    "invoke": lambda obj: obj.invoke(ASKED),
    "stream": lambda obj: list(obj.stream(ASKED)),
    "ainvoke": lambda obj: acall(obj, "ainvoke", ASKED),
    "astream": lambda obj: acall(obj, "astream", ASKED),
    "batch": lambda obj: obj.batch([ASKED]),
    "abatch": lambda obj: acall(obj, "abatch", [ASKED]),
}
