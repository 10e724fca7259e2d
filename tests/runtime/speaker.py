"""An LLM that says what it is told to, a token a second, and requests to its queue."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fineflow.errors import BackendError
from fineflow.protocols import Delta, Message, Sampling
from fineflow.runtime.queues.instances import instances
from fineflow.runtime.queues.llm_queue import LLMQueue
from fineflow.runtime.queues.request_context import depth, path, priority, query, started, tenant

SAYS = ("one ", "two ", "three")


class Speaker:
    """Says the same to everybody, a token a second. Tells what it was asked for; dies on demand."""

    block_size = 4
    can_prefill = True
    recovers = False

    def __init__(self, name: str = "speaker", capacity: int | None = None) -> None:
        self.name = name
        self.capacity = capacity
        self.asked: list[tuple[int, ...]] = []
        self.priorities: list[int] = []
        self.prefilled: list[tuple[int, ...]] = []
        self.context: int | None = None
        self.running = 0
        self.most = 0
        self.said = 0
        self.dies_after: int | None = None  # tokens
        self.says: Sequence[str] = SAYS
        self.error: Exception = BackendError("out of memory")

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return "".join(message.content for message in messages)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        self.prefilled.append(tuple(tokens))
        await asyncio.sleep(1)
        if self.dies_after is not None:
            raise self.error

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        self.asked.append(tuple(tokens))
        self.priorities.append(priority)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for i, word in enumerate(self.says):
                if self.dies_after is not None and i >= self.dies_after:
                    raise self.error
                await asyncio.sleep(1)
                self.said += 1
                yield Delta(word, (i,), "stop" if i + 1 == len(self.says) else None, len(tokens))
        finally:
            self.running -= 1

    async def aclose(self) -> None: ...


def ask(
    admission: LLMQueue, tokens: Sequence[int], *, more: int = 4, temperature: float = 0.0, **said: Any
) -> asyncio.Task[str]:
    """A task that decodes, with context variables set as ``said``."""
    context = contextvars.copy_context()
    known = {"depth": depth, "query": query, "path": path, "priority": priority, "tenant": tenant, "started": started}
    for name, value in said.items():
        context.run(known[name].set, value)

    async def decode() -> str:
        sampling = Sampling(max_tokens=more, temperature=temperature)
        return "".join([delta.text async for delta in admission.generate(tokens, sampling)])

    return asyncio.create_task(decode(), context=context)


def prompt(first: int, length: int = 4) -> list[int]:
    return [first * 100 + i for i in range(length)]


def firsts(engine: Speaker) -> list[int]:
    return [tokens[0] // 100 for tokens in engine.asked]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def group(count: int = 2, **settings: Any) -> tuple[list[Speaker], Any]:
    engines = [Speaker(f"speaker {n}", **settings) for n in range(count)]
    return engines, instances(engines, name="speakers")
