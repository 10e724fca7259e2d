"""An emulated LLM: continuous batching by iteration, a prefix cache of blocks, priorities."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fineflow.backends.emulated.chat import plain_chat, words
from fineflow.backends.emulated.profiles import LLAMA_2_7B, LLMProfile
from fineflow.errors import RequestError
from fineflow.ir import Op
from fineflow.protocols import Delta, Message, Sampling, TokenLogprob
from fineflow.runtime import events

# A timer, though a short one: in virtual time it goes off when everybody has done what they do at this moment.
_GATHERING_SECONDS = 1e-6


@dataclass(eq=False)
class _Request:
    """A prompt on its way: how much of it is not prefilled yet, what will be said, what of the cache it holds."""

    number: int
    tokens: Sequence[int]
    answer: Sequence[int]
    priority: int
    blocks: Sequence[int]  # keys of the whole blocks of the prompt
    size: int  # blocks of prompt and answer
    left: int = 0  # prompt tokens that are not prefilled
    cached: int = 0
    said: int = 0
    started: float | None = None  # when it left the queue
    batch: int = -1  # and for which iteration
    shared: list[int] = field(default_factory=list)  # blocks of the prompt that others may use, too
    outputs: asyncio.Queue[int] = field(default_factory=asyncio.Queue)  # tokens as they come; at last _END

    @property
    def private(self) -> int:
        return self.size - len(self.shared)


_END = -1


def _certain(token: int, sampling: Sampling) -> tuple[TokenLogprob, ...]:
    return () if sampling.logprobs is None else (TokenLogprob(words.text(token), 0.0),)


class EmulatedLLM:
    """An ``LLMEngine`` that says what ``answer`` makes of the text of a prompt; a token is a word.

    Iteration by iteration: running requests go on, waiting ones join by priority as long as there is room, prompts are
    prefilled in chunks, and the end of an iteration gives every prefilled sequence one token. Whole blocks of prompts
    are kept when they have been prefilled, until room is needed, and shared by what begins with them.
    A request gets room for all that it will say at once, so that none has to be put off later. ``capacity``: tokens
    that it asks not to be exceeded (``protocols.Limited``); the profile says what it really has room for.
    ``constraints``: forms of output (``protocols.Constrains``) that ``answer`` is taken to follow.
    """

    def __init__(
        self,
        answer: Callable[[str], str],
        profile: LLMProfile = LLAMA_2_7B,
        *,
        name: str = "emulated-llm",
        block_size: int = 16,
        can_prefill: bool = True,
        capacity: int | None = None,
        constraints: Collection[str] = (),
    ) -> None:
        self.answer = answer
        self.constraints = frozenset(constraints)
        self.profile = profile
        self.name = name
        self.block_size = block_size
        self.can_prefill = can_prefill
        self.capacity = capacity
        self.iterations = 0
        self._decoded = 0  # tokens so far, of all requests
        self._numbers = itertools.count()
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._kept: OrderedDict[int, int] = OrderedDict()  # shared blocks: how many use them, the latest used last
        self._server: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"EmulatedLLM({self.name!r}, {len(self._running)} running, {len(self._waiting)} waiting)"

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """See ``plain_chat``."""
        return plain_chat(messages, tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        """One token for each word with the white space behind it."""
        return [words.token(word) for word in re.findall(r"\s+|\S+\s*", text)]

    def _text(self, tokens: Sequence[int]) -> str:
        return "".join(map(words.text, tokens))

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        """Prefills the whole blocks of a prompt's beginning that are not kept already."""
        whole = tokens[: len(tokens) // self.block_size * self.block_size]
        if self.can_prefill and self.cached(whole) < len(whole):
            events.sized(self.name, Op.PARTIAL_PREFILL, len(tokens))
            with self._submitted(whole, (), priority) as request:
                await request.outputs.get()
                self._prefilled(request)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        """Decodes; see ``LLMEngine``. Sampling never changes what is said, only where it ends; of logprobs it is
        certain. RequestError for a form of the output that is not among its ``constraints``, an answer that is shorter
        than ``min_tokens``, and ``extra``.
        """
        said = self.answer(self._text(tokens))
        least = len(self._text(self.encode(said)[: sampling.min_tokens]))  # in which no stop string is looked for
        cuts = [at for at in (said.find(stop, least) for stop in sampling.stop) if at >= 0]
        answer = self.encode(said[: min(cuts)] if cuts else said)
        self._check(sampling, answer)
        reason = "stop" if len(answer) <= sampling.max_tokens else "length"
        with self._submitted(tokens, answer[: sampling.max_tokens], priority) as request:
            count, first, before, token = len(request.answer), 0.0, 0, _END
            for i in range(max(count, 1)):
                token = await request.outputs.get()
                if not i:
                    first, before = self._prefilled(request), self._decoded
                if i + 1 < count:
                    yield Delta(words.text(token), (token,), logprobs=_certain(token, sampling))
            events.sized(self.name, Op.PREFILL, len(tokens))
            events.sized(self.name, Op.DECODE, count)
            together = max((self._decoded - before) / max(count - 1, 1), 1.0)  # what others got meanwhile
            events.measured(self.name, Op.DECODE, count, events.now() - first, together=together)
            text, news = (words.text(token), (token,)) if count else ("", ())
            certain = _certain(token, sampling) if count else ()
            yield Delta(text, news, reason, len(tokens), request.cached, certain)

    def _check(self, sampling: Sampling, answer: Sequence[int]) -> None:
        asked = [name for name in ("schema", "regex", "choices") if getattr(sampling, name)]
        wrong = [name for name in asked if name not in self.constraints]
        wrong += ["min_tokens"] * (len(answer) < sampling.min_tokens) + [name for name, _ in sampling.extra]
        if wrong:
            raise RequestError(
                f"LLM {self.name!r} is emulated: it says what its answer function says, and cannot follow "
                f"{', '.join(wrong)}; leave it out"
            )

    def cached(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt are kept now."""
        return len(list(itertools.takewhile(self._kept.__contains__, self._blocks(tokens)))) * self.block_size

    def forget(self) -> None:
        """Empties the prefix cache, of what no request is using."""
        for block in [block for block, users in self._kept.items() if not users]:
            del self._kept[block]

    async def aclose(self) -> None:
        """Nothing to free: the engine rests when it has no requests."""

    # Requests and iterations

    def _blocks(self, tokens: Sequence[int]) -> list[int]:
        """Keys of the whole blocks: each stands for all the tokens up to its end."""
        size, keys = self.block_size, [0]
        for start in range(0, len(tokens) // size * size, size):
            keys.append(hash((keys[-1], *tokens[start : start + size])))
        return keys[1:]

    def _submit(self, tokens: Sequence[int], answer: Sequence[int], priority: int) -> _Request:
        size = -(-(len(tokens) + len(answer)) // self.block_size)
        if not tokens or size > self.profile.blocks:
            room = self.profile.blocks * self.block_size
            raise RequestError(
                f"LLM {self.name!r} has room for 1 to {room} tokens of prompt and answer, this request needs "
                f"{len(tokens) + len(answer)}; shorten it, or give the profile more blocks"
            )
        loop = asyncio.get_running_loop()
        if self._server is not None and self._server.get_loop() is not loop:  # which has ended in the middle of work
            self._server = None
            for left in (*self._waiting, *self._running):
                self._withdraw(left)
        request = _Request(next(self._numbers), tokens, answer, priority, self._blocks(tokens), size)
        self._waiting.append(request)
        if self._server is None:
            self._server = loop.create_task(self._serve())
        return request

    @contextmanager
    def _submitted(self, tokens: Sequence[int], answer: Sequence[int], priority: int) -> Iterator[_Request]:
        """A request on its way, withdrawn and reported at the end of the block."""
        queued = events.now()
        request = self._submit(tokens, answer, priority)
        try:
            yield request
        finally:
            self._withdraw(request)
            events.ended(self.name, "decode" if answer else "prefill", queued, request.started, request.batch)

    def _prefilled(self, request: _Request) -> float:
        """Tells what computing the prompt took, up to the first token; the time now."""
        now, started = events.now(), request.started or 0.0
        events.began(now - started)
        events.measured(self.name, Op.PREFILL, len(request.tokens) - request.cached, now - started)
        return now

    def _withdraw(self, request: _Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._running:
            self._running.remove(request)
            for block in request.shared:
                self._kept[block] -= 1
                self._kept.move_to_end(block)

    async def _serve(self) -> None:
        try:
            while True:
                await asyncio.sleep(_GATHERING_SECONDS)
                self._admit()
                if not self._running:
                    return
                await self._iterate()
        finally:
            self._server = None

    def _admit(self) -> None:
        self._waiting.sort(key=lambda request: (-request.priority, request.number))
        while self._waiting and len(self._running) < self.profile.sequences:
            request = self._waiting[0]
            # The last token of a prompt is computed always, to go on from it.
            usable = request.blocks[: (len(request.tokens) - 1) // self.block_size]
            found = list(itertools.takewhile(self._kept.__contains__, usable))
            if not self._make_room(request.size - len(found), set(found)):
                return
            for block in found:
                self._kept[block] += 1
            request.shared, request.cached = found, len(found) * self.block_size
            request.left = len(request.tokens) - request.cached
            request.started, request.batch = events.now(), self.iterations
            self._running.append(self._waiting.pop(0))

    def _make_room(self, blocks: int, wanted: set[int]) -> bool:
        """Drops what was used least recently until so many blocks are free; False if requests use too many."""
        free = self.profile.blocks - sum(request.private for request in self._running) - len(self._kept)
        idle = (block for block, users in self._kept.items() if not users and block not in wanted)
        drop = list(itertools.islice(idle, max(blocks - free, 0)))
        if free + len(drop) < blocks:
            return False
        for block in drop:
            del self._kept[block]
        return True

    async def _iterate(self) -> None:
        decoding = [request for request in self._running if not request.left]
        chunks: list[tuple[_Request, int]] = []
        budget = self.profile.prefill_tokens
        for request in sorted(self._running, key=lambda r: (-r.priority, r.number)):
            if request.left and budget:
                chunks.append((request, min(request.left, budget)))
                budget -= chunks[-1][1]
        await asyncio.sleep(self.profile.seconds(sum(count for _, count in chunks), len(decoding)))
        self.iterations += 1
        for request, count in chunks:
            if request in self._running:
                request.left -= count
                self._keep(request)
                if not request.left:
                    decoding.append(request)
        for request in decoding:
            self._say(request)

    def _keep(self, request: _Request) -> None:
        """The blocks that are whole now can be shared from now on."""
        done = (len(request.tokens) - request.left) // self.block_size
        for block in request.blocks[len(request.shared) : done]:
            self._kept[block] = self._kept.get(block, 0) + 1
            request.shared.append(block)

    def _say(self, request: _Request) -> None:
        if request.said < len(request.answer):
            request.outputs.put_nowait(request.answer[request.said])
            request.said += 1
            self._decoded += 1
        if request.said >= len(request.answer):
            request.outputs.put_nowait(_END)
            self._withdraw(request)
