"""The one engine behind all ``VLLMEngine`` objects of a process that say the same."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from fineflow.backends.base import CacheStatistics, Delta, Message, Sampling
from fineflow.backends.vllm import sampling as sampled
from fineflow.backends.vllm.host import Host
from fineflow.backends.vllm.kept import Kept
from fineflow.backends.vllm.starting import check_process, environment
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.runtime import events

_BLOCK = 32  # tokens per block until vLLM has started and says


class Shared:
    """An ``LLMEngine`` on vLLM; ``VLLMEngine`` says what it takes. Starts when it is used, stops with its last user.

    users: how many ``VLLMEngine`` objects stand for it.
    """

    constraints = frozenset({"schema", "regex", "choices"})

    def __init__(self, model: str, name: str, options: Mapping[str, Any]) -> None:
        self.model = model
        self.name = name
        self.users: set[int] = set()
        self._options = dict(options)
        self._ids = itertools.count()
        self._lock = threading.RLock()
        self._tokenizing = threading.RLock()  # fast tokenizers refuse to be borrowed by two threads at once
        self._tokenizer: Any = None
        self._host: Host | None = None
        self._starting: Future[Host] | None = None
        self._kept = Kept()
        self._warming: dict[tuple[int, ...], Callable[[], None]] = {}  # prefills under way, and how they are ended
        self._decoded = 0  # tokens so far, of all requests
        _all.add(self)

    def __repr__(self) -> str:
        state = "running" if self.host is not None else "idle"
        return f"<vLLM with {self.model!r}, {state}, {len(self.users)} users>"

    # What it is

    @property
    def host(self) -> Host | None:
        """vLLM, while it runs."""
        host = self._host
        return host if host is not None and host.running else None

    @property
    def block_size(self) -> int:
        host = self.host
        return host.facts.block if host is not None else int(self._options.get("block_size") or _BLOCK)

    @property
    def context(self) -> int | None:
        host = self.host
        return host.facts.context if host is not None else None

    @property
    def capacity(self) -> int | None:
        host = self.host
        return host.facts.room if host is not None else None

    @property
    def can_prefill(self) -> bool:
        host = self.host
        return host.facts.caching if host is not None else self._options.get("enable_prefix_caching") is not False

    def cache_statistics(self) -> CacheStatistics | None:
        host = self.host
        if host is None:
            return None
        gauges, room = host.gauges, host.facts.room
        used = gauges.usage if host.busy else 0.0  # an aborted request is not reported by itself
        return CacheStatistics(room, round(room * (1 - used)), gauges.queried, gauges.hits)

    # Prompts

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        conversation = [message.as_dict() for message in messages]
        try:
            text: str = self.tokenizer.apply_chat_template(
                conversation,
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except BackendError:
            raise
        except Exception as error:  # templates raise what they like
            if not getattr(self.tokenizer, "chat_template", True):
                raise RequestError(f"LLM {self.model!r} has no chat template; use it for plain completions") from error
            raise RequestError(f"the chat template of LLM {self.model!r} refuses the messages: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        tokenizer = self.tokenizer
        with self._tokenizing:
            found: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return found

    @property
    def tokenizer(self) -> Any:
        """Loaded when first asked for; it does not wait for vLLM to start."""
        if self._tokenizer is None:
            with self._tokenizing:
                if self._tokenizer is None:
                    self._tokenizer = self._load_tokenizer()
        return self._tokenizer

    def _load_tokenizer(self) -> Any:
        given = self._options
        check_process()
        try:
            with environment():
                from vllm.tokenizers import get_tokenizer

                return get_tokenizer(
                    given.get("tokenizer") or self.model,
                    tokenizer_mode=given.get("tokenizer_mode", "auto"),
                    trust_remote_code=given.get("trust_remote_code", False),
                    revision=given.get("tokenizer_revision") or given.get("revision"),
                    download_dir=given.get("download_dir"),
                )
        except Exception as error:  # of vLLM, transformers, tokenizers and the hub
            raise BackendError(f"the tokenizer of LLM {self.model!r} could not be loaded: {error}") from error

    # Requests

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        host = await self.running()
        whole = tuple(tokens[: len(tokens) // self.block_size * self.block_size])
        if not self.can_prefill or not whole or self.cached(whole) >= len(whole) or whole in self._warming:
            return
        self._check(len(whole), host)
        events.sized(self.name, Op.PARTIAL_PREFILL, len(whole))
        try:
            request = _Request(self, host, whole, sampled.warming(), priority, "prefill")
            async with aclosing(request.outputs(lambda end: self._warming.__setitem__(whole, end))) as outputs:
                async for _ in outputs:
                    pass
        finally:
            self._warming.pop(whole, None)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        host = await self.running()
        prompt = tuple(tokens)
        params = sampled.params(sampling, self.name, self._check(len(prompt), host))
        for warming, end in list(self._warming.items()):
            if prompt[: len(warming)] == warming:  # both at once would compute it twice
                end()
        request = _Request(self, host, prompt, params, priority, "decode")
        async with aclosing(request.outputs()) as outputs:
            news: list[int] = []
            logprobs: list[Any] = []
            async for output in outputs:
                completion = output.outputs[0]
                news += completion.token_ids
                logprobs += sampled.logprobs(completion, sampling.logprobs)
                reason = sampled.finish_reason(completion, self.name)
                if completion.text or reason:
                    yield Delta(
                        completion.text, tuple(news), reason, len(prompt), request.cached, logprobs=tuple(logprobs)
                    )
                    news, logprobs = [], []

    def _check(self, prompt: int, host: Host) -> int:
        """The room for the output that the context leaves. RequestError when there is none."""
        room = host.facts.context - prompt
        if not prompt or room < 1:
            raise RequestError(
                f"LLM {self.name!r} takes prompts of 1 to {host.facts.context - 1} tokens, this one has {prompt}; "
                "shorten it, or pass fewer or smaller documents"
            )
        return room

    # State

    def cached(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt are in the prefix cache, as far as can be told from outside."""
        return self._kept.known(tokens, self.block_size) if self.host is not None else 0

    async def reset_prefix_cache(self) -> None:
        self._kept.clear()
        if (host := self.host) is not None:
            await host.call(lambda llm: llm.reset_prefix_cache(reset_running_requests=True))

    async def running(self) -> Host:
        """vLLM, started if need be. Whoever waits for its start gets its failure."""
        host = self.host
        if host is not None:
            return host
        with self._lock:
            starting = self._starting
            if starting is None:
                self._starting = starting = Future()
                threading.Thread(target=self._start, args=(starting,), name="fineflow-vllm-start", daemon=True).start()
        try:
            return await asyncio.shield(asyncio.wrap_future(starting))
        except BackendError as error:
            raise BackendError(*error.args) from error.__cause__

    def _start(self, starting: Future[Host]) -> None:
        with self._lock:
            old, self._host = self._host, None
        try:
            if old is not None:  # it has died; its processes are gone before those of the next one come
                old.stop()
            check_process()
            self._kept.clear()
            host = Host(self.name, self.model, self._options)
            host.start()
        except BaseException as error:
            with self._lock:
                self._starting = None
            starting.set_exception(error)
            return
        with self._lock:
            self._host, self._starting = host, None
        starting.set_result(host)

    async def aclose(self) -> None:
        """Ends it for all its users."""
        await asyncio.wrap_future(in_thread(self.stop))

    def stop(self, *, unused: bool = False) -> None:
        """Ends vLLM and waits for that; the next use starts it again. unused: only if it has no users then."""
        with self._lock:
            starting = self._starting
        if starting is not None:
            starting.exception()
        with self._lock:
            if unused and self.users:
                return
            host, self._host = self._host, None
        if host is not None:
            host.stop()

    def forget(self) -> None:
        """In a forked child: what runs is the parent's."""
        host, self._host, self._starting = self._host, None, None
        self._lock, self._tokenizing = threading.RLock(), threading.RLock()
        self._warming.clear()
        if host is not None:
            host.abandon()
            _inherited.append(host)


class _Request:
    """One request to vLLM, and what is reported of it. cached: tokens of the prompt that were in the prefix cache."""

    def __init__(
        self, engine: Shared, host: Host, prompt: tuple[int, ...], params: Any, priority: int, label: str
    ) -> None:
        self.engine = engine
        self.host = host
        self.prompt = prompt
        self.params = params
        self.priority = priority
        self.label = label
        self.cached = 0
        self._begun: float | None = None
        self._tokens: list[int] = []  # decoded so far
        self._before = 0  # those of all requests, when its own began

    async def outputs(self, expose: Callable[[Callable[[], None]], None] | None = None) -> AsyncGenerator[Any, None]:
        """What vLLM answers; closing it aborts the request. expose: see ``Host.stream``."""
        from vllm.inputs import tokens_input

        engine, queued = self.engine, events.now()
        number = f"{engine.name}-{next(engine._ids)}"

        def work(llm: Any) -> Any:
            return llm.generate(tokens_input(list(self.prompt)), self.params, number, priority=-self.priority)

        try:
            async with aclosing(self.host.stream(work, expose=expose)) as outputs:
                async for output in outputs:
                    if not self._tokens:
                        self._first(output)
                    self._tokens += output.outputs[0].token_ids
                    engine._decoded += len(output.outputs[0].token_ids)
                    if output.finished:
                        self._last(output)
                    yield output
        finally:
            if self._begun is not None:
                events.began(events.now() - self._begun)
            events.ended(engine.name, self.label, queued, self._begun, -1)

    def _first(self, output: Any) -> None:
        """The prompt has been computed. vLLM's times are those of the same clock as ours, in its own process."""
        engine, facts, stats = self.engine, self.host.facts, output.metrics
        self.cached = output.num_cached_tokens or 0
        self._before = engine._decoded
        if self.label == "decode":
            engine._kept.correct(self.prompt, facts.block, self.cached)
        engine._kept.add(self.prompt, facts.block, facts.room)
        if stats is not None and stats.scheduled_ts:
            self._begun = stats.scheduled_ts
            computed = len(self.prompt) - self.cached
            events.measured(engine.name, Op.PREFILL, computed, stats.first_token_ts - stats.scheduled_ts)

    def _last(self, output: Any) -> None:
        engine, facts, stats = self.engine, self.host.facts, output.metrics
        engine._kept.add(self.prompt + tuple(self._tokens[:-1]), facts.block, facts.room)
        if self.label == "decode" and stats is not None and stats.last_token_ts:
            steps = max(len(self._tokens), 1)
            together = max((engine._decoded - self._before) / steps, 1.0)  # what others got meanwhile
            events.sized(engine.name, Op.PREFILL, len(self.prompt))
            events.sized(engine.name, Op.DECODE, steps)
            events.measured(
                engine.name, Op.DECODE, steps, stats.last_token_ts - stats.first_token_ts, together=together
            )


def in_thread(work: Callable[[], None]) -> Future[None]:
    """Runs what has to wait for processes in a thread of its own."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="fineflow-vllm-stop", daemon=True).start()
    return done


_engines: weakref.WeakValueDictionary[tuple[Any, ...], Shared] = weakref.WeakValueDictionary()
_all: weakref.WeakSet[Shared] = weakref.WeakSet()
_inherited: list[Host] = []  # of a parent process; if they were collected here, they would end its engines
_registry = threading.RLock()


def shared(model: str, name: str, options: Mapping[str, Any]) -> Shared:
    """The engine for these arguments: one, as long as somebody has it."""
    key = (model, name, *sorted((option, repr(value)) for option, value in options.items()))
    with _registry:
        found = _engines.get(key)
        if found is None:
            _engines[key] = found = Shared(model, name, options)
        return found


def release(engine: Shared, user: int) -> None:
    """``user`` does not need it any longer. Blocks where that was the last one, until vLLM has ended."""
    with _registry:
        engine.users.discard(user)
        last = not engine.users
    if last:
        engine.stop(unused=True)


def _forked() -> None:
    global _registry
    _registry = threading.RLock()
    for engine in list(_all):
        engine.forget()


@atexit.register
def _stop_all() -> None:
    for engine in list(_all):
        engine.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
