"""Contexts: prompts that grow on an LLM engine, and fork (Parrot, section 7: Fill, Generate, FreeContext).

A thin layer above the queue of an engine. What a context has been filled with is prefilled at once, and stays in the
engine by the engine's own means: its prefix cache, or a session of vLLM. A request for the whole prompt continues from
there. So every engine has contexts, the answer is that of one request with the whole prompt, and a beginning that was
evicted meanwhile is only computed once more.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Self, TypeVar

from fineflow.adapters.core.decoding import adecode, cached, checked, encode, settled
from fineflow.errors import RequestError
from fineflow.protocols import Delta, LLMEngine, Releases, Sampling, salted
from fineflow.runtime import events
from fineflow.runtime.loop.runtime_loop import post
from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.request_context import query, started

T = TypeVar("T")

_numbers = itertools.count(1)


class Context:
    """A prompt on an LLM engine: filled piece by piece, forked, and continued by what the engine generates::

        async with Context(engine) as shared:
            await shared.fill(instructions)
            answers = await asyncio.gather(*(answer(shared.fork(), question) for question in questions))

    engine: one that decodes, such as ``TransformersEngine``, ``VLLMEngine``, ``EmulatedLLM``, or a group of them
    (``instances``). On an engine that cannot prefill, such as a server, ``fill`` only keeps the text.

    Use it from any event loop, one operation at a time: forks are what runs concurrently. Requests of a context and of
    its forks belong to one query in the queue of the engine: the one around them, or one that begins with the first
    context. ``fineflow.identity`` sets their tenant, priority and objective.

    Raises: ValueError if the engine does not decode.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine: LLMEngine = checked(engine)
        self._text = ""
        self._query, self._started = f"context-{next(_numbers)}", events.now()
        self._kept: list[tuple[Sequence[int], str]] = []  # prefixes, with their salts, that were prefilled for it alone
        self._work: asyncio.Task[Any] | None = None
        self._busy = ""  # the operation under way
        self._freed = False

    def __repr__(self) -> str:
        state = "freed" if self._freed else self._busy or "idle"
        return f"<Context on {self.engine.name}: {len(self._text)} characters, {state}>"

    @property
    def text(self) -> str:
        """The prompt so far: what it was filled with, and what was generated."""
        return self._text

    def cached(self) -> int:
        """Returns the number of leading tokens that the engine has at this moment; 0 if it does not say.

        Encodes the text: a tokenizer that is not loaded yet is loaded.
        """
        return cached(self.engine, self.engine.encode(self._text))

    def fork(self) -> Context:
        """Returns a new context that begins with this one. Each is filled, continued and freed by itself.

        Raises: RuntimeError if this one was freed.
        """
        self._check("fork")
        made = Context(self.engine)
        made._text, made._query, made._started = self._text, self._query, self._started
        return made

    async def fill(self, text: str) -> Self:
        """Appends a text, and prefills all full cache blocks that no later text can change. Returns the context.

        If it fails or is cancelled, the context is as before. Raises: TypeError for what is no text; RequestError if
        the prompt is longer than the engine's ``context``, or if the engine refuses it; BackendError if the engine
        fails; RuntimeError if the context was freed, or if an operation is under way.
        """
        if not isinstance(text, str):
            raise TypeError(f"Context.fill expected a text, got {type(text).__name__}")
        self._begin("fill")
        try:
            whole = self._text + text
            await self._waited(self._prefilled(whole))
            self._text = whole
        finally:
            self._busy = ""
        return self

    async def generate(self, sampling: Sampling | None = None, **settings: Any) -> str:
        """Returns what the engine decodes from here, and appends it to the context.

        sampling: see ``fineflow.protocols.Sampling``; settings: its fields, instead: ``generate(max_tokens=50)``.
        Otherwise as ``stream``.
        """
        async with aclosing(self.stream(sampling, **settings)) as deltas:
            return "".join([delta.text async for delta in deltas])

    async def stream(self, sampling: Sampling | None = None, **settings: Any) -> AsyncGenerator[Delta, None]:
        """Yields what the engine decodes from here, piece by piece. The text is appended when it has ended.

        Closing it, or an error, ends the request and leaves the context as before. Raises: TypeError for settings that
        ``Sampling`` does not have; RequestError and BackendError of the engine; RuntimeError if the context was freed,
        even meanwhile, or if an operation is under way.
        """
        if sampling is not None and settings:
            raise TypeError(f"expected either a Sampling or its fields, got both: {', '.join(settings)}")
        how = Sampling(**settings) if sampling is None else sampling
        self._begin("generate")
        try:
            said = ""
            async with aclosing(adecode(self.engine, lambda: self._text, how)) as deltas:
                while (delta := await self._waited(_next(deltas))) is not None:
                    said += delta.text
                    yield delta
            self._text += said
        finally:
            self._busy = ""

    async def free(self) -> None:
        """Ends the context: what is under way raises RuntimeError, and nothing is kept for it from now on.

        Forks go on. Blocks in the engine's prefix cache belong to the engine, which evicts them when it needs room.
        Does nothing if the context was freed before.
        """
        if self._freed:
            return
        self._freed = True
        work = self._work
        if work is not None:
            post(work.get_loop(), work.cancel)
        kept, self._kept = self._kept, []
        engine = self.engine
        if isinstance(engine, Releases):
            for tokens, salt in kept:
                await run_async(partial(engine.release, tokens, **salted(engine, salt)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.free()

    async def _prefilled(self, text: str) -> None:
        engine = self.engine
        tokens = await encode(engine, lambda: text)
        most = getattr(engine, "context", None)
        if most is not None and len(tokens) >= most:
            raise RequestError(
                f"the context has {len(tokens)} tokens with this text, and {engine.name} takes {most} of prompt and "
                "output together; fill it with less"
            )
        whole = settled(engine, tokens)
        if not engine.can_prefill or not whole:
            return
        if cached(engine, whole) >= len(whole):
            return
        queue = llm_queue_of(engine)
        if isinstance(engine, Releases):
            self._kept.append((whole, request_context.salt.get()))
        await run_async(lambda: queue.prefill(whole))

    # One operation at a time, that `free` can end without cancelling its caller.

    def _check(self, what: str) -> None:
        if self._freed:
            raise RuntimeError(f"Context.{what} was called, but the context was freed; fork before, or make a new one")

    def _begin(self, what: str) -> None:
        self._check(what)
        if self._busy:
            raise RuntimeError(
                f"Context.{what} was called during Context.{self._busy}; a context does one thing at a time: wait for "
                "that, or fork() the context before"
            )
        self._busy = what

    async def _waited(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits work in a task of its own, as a request of the context's query."""
        self._check(self._busy)
        context = contextvars.copy_context()
        if not query.get():
            context.run(query.set, self._query)
            context.run(started.set, self._started)
        self._work = task = asyncio.get_running_loop().create_task(work, context=context)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            raise
        finally:
            self._work = None
        if task.cancelled() and self._freed:
            raise RuntimeError(f"the context was freed during Context.{self._busy}")
        return task.result()


async def _next(deltas: AsyncGenerator[Delta, None]) -> Delta | None:
    return await anext(deltas, None)
