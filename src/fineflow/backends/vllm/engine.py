"""The vLLM engine, as users make it."""

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
    """An ``LLMEngine`` on vLLM's ``AsyncLLM``, in processes of its own. Starts at first use, which takes half a minute.

    model: a local folder or a hub id. name: lane in plans and timelines; default the last part of ``model``. context:
    longest prompt plus output in tokens; default what the model's config says. sessions: how many prefixes may be kept
    as requests that wait for the rest of their prompt, instead of in the prefix cache alone (0: none; experimental, as
    it is in vLLM; not with versions of vLLM that it was not tried with, nor for requests with stop strings). options:
    any other argument of vLLM's ``AsyncEngineArgs``, as ``dtype``, ``gpu_memory_utilization``,
    ``kv_cache_memory_bytes``, ``enforce_eager``.

    Objects with the same arguments stand for one engine, which all chains of the process share. It ends when the last
    of them is closed or collected, and starts again when one is used after that. It has an event loop of its own, so
    it may be used from any; a forked child starts another one.

    Scripts must do what they do below ``if __name__ == "__main__"``, because vLLM's processes import them.

    Raises BackendError, with what went wrong in vLLM's processes, for whoever waits when it cannot start or dies; the
    next use starts another one. RequestError for a request that vLLM refuses.
    """

    recovers = True  # vLLM preempts a request that has no room, and computes it again

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
        """The engine that it stands for. Asking for it is use, also after ``aclose``."""
        self._shared.users.add(self._user)
        return self._shared

    @property
    def block_size(self) -> int:
        """Tokens per key/value block; a guess until vLLM has started, unless it was given."""
        return self._shared.block_size

    @property
    def can_prefill(self) -> bool:
        """Whether vLLM keeps prefixes."""
        return self._shared.can_prefill

    @property
    def context(self) -> int | None:
        """Tokens of the longest prompt and output together; None until vLLM has started."""
        return self._shared.context

    @property
    def capacity(self) -> int | None:
        """Tokens that its key/value cache has room for; None until vLLM has started."""
        return self._shared.capacity

    @property
    def constraints(self) -> frozenset[str]:
        """What it can hold its output to."""
        return self._shared.constraints

    @property
    def version(self) -> str | None:
        """Of vLLM; None until it has started."""
        host = self._shared.host
        return host.facts.version if host is not None else None

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, loaded when first asked for; it does not wait for vLLM to start."""
        return self.shared.prompts.tokenizer

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The prompt text of a conversation, by the model's chat template. RequestError when it has none."""
        return self.shared.render_chat(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt text (special tokens only where the text has them)."""
        return self.shared.encode(text)

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        """Computes and keeps the full blocks of a prompt prefix, by a request for one token.

        Does nothing when there are none, or all are kept. Returns when the blocks can be used, or when a request for a
        prompt that begins with ``tokens`` has come: that goes on with the blocks there are. Cancelling it aborts it.
        """
        await self.shared.prefill(tokens, priority=priority)

    def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncGenerator[Delta, None]:
        """Decodes; see ``LLMEngine``. Tokens of the deltas include the end-of-sequence token, their text does not.

        ``sampling.extra`` takes fields of vLLM's ``SamplingParams``, as ``logit_bias``, ``bad_words``, ``ignore_eos``.
        ``max_tokens`` is cut to what the model's context has room for. Raises RequestError for what vLLM refuses.
        """
        return self.shared.generate(tokens, sampling, priority=priority)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt are in the prefix cache, as far as can be told from outside."""
        return self._shared.cached(tokens)

    def cache_statistics(self) -> CacheStatistics | None:
        """Where the key/value cache stands; None while vLLM does not run."""
        return self._shared.cache_statistics()

    async def reset_prefix_cache(self) -> None:
        """Forgets the prefix cache, so that a measurement starts from the same state as the one before it.

        Requests under way are computed anew.
        """
        await self._shared.reset_prefix_cache()

    async def start(self) -> None:
        """Starts vLLM, so that the first request need not wait for it."""
        await self.shared.running()

    async def aclose(self) -> None:
        """Where it is the last one for its engine, fails what is under way and ends vLLM's processes. Idempotent."""
        await asyncio.wrap_future(_released(self._shared, self._user))


def _released(engine: Shared, user: int) -> Future[None]:
    return in_thread(lambda: release(engine, user))
