"""The vLLM engine that users create."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fineflow.backends.vllm.registry import release, shared
from fineflow.backends.vllm.shared import Shared, in_thread
from fineflow.protocols import CacheStatistics, Delta, Message, Sampling

_users = itertools.count(1)


class VLLMEngine:
    """``LLMEngine`` on vLLM's ``AsyncLLM``, in its own processes. Starts on first use, which takes half a minute.

    model: a local folder or a hub id. name: lane in plans and timelines; default the last part of ``model``. context:
    longest prompt plus output in tokens; default from the model's config. sessions: number of prefixes that may be kept
    as requests that wait for the rest of their prompt, not only in the prefix cache (0: none; experimental, as it is in
    vLLM; only with tested versions of vLLM, and not for requests with stop strings). options: any other argument of
    vLLM's ``AsyncEngineArgs``, e.g. ``dtype``, ``gpu_memory_utilization``, ``kv_cache_memory_bytes``,
    ``enforce_eager``.

    Objects with equal arguments share one engine in the process. It ends when the last of them is closed or collected,
    and starts again if one is used after that. It has its own event loop, so it may be used from any loop; a forked
    child starts its own engine.

    Scripts must run their code below ``if __name__ == "__main__"``, because vLLM's processes import them.

    If it cannot start or dies, all waiting callers get a BackendError with the cause from vLLM's processes; the next
    use starts it again. RequestError for a request that vLLM refuses.
    """

    shares_at_once = True  # it looks for common blocks when a prompt's turn comes, and finds those of the same step
    salts = True
    recovers = True  # vLLM preempts a request without room, and recomputes it

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        context: int | None = None,
        sessions: int = 0,
        **options: Any,
    ) -> None:
        self.model_id = str(model)
        self.name = name or Path(self.model_id).name
        if context is not None:
            options["max_model_len"] = context
        self._user = next(_users)
        self._shared = shared(self.model_id, self.name, options, sessions)
        self._shared.users.add(self._user)
        weakref.finalize(self, _released, self._shared, self._user).atexit = False

    def __repr__(self) -> str:
        return f"VLLMEngine({self.model_id!r}, {'running' if self._shared.host is not None else 'idle'})"

    @property
    def shared(self) -> Shared:
        """The shared engine. Reading it counts as use, even after ``aclose``."""
        self._shared.users.add(self._user)
        return self._shared

    @property
    def block_size(self) -> int:
        """Tokens per KV block; before vLLM has started a guess, unless set by an option."""
        return self._shared.block_size

    @property
    def can_prefill(self) -> bool:
        """True if vLLM's prefix cache is on."""
        return self._shared.can_prefill

    @property
    def context(self) -> int | None:
        """Most tokens of prompt and output together; None until vLLM has started."""
        return self._shared.context

    @property
    def capacity(self) -> int | None:
        """Capacity of the KV cache in tokens; None until vLLM has started."""
        return self._shared.capacity

    @property
    def constraints(self) -> frozenset[str]:
        """Forms of constrained output."""
        return self._shared.constraints

    @property
    def device(self) -> str:
        """What vLLM runs on: "cpu" if its package for CPUs is installed, else "cuda"."""
        return self._shared.device

    @property
    def version(self) -> str | None:
        """Version of vLLM; None until it has started."""
        host = self._shared.host
        return host.facts.version if host is not None else None

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the model, loaded on first use, without starting vLLM."""
        return self.shared.prompts.tokenizer

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Returns the prompt text of a conversation, by the model's chat template. RequestError if it has none."""
        return self.shared.render_chat(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a prompt text, without adding special tokens."""
        return self.shared.encode(text)

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0, salt: str = "") -> None:
        """Computes and caches the full blocks of a prompt prefix, by a request for one token.

        Does nothing if there are none, or all are cached. Returns when the blocks can be used, or when a request whose
        prompt begins with ``tokens`` arrives, which continues from the blocks computed so far. Cancelling it aborts it.
        """
        await self.shared.prefill(tokens, priority=priority, salt=salt)

    async def release(self, tokens: Sequence[int], *, salt: str = "") -> None:
        """Ends the session that keeps a prefix, if there is one; its blocks may then be evicted."""
        await self._shared.release(tokens, salt=salt)

    def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        """Decodes; see ``LLMEngine``. The tokens of the deltas include the end-of-sequence token, their text does not.

        ``sampling.extra`` takes fields of vLLM's ``SamplingParams``: ``logit_bias``, ``bad_words``, ``ignore_eos``, ...
        ``max_tokens`` is cut to the room in the model's context. Raises RequestError for a request that vLLM refuses.
        """
        return self.shared.generate(tokens, sampling, priority=priority, salt=salt)

    def cached(self, tokens: Sequence[int], *, salt: str = "") -> int:
        """Returns the estimated number of leading tokens of a prompt in the prefix cache."""
        return self._shared.cached(tokens, salt=salt)

    def cache_statistics(self) -> CacheStatistics | None:
        """Returns statistics of the KV cache; None while vLLM does not run."""
        return self._shared.cache_statistics()

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache, so that every measurement starts from the same state.

        Running requests are computed again.
        """
        await self._shared.reset_prefix_cache()

    async def start(self) -> None:
        """Starts vLLM, so that the first request does not wait for it."""
        await self.shared.running()

    async def aclose(self) -> None:
        """Closes this object. The last one of an engine fails running requests and ends vLLM. Idempotent."""
        await asyncio.wrap_future(_released(self._shared, self._user))


def _released(engine: Shared, user: int) -> Future[None]:
    return in_thread(lambda: release(engine, user))
