"""One request to vLLM, and the measurements and cache estimates that its outputs give."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from fineflow.backends.vllm.host import Host
from fineflow.backends.vllm.sessions import Session, prompt_input
from fineflow.ir import Op
from fineflow.protocols import block_keys
from fineflow.runtime import events


class Kept:
    """The most recently computed blocks, by hash of the tokens up to their end.

    vLLM does not report its cached blocks. It evicts the least recently used ones first, so the latest blocks up to
    half of its cache are all present unless running requests hold more than the other half.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, tokens: Sequence[int], size: int, room: int, salt: str = "") -> None:
        """Marks the blocks of these tokens as used. size: tokens per block; room: tokens of the whole cache."""
        # The last block first: vLLM evicts a block before its predecessors.
        for key in reversed(block_keys(tokens, size, salt)):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > room // size // 2:
            self._blocks.popitem(last=False)

    def correct(self, tokens: Sequence[int], size: int, cached: int, salt: str = "") -> None:
        """Removes the blocks of a prompt beyond the ``cached`` tokens that vLLM found in the cache."""
        for at, key in enumerate(block_keys(tokens, size, salt), 1):
            if at * size > cached:
                self._blocks.pop(key, None)

    def known(self, tokens: Sequence[int], size: int, salt: str = "") -> int:
        """Returns the number of leading tokens of a prompt in the cache."""
        found = 0
        for key in block_keys(tokens, size, salt):
            if key not in self._blocks:
                break
            found += size
        return found

    def clear(self) -> None:
        """Removes all blocks: the cache was emptied."""
        self._blocks.clear()


class Ledger:
    """State that all requests of an engine share: estimate of the prefix cache, tokens decoded so far, request ids."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept = Kept()
        self.decoded = 0
        self.ids = itertools.count()


class Request:
    """One request to vLLM. cached: tokens of the prompt that were in the prefix cache."""

    def __init__(
        self,
        ledger: Ledger,
        host: Host,
        prompt: tuple[int, ...],
        params: Any,
        *,
        priority: int,
        salt: str,
        label: str,
    ) -> None:
        self.ledger = ledger
        self.host = host
        self.prompt = prompt
        self.params = params
        self.priority = priority
        self.salt = salt
        self.label = label
        self.session: Session | None = None  # the session that it continues
        self.cached = 0
        self._begun: float | None = None
        self._tokens: list[int] = []  # decoded so far
        self._before = 0  # tokens of all requests at its first token

    async def outputs(self, expose: Callable[[Callable[[], None]], None] | None = None) -> AsyncGenerator[Any, None]:
        """Yields vLLM's outputs; closing the iterator aborts the request. expose: see ``Host.stream``."""
        ledger, queued = self.ledger, events.now()
        number = f"{ledger.name}-{next(ledger.ids)}"

        def work(llm: Any) -> Any:
            return llm.generate(prompt_input(self.prompt, self.salt), self.params, number, priority=-self.priority)

        session = self.session
        if session is not None:
            source = session.go_on(self.prompt[len(session.prefix) :], self.params)
        else:
            source = self.host.stream(work, expose=expose)
        try:
            async with aclosing(source) as outputs:
                async for output in outputs:
                    if not self._tokens:
                        self._first(output)
                    self._tokens += output.outputs[0].token_ids
                    ledger.decoded += len(output.outputs[0].token_ids)
                    if output.finished and session is None:
                        self._last(output)
                    yield output
        finally:
            if self._begun is not None:
                events.began(events.now() - self._begun)
            prefilled = None if self.label == "decode" else events.Tokens(len(self.prompt), self.cached)
            events.ended(ledger.name, self.label, queued, self._begun, -1, prefilled)

    def _first(self, output: Any) -> None:
        """Records the end of the prefill. vLLM's times, from its own process, are on the same clock as ours."""
        ledger, facts, stats = self.ledger, self.host.facts, output.metrics
        self.cached = len(self.session.prefix) if self.session is not None else output.num_cached_tokens or 0
        self._before = ledger.decoded
        if self.session is not None:
            return  # vLLM's times start with the session
        if self.label == "decode":
            ledger.kept.correct(self.prompt, facts.block, self.cached, self.salt)
        ledger.kept.add(self.prompt, facts.block, facts.room, self.salt)
        if stats is not None and stats.scheduled_ts:
            self._begun = stats.scheduled_ts
            computed = len(self.prompt) - self.cached
            events.measured(ledger.name, Op.PREFILL, computed, stats.first_token_ts - stats.scheduled_ts)

    def _last(self, output: Any) -> None:
        ledger, facts, stats = self.ledger, self.host.facts, output.metrics
        ledger.kept.add(self.prompt + tuple(self._tokens[:-1]), facts.block, facts.room, self.salt)
        if self.label == "decode" and stats is not None and stats.last_token_ts:
            steps = max(len(self._tokens), 1)
            together = max((ledger.decoded - self._before) / steps, 1.0)  # mean number of requests per step
            events.sized(ledger.name, Op.PREFILL, len(self.prompt))
            events.sized(ledger.name, Op.DECODE, steps)
            events.measured(
                ledger.name, Op.DECODE, steps, stats.last_token_ts - stats.first_token_ts, together=together
            )
