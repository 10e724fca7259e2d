"""Emulated services for the examples: OpenAI's client classes over a network that sleeps and answers from a script.

The apps use ``ChatOpenAI`` and ``OpenAIEmbeddings`` as they are. Only the transport below their HTTP client is
replaced, so that an example runs without a key, takes seconds that are known, and gives the same answer each time. With
a key, ``ChatOpenAI(model="gpt-4o-mini")`` and ``OpenAIEmbeddings()`` take their place, and nothing else changes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from langchain_core.documents import Document
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

import fineflow
from fineflow.testing.vectors import vector_of

Script = Callable[[str], str]
"""Returns the model's answer to a prompt."""


class Network(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers a request after ``seconds``."""

    def __init__(self, answer: Callable[[dict[str, Any]], httpx.Response], seconds: float) -> None:
        self.answer, self.seconds = answer, seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        time.sleep(self.seconds)
        return self.answer(json.loads(request.read()))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self.seconds)
        return self.answer(json.loads(await request.aread()))

    def clients(self) -> dict[str, Any]:
        """Returns what the client classes take: nothing leaves the process."""
        sync, awaiting = httpx.Client(transport=self), httpx.AsyncClient(transport=self)
        return {"http_client": sync, "http_async_client": awaiting, "api_key": "none", "max_retries": 0}


def chat_model(says: Script, seconds: float) -> ChatOpenAI:
    """Returns a chat model that takes ``seconds`` for an answer."""

    def answer(body: dict[str, Any]) -> httpx.Response:
        text = says("\n".join(str(message["content"]) for message in body["messages"]))
        head = {"id": "chat", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return httpx.Response(200, json={**head, "object": "chat.completion", "choices": [choice]})
        chunks = [{"delta": {"role": "assistant", "content": text}}, {"delta": {}, "finish_reason": "stop"}]
        events = [{**head, "object": "chat.completion.chunk", "choices": [{"index": 0, **each}]} for each in chunks]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return httpx.Response(200, text="".join(lines) + "data: [DONE]\n\n")

    return ChatOpenAI(
        model="gpt-4o-mini",
        custom_get_token_ids=lambda text: list(text.encode()),  # OpenAI's tokenizer would be downloaded
        **Network(answer, seconds).clients(),
    )


def vector_store(texts: Sequence[str | Document], seconds: float) -> InMemoryVectorStore:
    """Returns a store with these passages. A search takes ``seconds``: those of the embedding of its query."""

    def answer(body: dict[str, Any]) -> httpx.Response:
        vectors = [{"index": i, "embedding": vector_of(text, 64)} for i, text in enumerate(body["input"])]
        data = [{"object": "embedding", **each} for each in vectors]
        return httpx.Response(200, json={"object": "list", "data": data, "model": body["model"], "usage": {}})

    network = Network(answer, 0.0)
    embeddings = OpenAIEmbeddings(check_embedding_ctx_length=False, **network.clients())
    store = InMemoryVectorStore(embeddings)
    documents = [text if isinstance(text, Document) else Document(text) for text in texts]
    store.add_documents(documents, ids=[str(i) for i in range(len(documents))])
    network.seconds = seconds
    return store


def compare(build: Callable[..., Runnable[Any, Any]], says: Script, texts: Sequence[Any], value: Any) -> None:
    """Runs an app as it is and optimized, sync and async. Prints the answer, whether all are equal, and the times."""
    at_once = build(chat_model(says, 0), vector_store(texts, 0))
    for app in (at_once, fineflow.optimize(at_once)):
        app.invoke(value)  # imports
    answers, times = [], {}
    for name in ("stock", "fineflow"):
        app = build(chat_model(says, 0.2), vector_store(texts, 0.05))
        if name == "fineflow":
            app = fineflow.optimize(app)
        for entry, call in (
            ("invoke", app.invoke),
            ("ainvoke", lambda given, app=app: asyncio.run(app.ainvoke(given))),
        ):
            start = time.perf_counter()
            answers.append(call(value))
            times[name, entry] = time.perf_counter() - start
    print(f"answer: {answers[0]!r:.200}\nequal: {all(answer == answers[0] for answer in answers)}")
    for entry in ("invoke", "ainvoke"):
        stock, ours = times["stock", entry], times["fineflow", entry]
        print(f"{entry}: stock {stock:.2f} s, fineflow {ours:.2f} s ({stock / ours:.1f} times as fast)")
