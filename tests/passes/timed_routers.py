"""Random routers: a decision, then one of several arms with long prompts; specifications as plain data.

What decides is a small model, the model of the arms themselves, or a search. Questions, decisions and arms are those of
a seed, so stock and fineflow get the same.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.engines import EmulatedLLM, LLMProfile, llm_profile
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual

_worlds = itertools.count()


@dataclass(frozen=True)
class Router:
    """One router, and the calls of it.

    arms: number of arms. instructions, document: words in front of each arm's question, of its own and of the call's.
    first: the document comes before the instructions. decides: "model", "same model" or "search". decision: most words
    of a decision, or seconds of a search. varies: decisions differ in length. calls: number of calls. gap: mean seconds
    between their beginnings; 0: one after the other. profile: of the engines.
    """

    seed: int
    arms: int
    instructions: int
    document: int
    first: bool
    decides: str
    decision: float
    varies: bool
    calls: int
    gap: float
    profile: LLMProfile


def router(seed: int) -> Router:
    """Returns a random router."""
    drawn = random.Random(seed)
    decides = drawn.choice(("model", "model", "model", "same model", "search"))
    return Router(
        seed,
        drawn.choice((2, 3, 4, 6)),
        drawn.choice((5, 100, 400, 1500)),
        drawn.choice((0, 200, 1000, 2500)),
        drawn.random() < 0.4,
        decides,
        drawn.choice((0.02, 0.3, 1.0, 3.0)) if decides == "search" else drawn.choice((1, 8, 40, 90)),
        drawn.random() < 0.4,
        drawn.choice((6, 10)),
        drawn.choice((0.0, 0.0, 0.2, 0.7, 2.0)),
        drawn.choice((llm_profile("llama-2-7b"), llm_profile("llama-8b-h100"))),
    )


@fineflow.external
class Search(BaseRetriever):
    """Finds in which department a question belongs, after some seconds."""

    seconds: Mapping[str, float]
    route: Mapping[str, str]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(self.seconds[query])
        return [Document(self.route[query])]


@dataclass
class World:
    """The engines of one side, and the chain on them."""

    spec: Router
    core: Any = field(init=False)
    chain: Runnable[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        spec, number = self.spec, next(_worlds)  # what is learned of an engine is learned by its name
        self.core = EmulatedLLM(self._said, spec.profile, name=f"core-{number}")
        small = self.core if spec.decides == "same model" else EmulatedLLM(self._said, spec.profile, name=f"s-{number}")
        core, chooser = ChatEngine(engine=self.core, max_tokens=100), ChatEngine(engine=small, max_tokens=100)
        ask: Runnable[Any, Any] = ChatPromptTemplate.from_template("ROUTE {q}") | chooser | StrOutputParser()
        if spec.decides == "search":
            questions = [self.question(i) for i in range(spec.calls)]
            route = {q: self._route(q) for q in questions}
            search = Search(seconds={q: self._length(q) for q in questions}, route=route)
            ask = RunnableLambda(_question) | search | RunnableLambda(_content)
        arms: list[Any] = [(_taken(i), self._arm(core, i)) for i in range(spec.arms - 1)]
        decided = RunnablePassthrough.assign(route=ask)
        self.chain = decided | RunnableBranch(*arms, self._arm(core, spec.arms - 1))

    def _arm(self, model: Any, number: int) -> Runnable[Any, Any]:
        rules = f"You are expert {number}. " + f"rule-{number} " * self.spec.instructions
        parts = (
            [("system", rules), ("human", "{doc}")] if not self.spec.first else [("human", "{doc}"), ("human", rules)]
        )
        return (
            ChatPromptTemplate.from_messages([*parts, ("human", "Question: {q} by {route}")])
            | model
            | StrOutputParser()
        )

    def question(self, number: int) -> str:
        return f"question-{self.spec.seed}-{number}"

    def input(self, number: int) -> dict[str, str]:
        words = " ".join(f"d{number}-{j}" for j in range(self.spec.document))
        return {"q": self.question(number), "doc": words}

    def _route(self, question: str) -> str:
        return f"arm{zlib.crc32(question.encode()) % self.spec.arms}"

    def _length(self, question: str) -> float:
        share = (1 + zlib.crc32(question[::-1].encode()) % 10) / 10 if self.spec.varies else 1.0
        return self.spec.decision * share

    def _said(self, prompt: str) -> str:
        if "ROUTE" not in prompt:
            return "answer " * 12
        question = prompt.partition("ROUTE ")[2].split()[0].partition("<")[0]
        return " ".join([self._route(question), *["because"] * (int(self._length(question)) - 1)])


def _taken(number: int) -> Any:
    name = f"arm{number}"
    return lambda x: x["route"].split()[0] == name


def _question(x: dict[str, str]) -> str:
    return x["q"]


def _content(found: list[Document]) -> str:
    return found[0].page_content


def took(spec: Router, *, optimized: bool) -> tuple[list[str], list[float], int]:
    """Returns the answers of all calls, the virtual seconds of each, and the prompt tokens that the arms computed."""
    world = World(spec)
    chain = fineflow.optimize(world.chain, strict=True) if optimized else world.chain
    drawn = random.Random(spec.seed)
    starts = list(itertools.accumulate(drawn.expovariate(1 / spec.gap) if spec.gap else 0.0 for _ in range(spec.calls)))

    async def one(number: int) -> tuple[str, float]:
        await asyncio.sleep(starts[number])
        began = asyncio.get_running_loop().time()
        answer = await chain.ainvoke(world.input(number))
        return answer, asyncio.get_running_loop().time() - began

    async def together() -> list[tuple[str, float]]:
        if spec.gap:
            return await asyncio.gather(*map(one, range(spec.calls)))
        return [await one(number) for number in range(spec.calls)]

    ran = virtual.run(together()).value
    cache = world.core.cache_statistics()
    return [answer for answer, _ in ran], [seconds for _, seconds in ran], cache.queried - cache.hits
