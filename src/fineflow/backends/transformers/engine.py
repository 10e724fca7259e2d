"""The embedded LLM engine: any causal LM of Hugging Face transformers, in this process, with continuous batching.

One daemon thread owns the model and runs ``continuous.Manager``; everything else here runs on the caller's event loop
and talks to it through queues. Finished requests leave their full key/value blocks behind, which is what ``prefill``
relies on; upstream drops all blocks nobody uses at once when fewer than 15% of the cache are free.

Penalties, ``min_tokens``, logprobs and forms (schema, regex, choices; by llguidance) are followed where the pass of the
model is neither captured in CUDA graphs nor compiled; elsewhere RequestError names them.

What upstream's continuous batching does not do: penalties of a model's generation config (those of ``Sampling`` are
done here), beam search, and prefix sharing for models with sliding-window attention (``can_prefill`` is False there).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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
from fineflow.backends.transformers.loading import is_local
from fineflow.backends.transformers.model_host import CacheStats, Hosting
from fineflow.backends.transformers.request import Output, Request
from fineflow.backends.transformers.steering import Steering, check, steered
from fineflow.backends.transformers.threads import in_thread
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import Delta, Message, Sampling
from fineflow.runtime import events


class TransformersEngine:
    """An ``LLMEngine`` on ``transformers``' continuous batching. Loads the model at first use, with a progress bar.

    model: a local folder or a hub id. device: default CUDA where there is one. dtype: default float32 on CPU (greedy
    output is then that of ``model.generate``), else the model's own. name: lane in plans and timelines; default the
    last part of ``model``. context: longest prompt plus output in tokens; default what the model's config says.
    batching: settings of transformers; default small blocks and batches on CPU, transformers' own on CUDA.

    Raises BackendError when the model cannot be loaded: at once for a local folder, at first use for a hub id.
    After ``aclose()`` or the death of its thread the engine starts again when next used.
    """

    recovers = True  # transformers drops the cache of a request, and computes it again, what was decoded included

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
        self.model_id = str(model)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = dtype or ("float32" if self.device.type == "cpu" else "auto")
        self.name = name or Path(self.model_id).name
        self._hosting = Hosting(self.model_id, self.name, self.device, self.dtype, context, batching)
        self._ids = itertools.count()
        self._grammars = grammars.Grammars(self._of_grammars)
        self._warming: set[Request] = set()  # prefills under way
        self._decoded = 0  # tokens so far, of all requests
        if is_local(model):
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
        """The prompt text of a conversation, by the model's chat template. RequestError when it has none."""
        return self._hosting.text.render(messages, tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        return self._hosting.text.encode(text)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, loaded when first asked for; it does not wait for the model."""
        return self._hosting.text.tokenizer

    # Requests

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        """Computes and keeps the full blocks of a prompt prefix; does nothing when there are none, or all are kept.

        Returns when the blocks can be used, or when a request for a prompt that begins with ``tokens`` has come: that
        goes on with the blocks there are. Cancelling it aborts the request. Nothing is left of it but blocks that
        nobody holds, which any later request may share or take over.
        """
        whole = len(tokens) // self.block_size * self.block_size
        if not self.can_prefill or self.cached(tokens) >= whole:
            return
        # Two tokens, because the blocks of a request are registered only after a step that it survives.
        events.sized(self.name, Op.PARTIAL_PREFILL, len(tokens))
        async with self._submitted(tokens[:whole], Sampling(max_tokens=2), priority, eos=False) as (request, outputs):
            self._warming.add(request)
            try:
                output = await self._next(outputs)
            finally:
                self._warming.discard(request)
            if output.tokens:
                self._prefilled(request)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        """Decodes; see ``LLMEngine``. Tokens of the deltas include the end-of-sequence token, their text does not.

        Raises ValueError for settings out of range, RequestError for those that cannot be followed, BackendError when
        the prompt is too long or the engine dies. ``max_tokens`` is cut to what the model's context has room for.
        """
        check(sampling)
        steering = await self._steering(tokens, sampling)
        self._overtake(list(tokens))
        async with self._submitted(tokens, sampling, priority, steering=steering) as (request, outputs):
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
        """Tells what decoding took since the first token."""
        events.sized(self.name, Op.PREFILL, prompt)
        events.sized(self.name, Op.DECODE, steps)
        together = max((self._decoded - before) / max(steps, 1), 1.0)  # what others got meanwhile
        events.measured(self.name, Op.DECODE, steps, time.perf_counter() - first, together=together)

    @contextlib.asynccontextmanager
    async def _submitted(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        priority: int,
        *,
        eos: bool = True,
        steering: Steering | None = None,
    ) -> AsyncGenerator[tuple[Request, asyncio.Queue[Output]], None]:
        """A request on its way and the queue of its outputs; withdrawn and reported at the end of the block."""
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
            steering=steering,
        )
        if not manager.submit(request):  # its thread ended at this very moment
            manager = await self._hosting.running()
            if not manager.submit(request):
                raise self._died(manager.background_thread_status.fatal_error)
        try:
            yield request, outputs
        finally:
            manager.withdraw(request)
            if request.started >= 0:
                events.began(time.perf_counter() - request.started)
            begun = request.started if request.started >= 0 else None
            events.ended(self.name, "decode" if eos else "prefill", queued, begun, request.batch)

    @property
    def constraints(self) -> frozenset[str]:
        """Which forms an output can be held to: see ``protocols.Constrains``."""
        return grammars.CONSTRAINTS if self._hosting.eager and grammars.available() else frozenset()

    async def _steering(self, tokens: Sequence[int], sampling: Sampling) -> Steering | None:
        """What has to be done for a request beyond drawing its tokens."""
        names = steered(sampling)
        if not names:
            return None
        manager = await self._hosting.running()
        forms = grammars.CONSTRAINTS.intersection(names)
        lack = ""
        if not manager.logit_processor.eager:
            lack = "while its pass is captured or compiled; give it batching= with use_cuda_graph=False"
        elif forms and not grammars.available():
            lack = 'without llguidance; it comes with: pip install "fineflow[structured]"'
        if lack:
            raise RequestError(f"LLM {self.name!r} cannot follow {', '.join(names)} {lack}")
        matcher = await in_thread(lambda: self._grammars.matcher(sampling)) if forms else None
        return Steering(sampling, tokens, self._hosting.eos, matcher)

    def _of_grammars(self) -> Any:
        return self._hosting.text.of_grammars(self._hosting.config.get_text_config().vocab_size, self._hosting.eos)

    def _overtake(self, tokens: list[int]) -> None:
        """Withdraws the prefills of a prompt that is there as a whole now: both at once would compute it twice."""
        for warming in tuple(self._warming):
            if tokens[: len(warming.tokens)] == warming.tokens and self._hosting.manager is not None:
                self._hosting.manager.withdraw(warming)
                with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits
                    warming.loop.call_soon_threadsafe(warming.deliver, Output([], True))

    def _prefilled(self, request: Request) -> float:
        """Tells what computing the prompt took, up to the first token; the time now."""
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
        error = BackendError(f"LLM engine {self.name!r} stopped while a request was under way: {cause}")
        error.__cause__ = cause
        return error

    def _fit(self, prompt: int, sampling: Sampling) -> Sampling:
        """The sampling cut to the room that the context and the cache leave."""
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
        """Tokens per key/value block."""
        return self._hosting.block_size

    @property
    def can_prefill(self) -> bool:
        """Whether prompts share what is computed of their beginnings."""
        return self._hosting.can_prefill

    @property
    def context(self) -> int | None:
        """Tokens of the longest prompt and output together; None until a model from a hub is loaded."""
        return self._hosting.context

    @property
    def capacity(self) -> int | None:
        """Tokens that transformers lets into its key/value cache; None until it has measured how much memory is free.

        That is its blocks less the margin, below which it begins no further prompt and gives up what it has kept.
        """
        return self._hosting.capacity

    def cached(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt are in the prefix cache now. A moment later it may be others."""
        return self._hosting.cached(tokens)

    def stats(self) -> CacheStats:
        """Where the key/value cache stands; all zero while the engine is idle. Approximate while it works."""
        return self._hosting.stats()

    async def reset_prefix_cache(self) -> None:
        """Forgets the prefix cache, so that a measurement starts from the same state as the one before it.

        Requests under way go on, and share with later ones no more blocks than they fill from now on. The generation
        thread is paused between two steps for it.
        """
        await self._hosting.reset_prefix_cache()

    async def start(self) -> None:
        """Loads the model and starts its thread, so that the first request need not wait for it."""
        await self._hosting.running()

    async def aclose(self) -> None:
        """Fails the requests under way, ends the thread and releases the model. Idempotent."""
        await self._hosting.aclose()
