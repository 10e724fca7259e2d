"""Observable behaviour stays the same: streamed chunks, the events of `astream_events`, callbacks, the run tree."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.demo.data import QUESTIONS, default_model
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.langchain import ChatEngine, EngineEmbeddings
from fineflow.testing.recording import RecordingHandler, RunNode, run_tree

QUESTION = {"question": QUESTIONS[2]}
FACTS = ["Dunwen Tower was planned by Helen Kormar."]


class Steps(BaseCallbackHandler):
    """Typical logging handler: records the steps that began and the new tokens."""

    def __init__(self) -> None:
        self.began, self.tokens = list[str](), list[str]()

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.began.append(str(kwargs.get("name")))

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.tokens.append(token)


def build() -> Runnable[dict[str, str], dict[str, Any]]:
    llm = ChatEngine(engine=TransformersEngine(default_model()), max_tokens=48)
    store = InMemoryVectorStore.from_texts(FACTS, EngineEmbeddings(SentenceTransformerEngine(bundled_minilm())))
    context = itemgetter("question") | store.as_retriever() | (lambda docs: docs[0].page_content)

    def ask(system: str, human: str) -> Runnable[Any, str]:
        return ChatPromptTemplate.from_messages([("system", system), ("human", human)]) | llm | StrOutputParser()

    return (
        RunnablePassthrough.assign(related=ask("You suggest related questions.", "Question: {question}"))
        | RunnablePassthrough.assign(context=context)
        | RunnablePassthrough.assign(answer=ask("Answer from the context.", "{context}\n\nQuestion: {question}"))
    )


async def streamed(chain: Runnable[Any, Any]) -> dict[str, list[str]]:
    """Returns the chunks by key, as a user interface shows them."""
    chunks: dict[str, list[str]] = {}
    async for chunk in chain.astream(QUESTION):
        chunks.update({key: [*chunks.get(key, []), text] for key, text in chunk.items()})
    return chunks


async def events(chain: Runnable[Any, Any]) -> list[tuple[str, str]]:
    """Returns kind and name of every event. Sorted, as concurrent branches may interleave differently."""
    return sorted([(event["event"], event["name"]) async for event in chain.astream_events(QUESTION)])


async def logged(chain: Runnable[Any, Any]) -> tuple[list[str], list[str]]:
    """Returns the steps and tokens that a user's handler saw."""
    await chain.ainvoke(QUESTION, {"callbacks": [handler := Steps()]})
    return handler.began, handler.tokens


async def tree(chain: Runnable[Any, Any]) -> list[RunNode]:
    """Returns the run tree as a tracing service shows it: names, tags, inputs, outputs, children."""
    await chain.ainvoke(QUESTION, {"callbacks": [handler := RecordingHandler()], "tags": ["mine"]})
    return run_tree(handler)


def show(node: RunNode, indent: str = "  ") -> None:
    print(f"{indent}{node.run_type}: {node.name}  {' '.join(node.tags)}")
    for child in node.children:
        show(child, indent + "  ")


async def main() -> None:
    stock = build()
    fast = fineflow.optimize(stock)
    for look, name in ((streamed, "chunks"), (events, "events"), (logged, "callbacks"), (tree, "run tree")):
        print(f"{name} equal: {await look(stock) == await look(fast)}")
    print("streamed answer:", " + ".join(map(repr, (await streamed(fast))["answer"])))
    print("tokens that the handler gets from ainvoke, which does not stream:", len((await logged(fast))[1]))
    for root in await tree(fast):
        show(root)


if __name__ == "__main__":
    asyncio.run(main())
