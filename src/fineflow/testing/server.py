"""An OpenAI-compatible server on the loopback interface, with scripted answers: real HTTP, real clients, no install.

``with OpenAIServer("Paris.") as server: ChatOpenAI(base_url=server.url, api_key="none", model="tiny")``

Its answers depend only on the prompt, so that two runs can be compared; ``received`` lists the requests, and gates,
faults and a limited number of slots decide when and whether it answers. With ``vllm`` it supports vLLM's extensions.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Self

from fineflow.testing import openai_form as form
from fineflow.testing.gates import Gate, await_
from fineflow.testing.http import Refusal, Request, Response, ServedInThread, whole
from fineflow.testing.openai_form import Received as Received

BLOCK = 16
"""Characters per block of the prefix cache; a token is a character here."""


@dataclass(slots=True)
class Fault:
    """Replaces the answer to a request. status 0: the connection is dropped after ``tokens`` tokens."""

    status: int
    message: str = "scripted"
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0


class OpenAIServer(ServedInThread):
    """A context manager; ``url`` is the base address inside it.

    answers: a text, a mapping (the first key that occurs in the prompt selects; "ok" if none does) or a function of the
    prompt; an answer that consists only of tool calls, in Hermes form, is sent as tool calls if the request has tools.
    models: names of the served models. vllm: answers like vLLM. priorities: accepts a priority, which vLLM does only if
    started with priority scheduling. slots: maximum number of requests processed at once (None: any number); waiting
    requests are ordered by priority, then by arrival. prefill: seconds per character that is not cached. gate: waited
    at before the first token; ahead_gate: the same for requests of one token; token_gate: before each token. faults: of
    the next requests, in order; None for no fault.
    """

    def __init__(
        self,
        answers: str | Mapping[str, str] | Callable[[str], str] = "ok",
        *,
        models: tuple[str, ...] = ("tiny",),
        vllm: bool = False,
        priorities: bool = True,
        slots: int | None = None,
        prefill: float = 0.0,
        gate: Gate | None = None,
        ahead_gate: Gate | None = None,
        token_gate: Gate | None = None,
    ) -> None:
        self.answers = answers
        self.models = models
        self.vllm = vllm
        self.priorities = priorities
        self.prefill = prefill
        self.gate = gate
        self.ahead_gate = ahead_gate
        self.token_gate = token_gate
        self.faults: list[Fault | None] = []
        self.received: list[Received] = []
        self.paths: list[str] = []  # of all requests, including those for the list of models
        self._slots = _Slots(slots, lambda: self._change(lambda: None))
        self._cache: set[int] = set()
        self._changed = threading.Condition()
        super().__init__(self._answer, "openai-server")

    def __enter__(self) -> Self:
        super().__enter__()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._slots.waiting)

    @property
    def answered(self) -> list[Received]:
        """Requests for an answer: those that were not sent ahead."""
        return [each for each in self.received if not each.ahead]

    @property
    def warmed(self) -> list[Received]:
        """Requests for one token, which warm the cache."""
        return [each for each in self.received if each.ahead]

    def wait(self, ready: Callable[[OpenAIServer], bool], timeout: float = 10.0) -> None:
        """Blocks until ``ready(self)`` holds. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: ready(self), timeout):
                raise TimeoutError(f"the server did not get the expected requests, but: {self.received}")

    def _change(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    async def _answer(self, request: Request) -> Response:
        self._change(lambda: self.paths.append(request.path))
        path = request.path.removeprefix("/v1")
        if path == "/health":  # as routers ask
            return Response({})
        if path == "/models":
            owner = "vllm" if self.vllm else "fineflow"
            return Response({"object": "list", "data": [form.model_card(name, owner) for name in self.models]})
        if path == "/version" and self.vllm:
            return Response({"version": "0.0"})
        if path not in ("/chat/completions", "/completions"):
            raise Refusal(404, f"no such path: {request.path}")
        return await self._completion(request, path)

    async def _completion(self, request: Request, path: str) -> Response:
        body = request.json()
        seen = Received(path, body, request.headers, form.prompt_of(body, vllm=self.vllm))
        self._change(lambda: self.received.append(seen))
        if body.get("model") not in self.models:
            self._ends(seen, "refused")
            raise Refusal(404, f"The model `{body.get('model')}` does not exist.")
        if body.get("priority") and not self.priorities:
            self._ends(seen, "refused")
            raise Refusal(400, "Got priority but Priority scheduling is not enabled.")
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault.status:
            self._ends(seen, "refused")
            raise Refusal(fault.status, fault.message, fault.headers)
        if isinstance(body.get("prompt"), list) and len(body["prompt"]) > 1:
            return await self._several(seen, body["prompt"])
        return Response(self._said(seen, fault), stream=bool(body.get("stream")))

    async def _several(self, seen: Received, prompts: list[str]) -> Response:
        """Answers a request with several prompts."""
        choices, tokens = [], 0
        for i, prompt in enumerate(prompts):
            one = Received(seen.path, seen.body, seen.headers, prompt)
            answer = whole([chunk async for chunk in self._said(one, None)])
            choices.append({**answer["choices"][0], "index": i})
            tokens += answer["usage"]["completion_tokens"]
        self._ends(seen, "answered")
        usage = {"prompt_tokens": len(seen.prompt), "completion_tokens": tokens}
        usage["total_tokens"] = sum(usage.values())
        return Response({**form.head(seen), "object": "text_completion", "choices": choices, "usage": usage})

    async def _said(self, seen: Received, fault: Fault | None) -> AsyncIterator[Any]:
        """Yields the chunks of an answer; a client that does not stream gets their sum."""
        try:
            async with self._slots.held(seen.body.get("priority") or 0):
                self._change(lambda: setattr(seen, "began", self._slots.begun))
                gate = self.ahead_gate if seen.ahead else self.gate
                await await_(gate)
                seen.cached, blocks = self._found(seen.prompt)
                if self.prefill:
                    await asyncio.sleep(self.prefill * (len(seen.prompt) - seen.cached))
                self._cache.update(blocks)
                words = self._words(seen)
                if seen.body.get("tools") and (calls := form.calls("".join(words))):
                    yield form.called(seen, calls)
                    words = []
                for i, word in enumerate(words):
                    if fault is not None and i == fault.tokens:
                        self._ends(seen, "dropped")
                        raise ConnectionAbortedError
                    if self.token_gate is not None and not seen.ahead:
                        await self.token_gate.wait()
                    yield form.chunk(seen, word, form.reason(seen, words) if i + 1 == len(words) else None)
                yield form.usage(seen, len(words))
        except (asyncio.CancelledError, GeneratorExit):
            self._ends(seen, "gone")
            raise
        self._ends(seen, "answered")

    def _ends(self, seen: Received, how: str) -> None:
        if not seen.ended:
            self._change(lambda: setattr(seen, "ended", how))

    def _words(self, seen: Received) -> list[str]:
        """Returns the answer's words, one token each, cut at stop strings and at the maximum number of tokens."""
        if callable(self.answers):
            said = self.answers(seen.prompt)
        elif isinstance(self.answers, str):
            said = self.answers
        else:
            said = next((text for key, text in self.answers.items() if key in seen.prompt), "ok")
        stops = seen.body.get("stop") or ()
        cuts = [said.find(stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop in said]
        said = said[: min(cuts)] if cuts else said
        most = seen.body.get("max_tokens") or seen.body.get("max_completion_tokens")
        words = [word + " " for word in said.split(" ")]
        words[-1] = words[-1][:-1]
        return words[:most]

    def _found(self, prompt: str) -> tuple[int, list[int]]:
        """Returns the number of characters in leading cached blocks, and the keys of all blocks of the prompt."""
        keys = [0]
        for start in range(0, len(prompt) // BLOCK * BLOCK, BLOCK):
            keys.append(zlib.crc32(prompt[start : start + BLOCK].encode(), keys[-1]))
        blocks = keys[1:]
        return BLOCK * len([*takewhile(self._cache.__contains__, blocks)]), blocks


class _Slots:
    """Slots, given to the most urgent request: the lowest priority first, then the earliest."""

    def __init__(self, count: int | None, changed: Callable[[], None]) -> None:
        self.count = count
        self.begun = 0
        self.waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._changed = changed
        self._number = 0

    @asynccontextmanager
    async def held(self, priority: int) -> AsyncIterator[None]:
        if self.count is not None:
            self._number += 1
            waiting = (priority, self._number, asyncio.get_running_loop().create_future())
            self.waiting.append(waiting)
            self._give()
            self._changed()
            try:
                await waiting[2]
            except asyncio.CancelledError:
                self._back(waiting)
                raise
        self.begun += 1
        try:
            yield
        finally:
            if self.count is not None:
                self.count += 1
                self._give()

    def _back(self, waiting: tuple[int, int, asyncio.Future[None]]) -> None:
        if waiting in self.waiting:
            self.waiting.remove(waiting)
        elif self.count is not None:
            self.count += 1
            self._give()

    def _give(self) -> None:
        while self.count and self.waiting:
            first = min(self.waiting, key=lambda waiting: waiting[:2])
            self.waiting.remove(first)
            self.count -= 1
            if not first[2].done():
                first[2].set_result(None)
            else:
                self.count += 1
