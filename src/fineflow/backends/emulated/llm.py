"""Emulated LLM with continuous batching by iteration, a prefix cache of blocks, and priorities."""

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
from fineflow.backends.emulated.cores import SharedCores
from fineflow.backends.emulated.profiles import LLAMA_2_7B, LLMProfile
from fineflow.errors import RequestError
from fineflow.ir import Op
from fineflow.protocols import CacheStatistics, Delta, Message, Sampling, TokenLogprob, block_keys
from fineflow.runtime import events

# A short timer: in virtual time it fires after all other work of the same moment.
_GATHERING_SECONDS = 1e-6


@dataclass(eq=False)
class _Request:
    """Request in the engine: its progress, its scripted answer, and the blocks that it holds."""

    number: int
    tokens: Sequence[int]
    answer: Sequence[int]
    priority: int
    blocks: Sequence[int]  # keys of the full blocks of the prompt
    size: int  # blocks of prompt and answer
    left: int = 0  # prompt tokens that are not prefilled yet
    cached: int = 0
    said: int = 0
    started: float | None = None  # time at which it left the queue
    batch: int = -1  # iteration at which it left the queue
    shared: list[int] = field(default_factory=list)  # blocks of the prompt that other requests may share
    outputs: asyncio.Queue[int] = field(default_factory=asyncio.Queue)  # tokens as they are decoded, then _END

    @property
    def private(self) -> int:
        return self.size - len(self.shared)


_END = -1


def _certain(token: int, sampling: Sampling) -> tuple[TokenLogprob, ...]:
    return () if sampling.logprobs is None else (TokenLogprob(words.text(token), 0.0),)


class EmulatedLLM:
    """``LLMEngine`` that answers a prompt with ``answer(text)``; a token is a word.

    In each iteration running requests continue, waiting ones join by priority while there is room, prompts are
    prefilled in chunks, and every prefilled sequence gets one token at the end. Full blocks of prefilled prompts stay
    in the prefix cache until room is needed; prompts that begin with them share them. A request reserves room for its
    whole answer when it joins, so none is preempted. ``capacity``: tokens that callers should not exceed
    (``protocols.Limited``); the profile sets the real size of the cache. ``latency_capacity``: the same, while a
    request runs that has to be quick. ``can_prefill``: False for an engine without a prefix cache. ``constraints``:
    forms of output (``protocols.Constrains``) that ``answer`` is assumed to follow. ``cores``: the processor that it
    shares with other engines, if any.
    """

    salts = True

    def __init__(
        self,
        answer: Callable[[str], str],
        profile: LLMProfile = LLAMA_2_7B,
        *,
        name: str = "emulated-llm",
        block_size: int = 16,
        can_prefill: bool = True,
        capacity: int | None = None,
        latency_capacity: int | None = None,
        constraints: Collection[str] = (),
        cores: SharedCores | None = None,
    ) -> None:
        self.answer = answer
        self.device = cores.device if cores is not None else ""
        self._work = cores.work if cores is not None else asyncio.sleep
        self.constraints = frozenset(constraints)
        self.profile = profile
        self.name = name
        self.block_size = block_size
        self.can_prefill = can_prefill
        self.capacity = capacity
        self.latency_capacity = latency_capacity
        self.iterations = 0
        self._decoded = 0  # tokens so far, of all requests
        self._queried = self._hits = 0  # prompt tokens so far; those of them that were cached
        self._numbers = itertools.count()
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._kept: OrderedDict[int, int] = OrderedDict()  # shared blocks -> users, by last use
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
        """Returns one token for each word with the white space after it."""
        return [words.token(word) for word in re.findall(r"\s+|\S+\s*", text)]

    def _text(self, tokens: Sequence[int]) -> str:
        return "".join(map(words.text, tokens))

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0, salt: str = "") -> None:
        """Prefills the full blocks of a prompt prefix, unless they are cached."""
        whole = tokens[: len(tokens) // self.block_size * self.block_size]
        if self.can_prefill and self.cached(whole, salt=salt) < len(whole):
            events.sized(self.name, Op.PARTIAL_PREFILL, len(tokens))
            with self._submitted(whole, (), priority, salt) as request:
                await request.outputs.get()
                self._prefilled(request)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        """Decodes; see ``LLMEngine``. Sampling never changes the text, only where it ends; all logprobs are 0.

        RequestError for a form of output that is not in ``constraints``, an answer shorter than ``min_tokens``, and
        ``extra``.
        """
        said = self.answer(self._text(tokens))
        least = len(self._text(self.encode(said)[: sampling.min_tokens]))  # no stop strings in these characters
        cuts = [at for at in (said.find(stop, least) for stop in sampling.stop) if at >= 0]
        answer = self.encode(said[: min(cuts)] if cuts else said)
        self._check(sampling, answer)
        reason = "stop" if len(answer) <= sampling.max_tokens else "length"
        with self._submitted(tokens, answer[: sampling.max_tokens], priority, salt) as request:
            count, first, before, token = len(request.answer), 0.0, 0, _END
            for i in range(max(count, 1)):
                token = await request.outputs.get()
                if not i:
                    first, before = self._prefilled(request), self._decoded
                if i + 1 < count:
                    yield Delta(words.text(token), (token,), logprobs=_certain(token, sampling))
            events.sized(self.name, Op.PREFILL, len(tokens))
            events.sized(self.name, Op.DECODE, count)
            together = max((self._decoded - before) / max(count - 1, 1), 1.0)  # requests per step
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
                f"LLM {self.name!r} is emulated: its text comes from its answer function, so it cannot follow "
                f"{', '.join(wrong)}; leave it out"
            )

    def cached(self, tokens: Sequence[int], *, salt: str = "") -> int:
        """Returns the number of leading tokens of a prompt in the prefix cache."""
        return len(list(itertools.takewhile(self._kept.__contains__, self._blocks(tokens, salt)))) * self.block_size

    def cache_statistics(self) -> CacheStatistics:
        """See ``protocols.Measured``."""
        held = sum(request.private for request in self._running) + sum(1 for users in self._kept.values() if users)
        size = self.block_size
        return CacheStatistics(
            self.profile.blocks * size, (self.profile.blocks - held) * size, self._queried, self._hits
        )

    def forget(self) -> None:
        """Drops all cached blocks that no request uses."""
        for block in [block for block, users in self._kept.items() if not users]:
            del self._kept[block]

    async def aclose(self) -> None:
        """Does nothing: an engine without requests holds nothing."""

    # Requests and iterations

    def _blocks(self, tokens: Sequence[int], salt: str) -> list[int]:
        """Returns the keys of the full blocks; none without a prefix cache."""
        return block_keys(tokens, self.block_size, salt) if self.can_prefill else []

    def _submit(self, tokens: Sequence[int], answer: Sequence[int], priority: int, salt: str) -> _Request:
        size = -(-(len(tokens) + len(answer)) // self.block_size)
        if not tokens or size > self.profile.blocks:
            room = self.profile.blocks * self.block_size
            raise RequestError(
                f"LLM {self.name!r} has room for 1 to {room} tokens of prompt and answer, this request needs "
                f"{len(tokens) + len(answer)}; shorten it, or give the profile more blocks"
            )
        loop = asyncio.get_running_loop()
        if self._server is not None and self._server.get_loop() is not loop:  # that loop ended
            self._server = None
            for left in (*self._waiting, *self._running):
                self._withdraw(left)
        request = _Request(next(self._numbers), tokens, answer, priority, self._blocks(tokens, salt), size)
        self._waiting.append(request)
        if self._server is None:
            self._server = loop.create_task(self._serve())
        return request

    @contextmanager
    def _submitted(self, tokens: Sequence[int], answer: Sequence[int], priority: int, salt: str) -> Iterator[_Request]:
        """Submits a request; withdraws and reports it at the end of the block."""
        queued = events.now()
        request = self._submit(tokens, answer, priority, salt)
        try:
            yield request
        finally:
            self._withdraw(request)
            prefilled = None if answer else events.Tokens(len(request.tokens), request.cached)
            label = "prefill" if prefilled else "decode"
            events.ended(self.name, label, queued, request.started, request.batch, prefilled)

    def _prefilled(self, request: _Request) -> float:
        """Reports the time of the prefill, up to the first token. Returns the current time."""
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
            # The last token of a prompt is always computed: decoding continues from it.
            usable = request.blocks[: (len(request.tokens) - 1) // self.block_size]
            found = list(itertools.takewhile(self._kept.__contains__, usable))
            if not self._make_room(request.size - len(found), set(found)):
                return
            for block in found:
                self._kept[block] += 1
            request.shared, request.cached = found, len(found) * self.block_size
            request.left = len(request.tokens) - request.cached
            self._queried += len(request.tokens)
            self._hits += request.cached
            request.started, request.batch = events.now(), self.iterations
            self._running.append(self._waiting.pop(0))

    def _make_room(self, blocks: int, wanted: set[int]) -> bool:
        """Drops the least recently used blocks until ``blocks`` are free. Returns False if requests hold too many."""
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
        await self._work(self.profile.seconds(sum(count for _, count in chunks), len(decoding)))
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
        """Shares the blocks of a prompt that are full by now."""
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
