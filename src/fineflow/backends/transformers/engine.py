"""Embedded LLM engine: any causal LM of Hugging Face transformers, in this process, with continuous batching.

One daemon thread owns the model and runs ``manager.Manager``; everything else here runs on the caller's event loop and
communicates with it through queues. Finished requests leave their full KV blocks in the cache; ``prefill`` relies on
that. Upstream drops all unused blocks together when less than 15% of the cache is free.

Penalties, ``min_tokens``, logprobs and forms (schema, regex, choices; by llguidance) need a forward pass that is
neither captured in CUDA graphs nor compiled; otherwise RequestError names them.

Not supported by upstream's continuous batching: penalties of a model's generation config (those of ``Sampling`` are
applied here), beam search, and prefix sharing for models with sliding-window attention (``can_prefill`` is False).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig

from fineflow.backends.transformers import grammars
from fineflow.backends.transformers.answer import Answer
from fineflow.backends.transformers.loading import check_folder, is_local
from fineflow.backends.transformers.model_host import CacheStats, Hosting
from fineflow.backends.transformers.request import Output, Request
from fineflow.backends.transformers.steering import Steering, check, steered
from fineflow.backends.transformers.threads import in_thread
from fineflow.errors import BackendError, RequestError, installing
from fineflow.ir import Op
from fineflow.protocols import CacheStatistics, Delta, Message, Sampling
from fineflow.runtime import events


class TransformersEngine:
    """``LLMEngine`` on ``transformers``' continuous batching. Loads the model on first use, with a progress bar.

    model: a local folder or a hub id. device: default CUDA if available. dtype: default float32 on CPU (greedy output
    then equals that of ``model.generate``), else the model's own. name: lane in plans and timelines; default the last
    part of ``model``. context: longest prompt plus output in tokens; default from the model's config. batching:
    settings of transformers; default small blocks and batches on CPU, transformers' own on CUDA.

    Raises BackendError if the model cannot be loaded: at once for a local folder, on first use for a hub id. After
    ``aclose()`` or the death of its thread the engine starts again on next use.
    """

    salts = True
    recovers = True  # transformers drops the cache of a request and recomputes it, decoded tokens included

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        name: str | None = None,
        context: int | None = None,
        batching: ContinuousBatchingConfig | None = None,
    ) -> None:
        self.model_id = os.path.expanduser(model)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = dtype or ("float32" if self.device.type == "cpu" else "auto")
        self.name = name or Path(self.model_id).name
        self._hosting = Hosting(self.model_id, self.name, self.device, self.dtype, context, batching)
        self._ids = itertools.count()
        self._grammars = grammars.Grammars(self._of_grammars)
        self._warming: set[Request] = set()  # running prefills
        self._decoded = 0  # tokens so far, of all requests
        self._queried = self._hits = 0  # prompt tokens so far; those of them that were cached
        if is_local(model):
            check_folder(model)
            self._hosting.load_config()

    def __repr__(self) -> str:
        state = "running" if self._hosting.alive() else "idle"
        return f"TransformersEngine({self.model_id!r}, device={self.device}, dtype={self.dtype}, {state})"

    # Prompts

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Returns the prompt text of a conversation, by the model's chat template. RequestError if it has none."""
        return self._hosting.text.render(messages, tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        return self._hosting.text.encode(text)

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the model, loaded on first use, without the model."""
        return self._hosting.text.tokenizer

    # Requests

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0, salt: str = "") -> None:
        """Computes and caches the full blocks of a prompt prefix; does nothing if there are none, or all are cached.

        Returns when the blocks can be used, or when a request whose prompt begins with ``tokens`` arrives, which
        continues from the blocks computed so far. Cancelling it aborts the request. It leaves only unused blocks, which
        any later request may share or evict.
        """
        whole = len(tokens) // self.block_size * self.block_size
        if not self.can_prefill or self.cached(tokens, salt=salt) >= whole:
            return
        # Two tokens, because upstream registers the blocks of a request only after a step that does not end it.
        events.sized(self.name, Op.PARTIAL_PREFILL, len(tokens))
        sampling = Sampling(max_tokens=2)
        async with self._submitted(tokens[:whole], sampling, priority, salt, eos=False) as (request, outputs):
            self._warming.add(request)
            try:
                output = await self._next(outputs)
            finally:
                self._warming.discard(request)
            if output.tokens:
                self._prefilled(request)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0, salt: str = ""
    ) -> AsyncGenerator[Delta, None]:
        """Decodes; see ``LLMEngine``. The tokens of the deltas include the end-of-sequence token, their text does not.

        Raises ValueError for settings out of range, RequestError for unsupported settings or a prompt that is too long,
        BackendError if the engine dies. ``max_tokens`` is cut to the room in the model's context.
        """
        check(sampling)
        steering = await self._steering(tokens, sampling)
        self._overtake(list(tokens), salt)
        async with self._submitted(tokens, sampling, priority, salt, steering=steering) as (request, outputs):
            answer = Answer(sampling, self._hosting.eos, self._hosting.text)
            first, before, ended = 0.0, 0, False
            while not ended:
                output = await self._next(outputs)
                if not answer.tokens and output.tokens:
                    first, before = self._prefilled(request), self._decoded
                self._decoded += len(output.tokens)
                delta = answer.take(output, request)
                ended = answer.reason is not None
                if ended and first:
                    self._measured(len(tokens), answer.tokens, first, before)
                if delta is not None:
                    yield delta

    def _measured(self, prompt: int, steps: int, first: float, before: int) -> None:
        """Reports the time of decoding since the first token."""
        events.sized(self.name, Op.PREFILL, prompt)
        events.sized(self.name, Op.DECODE, steps)
        together = max((self._decoded - before) / max(steps, 1), 1.0)  # mean number of requests per step
        events.measured(self.name, Op.DECODE, steps, time.perf_counter() - first, together=together)

    @contextlib.asynccontextmanager
    async def _submitted(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        priority: int,
        salt: str,
        *,
        eos: bool = True,
        steering: Steering | None = None,
    ) -> AsyncGenerator[tuple[Request, asyncio.Queue[Output]], None]:
        """Submits a request and yields it with the queue of its outputs; withdraws and reports it at the end."""
        queued = time.perf_counter()
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        manager = await self._hosting.running()  # loaded from here on
        request = Request(
            id=f"{self.name}-{next(self._ids)}",
            tokens=list(tokens),
            sampling=self._fit(len(tokens), sampling),
            seed=random.getrandbits(63) if sampling.seed is None else sampling.seed,
            priority=priority,
            loop=asyncio.get_running_loop(),
            deliver=outputs.put_nowait,
            stop_at_eos=eos,
            salt=salt,
            steering=steering,
        )
        if not manager.submit(request):  # its thread has just ended
            manager = await self._hosting.running()
            if not manager.submit(request):
                raise self._died(manager.background_thread_status.fatal_error)
        try:
            yield request, outputs
        finally:
            manager.withdraw(request)
            if request.started >= 0:
                self._queried += len(request.tokens)
                self._hits += max(request.cached_tokens, 0)
                events.began(time.perf_counter() - request.started)
            begun = request.started if request.started >= 0 else None
            prefilled = None if eos else events.Tokens(len(request.tokens), max(request.cached_tokens, 0))
            events.ended(self.name, "decode" if eos else "prefill", queued, begun, request.batch, prefilled)

    @property
    def constraints(self) -> frozenset[str]:
        """Forms of constrained output: see ``protocols.Constrains``."""
        return grammars.CONSTRAINTS if self._hosting.eager and grammars.available() else frozenset()

    async def _steering(self, tokens: Sequence[int], sampling: Sampling) -> Steering | None:
        """Returns the steering of a request; None if its tokens only have to be drawn."""
        names = steered(sampling)
        if not names:
            return None
        manager = await self._hosting.running()
        forms = grammars.CONSTRAINTS.intersection(names)
        lack = ""
        if not manager.logit_processor.eager:
            lack = "while its pass is captured or compiled; give it batching= with use_cuda_graph=False"
        elif forms and not grammars.available():
            lack = f"without llguidance; it comes with: {installing('structured')}"
        if lack:
            raise RequestError(f"LLM {self.name!r} cannot follow {', '.join(names)} {lack}")
        matcher = await in_thread(lambda: self._grammars.matcher(sampling)) if forms else None
        return Steering(sampling, tokens, self._hosting.eos, matcher)

    def _of_grammars(self) -> Any:
        return self._hosting.text.of_grammars(self._hosting.config.get_text_config().vocab_size, self._hosting.eos)

    def _overtake(self, tokens: list[int], salt: str) -> None:
        """Withdraws running prefills of a prefix of the prompt: running both would compute it twice."""
        for warming in tuple(self._warming):
            covered = warming.salt == salt and tokens[: len(warming.tokens)] == warming.tokens
            if covered and self._hosting.manager is not None:
                self._hosting.manager.withdraw(warming)
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    warming.loop.call_soon_threadsafe(warming.deliver, Output([], True))

    def _prefilled(self, request: Request) -> float:
        """Reports the time of the prefill, up to the first token. Returns the current time."""
        now = time.perf_counter()
        events.measured(
            self.name, Op.PREFILL, len(request.tokens) - max(request.cached_tokens, 0), now - request.started
        )
        return now

    async def _next(self, outputs: asyncio.Queue[Output]) -> Output:
        output = await outputs.get()
        if output.error is not None:
            raise self._died(output.error)
        return output

    def _died(self, cause: BaseException | None) -> BackendError:
        error = BackendError(f"LLM engine {self.name!r} stopped while a request was running: {cause}")
        error.__cause__ = cause
        return error

    def _fit(self, prompt: int, sampling: Sampling) -> Sampling:
        """Returns the sampling with ``max_tokens`` cut to the room in the context and the cache."""
        assert self.context is not None
        room = self.context - prompt
        if not prompt or room < 1:
            raise RequestError(
                f"LLM {self.name!r} takes prompts of 1 to {self.context - 1} tokens, this one has {prompt}; "
                "shorten it, or pass fewer or smaller documents"
            )
        return replace(sampling, max_tokens=min(sampling.max_tokens, room))

    # State

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        return self._hosting.block_size

    @property
    def can_prefill(self) -> bool:
        """True if prompts share the KV cache of common prefixes."""
        return self._hosting.can_prefill

    @property
    def context(self) -> int | None:
        """Most tokens of prompt and output together; None until a model from a hub is loaded."""
        return self._hosting.context

    @property
    def capacity(self) -> int | None:
        """Tokens that transformers admits to its KV cache; None until it has measured the free memory.

        These are its blocks minus the margin, below which it starts no further prompt and evicts the prefix cache.
        """
        return self._hosting.capacity

    def cached(self, tokens: Sequence[int], *, salt: str = "") -> int:
        """Returns the number of leading tokens of a prompt in the prefix cache now. It may change at any time."""
        return self._hosting.cached(tokens, salt)

    def stats(self) -> CacheStats:
        """Returns the state of the KV cache; all zero while nothing runs. Approximate while the engine is busy."""
        return self._hosting.stats()

    def cache_statistics(self) -> CacheStatistics | None:
        """See ``protocols.Measured``: of the tokens that transformers admits. Approximate while the engine is busy."""
        blocks, room = self._hosting.stats(), self._hosting.capacity
        if not blocks.total or room is None:
            return None
        held = blocks.used * self.block_size
        return CacheStatistics(room, max(room - held, 0), self._queried, self._hits)

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache, so that every measurement starts from the same state.

        Running requests continue; later requests share only the blocks that they fill from now on. The generation
        thread is paused between two steps for it.
        """
        await self._hosting.reset_prefix_cache()

    async def start(self) -> None:
        """Loads the model and starts its thread, so that the first request does not wait for it."""
        await self._hosting.running()

    async def aclose(self) -> None:
        """Fails running requests, ends the thread and releases the model. Idempotent."""
        await self._hosting.aclose()
