"""An app over forty passages on an emulated LLM, and profilers that behave in one way each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough

import fineflow
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.langchain import ChatEngine

QUESTION = "Which bridge is the oldest?"
SINGLE = {"complexity": "low", "joint_reasoning": False, "pieces": 1, "summary_words": 30}
SEVERAL = {"complexity": "low", "joint_reasoning": True, "pieces": 2, "summary_words": 30}
HARD = {"complexity": "high", "joint_reasoning": True, "pieces": 2, "summary_words": [30, 60]}


QUICK = LLMProfile(iteration=0.001, prefill_token=1e-5, decode_sequence=1e-5)


class Passages(BaseRetriever):
    """Finds the first ``k`` of forty passages after ``seconds``. ``searches``: the k of each search."""

    k: int = 4
    seconds: float = 0.0
    searches: Any = None

    def _found(self) -> list[Document]:
        if self.searches is not None:
            self.searches.append(self.k)
        return [Document(f"Passage {i} of bridges.", metadata={"i": i}) for i in range(min(self.k, 40))]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return self._found()

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        await asyncio.sleep(self.seconds)
        return self._found()


class Model:
    """What the app's model was asked, and what it says: how many passages it saw; a summary; or "unknown"."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.summaries_beside: list[int] = []  # requests that ran when a summary was asked for
        self.engine = EmulatedLLM(self._said, QUICK, name="app")
        self.chat = ChatEngine(engine=self.engine, max_tokens=64)

    def _said(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if "Summary:" in prompt:
            self.summaries_beside.append(len(self.engine._running) + len(self.engine._waiting))
            return "noted " * 400
        if "Passage 0" not in prompt and "noted" not in prompt:
            return "unknown"
        return f"saw {prompt.count('Passage ')} passages and {prompt.count('noted')} notes"


def joined(documents: Sequence[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


PROMPT = ChatPromptTemplate.from_template("Context:\n{context}\n\nQuestion: {question}")


def chain_of(model: Model, *, seconds: float = 0.0, searches: list[int] | None = None) -> Runnable[Any, Any]:
    found = Passages(seconds=seconds, searches=searches) | joined
    return {"context": found, "question": RunnablePassthrough()} | PROMPT | model.chat | StrOutputParser()


class Asked:
    """A profiler that takes ``seconds`` and says the same of every question. ``prompts``: what it was asked."""

    def __init__(self, said: Any, seconds: float = 0.0) -> None:
        self.said = said if isinstance(said, str | Exception) else json.dumps(said)
        self.seconds, self.prompts, self.cancelled = seconds, list[str](), 0

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def adaptive(profiler: Any, **settings: Any) -> tuple[Any, Model]:
    """Returns an adaptive chain and its model."""
    model, searches = Model(), settings.pop("searches", None)
    chain = chain_of(model, seconds=settings.pop("search_seconds", 0.0), searches=searches)
    return fineflow.adaptive(chain, profiler=profiler, **settings), model
