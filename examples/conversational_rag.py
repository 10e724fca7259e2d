"""A conversation: its history precedes the context in the prompt, so the model prefills it while the store searches.

The store emulates a remote one (its search sleeps); both models are real and run in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.demo.data import default_model
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.langchain import ChatEngine, EngineEmbeddings
from fineflow.protocols import Delta

SEARCH_SECONDS = 0.4
FACTS = ("Dunwen Tower was planned by Helen Kormar.", "Grand Brook Airlines was founded by Malwick Errin.")
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the context. Keep the answer short."),
        MessagesPlaceholder("history"),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)
TURN = (HumanMessage("Thank you. I will ask about towers and airlines, please answer briefly."), AIMessage("I will."))


@fineflow.external
class RemoteStore(InMemoryVectorStore):
    """Vector store behind a network."""

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        await asyncio.sleep(SEARCH_SECONDS)
        return await super().asimilarity_search(query, k, **kwargs)


class Watched(TransformersEngine):
    """Engine that keeps its last delta, with the number of prompt tokens found in the prefix cache."""

    last = Delta("")

    async def generate(self, tokens: Sequence[int], *args: Any, **kwargs: Any) -> AsyncGenerator[Delta, None]:
        async for delta in super().generate(tokens, *args, **kwargs):
            self.last = delta
            yield delta


async def ask(chain: Runnable[Any, str], engine: Watched, history: Sequence[BaseMessage]) -> tuple[float, str]:
    """Returns the seconds to the first token, and the answer. The prefix cache is empty at the start."""
    await engine.reset_prefix_cache()
    start, first, answer = time.perf_counter(), 0.0, ""
    async for piece in chain.astream({"question": "Who planned Dunwen Tower?", "history": list(history)}):
        first = first or (time.perf_counter() - start if piece else 0.0)
        answer += piece
    return first, answer


async def main() -> None:
    engine = Watched(default_model())
    store = RemoteStore.from_texts(FACTS, EngineEmbeddings(SentenceTransformerEngine(bundled_minilm())))
    context = itemgetter("question") | store.as_retriever(search_kwargs={"k": 1}) | (lambda docs: docs[0].page_content)
    llm = ChatEngine(engine=engine, max_tokens=32)
    chain = RunnablePassthrough.assign(context=context) | PROMPT | llm | StrOutputParser()
    fast = fineflow.optimize(chain)

    print(fineflow.explain(chain, input={"question": "?", "history": list(TURN)}), end="\n\n")
    for turns in (1, 15):
        firsts: dict[str, list[float]] = {"stock": [], "fineflow": []}
        answers, cached = set(), {}
        for name, runnable in (("stock", chain), ("fineflow", fast)) * 3:
            first, answer = await ask(runnable, engine, TURN * turns)
            firsts[name].append(first)
            answers.add(answer)
            cached[name] = f"{engine.last.cached_tokens} of {engine.last.prompt_tokens} prompt tokens were cached"
        for name, times in firsts.items():
            time_to_first = median(times[1:]) * 1000  # the first round warms up
            print(f"{turns:>2} turns, {name:<8}  first token after {time_to_first:.0f} ms; {cached[name]}")
        print(f"{turns:>2} turns, equal: {len(answers) == 1}, answer: {answers.pop()}")


if __name__ == "__main__":
    asyncio.run(main())
