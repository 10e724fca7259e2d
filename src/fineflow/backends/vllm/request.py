"""One request to vLLM, from its first token to its last, and what it teaches about the engine."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fineflow.backends.vllm.host import Host
from fineflow.backends.vllm.prefix_index import Kept
from fineflow.backends.vllm.sessions import Session
from fineflow.ir import Op
from fineflow.runtime import events


class Ledger:
    """What all requests of an engine add to: prefixes that are kept, and tokens decoded so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept = Kept()
        self.decoded = 0
        self.ids = itertools.count()


class Request:
    """One request to vLLM, and what is reported of it. cached: tokens of the prompt that were in the prefix cache."""

    def __init__(
        self, ledger: Ledger, host: Host, prompt: tuple[int, ...], params: Any, priority: int, label: str
    ) -> None:
        self.ledger = ledger
        self.host = host
        self.prompt = prompt
        self.params = params
        self.priority = priority
        self.label = label
        self.session: Session | None = None  # with which it goes on
        self.cached = 0
        self._begun: float | None = None
        self._tokens: list[int] = []  # decoded so far
        self._before = 0  # those of all requests, when its own began

    async def outputs(self, expose: Callable[[Callable[[], None]], None] | None = None) -> AsyncGenerator[Any, None]:
        """What vLLM answers; closing it aborts the request. expose: see ``Host.stream``."""
        from vllm.inputs import tokens_input

        ledger, queued = self.ledger, events.now()
        number = f"{ledger.name}-{next(ledger.ids)}"

        def work(llm: Any) -> Any:
            return llm.generate(tokens_input(list(self.prompt)), self.params, number, priority=-self.priority)

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
            events.ended(ledger.name, self.label, queued, self._begun, -1)

    def _first(self, output: Any) -> None:
        """The prompt has been computed. vLLM's times are those of the same clock as ours, in its own process."""
        ledger, facts, stats = self.ledger, self.host.facts, output.metrics
        self.cached = len(self.session.prefix) if self.session is not None else output.num_cached_tokens or 0
        self._before = ledger.decoded
        if self.session is not None:
            return  # vLLM's times are those of the session
        if self.label == "decode":
            ledger.kept.correct(self.prompt, facts.block, self.cached)
        ledger.kept.add(self.prompt, facts.block, facts.room)
        if stats is not None and stats.scheduled_ts:
            self._begun = stats.scheduled_ts
            computed = len(self.prompt) - self.cached
            events.measured(ledger.name, Op.PREFILL, computed, stats.first_token_ts - stats.scheduled_ts)

    def _last(self, output: Any) -> None:
        ledger, facts, stats = self.ledger, self.host.facts, output.metrics
        ledger.kept.add(self.prompt + tuple(self._tokens[:-1]), facts.block, facts.room)
        if self.label == "decode" and stats is not None and stats.last_token_ts:
            steps = max(len(self._tokens), 1)
            together = max((ledger.decoded - self._before) / steps, 1.0)  # what others got meanwhile
            events.sized(ledger.name, Op.PREFILL, len(self.prompt))
            events.sized(ledger.name, Op.DECODE, steps)
            events.measured(
                ledger.name, Op.DECODE, steps, stats.last_token_ts - stats.first_token_ts, together=together
            )
