"""Objects over HTTP: uvicorn in a thread, and what the tests ask of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from fineflow.serving import ServerSettings, create_app
from fineflow.testing.langchain import FakeChat

KEY = "a-key-of-the-tests"


def chain_of(chat: Any) -> Any:
    """A chain of one text, ``question``."""
    return ChatPromptTemplate.from_template("Answer {question}") | chat | StrOutputParser()


def echo(**fake: Any) -> FakeChat:
    """A chat model that answers with what it was asked."""
    return FakeChat(answers=lambda messages: f"You said: {messages[-1].text}", **fake)


@contextmanager
def listening(app: Any, http: Any = "h11") -> Iterator[str]:
    """Runs an application; the address is only valid inside. http: uvicorn's protocol."""
    listener = socket.create_server(("127.0.0.1", 0))  # it queues connections before the server takes them
    server = uvicorn.Server(uvicorn.Config(app, http=http, ws="none", lifespan="on", log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def served(obj: Any, settings: ServerSettings | None = None, **given: Any) -> Iterator[httpx.Client]:
    """Serves an object; returns a client of it, whose ``app`` is the application."""
    app = create_app(obj, settings, **given)
    with listening(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        client.app = app  # type: ignore[attr-defined]
        yield client


def running(client: httpx.Client) -> int:
    """Calls that hold a place."""
    count: int = client.app.state.gate.running  # type: ignore[attr-defined]
    return count


def until_free(client: httpx.Client) -> None:
    """Waits until no call holds a place."""
    free = threading.Event()
    client.app.state.gate.when_idle(free.set)  # type: ignore[attr-defined]
    assert free.wait(10)


def events(text: str) -> list[tuple[str, Any]]:
    """Server-sent events: their names and data."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line)
        if lines:
            data = lines.get("data", "")
            found.append((lines.get("event", ""), json.loads(data) if data and data != "[DONE]" else data))
    return found


def wrong(response: httpx.Response, status: int) -> str:
    """The message of a refusal, which has the one form that all have, and no traceback."""
    assert response.status_code == status, response.text
    assert "Traceback" not in response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    message: str = error["message"]
    return message
