"""Continuous batching of transformers, extended with routing, sampling and priorities per request, on a daemon thread
that fails its requests when it ends.

transformers has one manager per model with one sampling setting, first come first served. Three of its parts are
replaced here through its own interfaces: the scheduler (a registered type), the output router and the list of logits
processors. Nothing upstream is patched.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from struct import unpack
from types import SimpleNamespace
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, OutputRouter
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler

from fineflow.backends.transformers.request import Output, Request, request_of
from fineflow.backends.transformers.sampler import Sampler

SCHEDULER_TYPE = "fineflow_priority"
_EXIT_SECONDS = 5.0  # interpreter exit waits so long for the running step


class PriorityScheduler(FIFOScheduler):  # type: ignore[misc]
    """Scheduler by priority, FIFO among equals. Decoding requests always continue.

    Sets ``Request.batch`` to the number of the step in which the request begins.
    """

    _step = 0

    def _process_candidates(self, candidates: list[RequestState], *args: Any, **kwargs: Any) -> Any:
        def rank(state: RequestState) -> tuple[bool, int]:
            request = request_of(state)
            return state.status != RequestStatus.DECODING, -(request.priority if request else 0)

        found = super()._process_candidates(sorted(candidates, key=rank), *args, **kwargs)
        for scheduled in found[0]:
            request = request_of(scheduled.state)
            if request is not None and request.batch < 0:
                request.batch = self._step
        self._step += bool(found[0])
        return found

    def _infer_request_tokens(self, state: RequestState, waiting: set[str]) -> list[int]:
        request = request_of(state)
        self.cache.salt = request.salt if request else ""
        tokens: list[int] = super()._infer_request_tokens(state, waiting)
        if request is not None and request.cached_tokens < 0:
            request.cached_tokens = state.position_offset
        return tokens


SCHEDULER_MAPPING[SCHEDULER_TYPE] = PriorityScheduler


class SaltedCache(PagedAttentionCache):  # type: ignore[misc]
    """Cache that shares blocks between requests of one salt only. salt: of the request that begins."""

    salt = ""

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        found: int = super().search_prefix_match(request_id, with_salt(prompt_ids, self.salt))
        return found

    def mark_complete_blocks(self, state: RequestState, complete_blocks: dict[str, int]) -> None:
        request = request_of(state)
        if request is not None and request.salt:
            tokens = with_salt(state.initial_tokens, request.salt)
            state = SimpleNamespace(
                status=state.status,
                request_id=state.request_id,
                initial_tokens=tokens,
                generated_tokens=state.generated_tokens,
            )
        super().mark_complete_blocks(state, complete_blocks)


def with_salt(tokens: list[int], salt: str) -> list[int]:
    """Returns a prompt's tokens for the hashes of blocks: a salt changes the first four.

    Upstream hashes them as 32-bit integers. The changed ones are negative, so none is the token of another prompt.
    """
    if not salt:
        return tokens
    digest = unpack("<4I", blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest())
    return [*(~((part >> 1) ^ token) for part, token in zip(digest, tokens, strict=False)), *tokens[4:]]


class Router(OutputRouter):  # type: ignore[misc]
    """Delivers outputs to their requests. An output without a waiting request is dropped, and its request cancelled.

    Upstream would collect such outputs in a queue forever. Cancelling again closes a gap: the manager forgets a
    cancellation that it reads before the request itself.
    """

    def __init__(self, cancel: Callable[[str], None]) -> None:
        super().__init__()
        self._cancel = cancel
        self._waiting: dict[str, Request] = {}
        self._errors: dict[str, BaseException] = {}
        self.closed = False

    def register(self, request: Request) -> bool:
        """Registers a request. Returns False if the manager's thread has ended: there would be no answer."""
        with self._lock:
            if not self.closed:
                self._waiting[request.id] = request
            return not self.closed

    def forget(self, request_id: str) -> None:
        with self._lock:
            self._waiting.pop(request_id, None)

    def deliver(self, output: GenerationOutput) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        calls: dict[asyncio.AbstractEventLoop, list[tuple[Request, Output]]] = {}
        for output in outputs:
            finished = output.is_finished()
            with self._lock:
                get = self._waiting.pop if finished else self._waiting.get
                request = get(output.request_id, None)
                error = self._errors.pop(output.request_id, None)
            if request is None:
                if not finished:
                    self._cancel(output.request_id)
                continue
            if error is None and output.error is not None:
                error = RuntimeError(output.error)
            request.started = output.lifespan[0]
            news, first = output.generated_tokens[request.delivered :], request.delivered
            request.delivered += len(news)
            logprobs = request.logprobs[first : request.delivered]
            calls.setdefault(request.loop, []).append((request, Output(news, finished, error, logprobs)))
        for loop, items in calls.items():
            self._call(loop, items)

    def fail_and_deliver(self, state: RequestState, error: Exception) -> None:
        with self._lock:
            if state.request_id in self._waiting:
                self._errors[state.request_id] = error
        super().fail_and_deliver(state, error)

    def close(self, error: BaseException) -> None:
        """Fails all waiting requests, and refuses later ones."""
        with self._lock:
            self.closed = True
            left, self._waiting = list(self._waiting.values()), {}
        for request in left:
            self._call(request.loop, [(request, Output([], True, error))])

    def _call(self, loop: asyncio.AbstractEventLoop, items: list[tuple[Request, Output]]) -> None:
        def run() -> None:
            for request, output in items:
                request.deliver(output)

        try:
            loop.call_soon_threadsafe(run)
        except RuntimeError:  # that loop is closed: its requests have no reader any more
            for request, _ in items:
                self.forget(request.id)
                self._cancel(request.id)


class Manager(ContinuousBatchingManager):  # type: ignore[misc]
    """transformers' manager with the parts above, on a daemon thread: an engine left open does not block exit."""

    output_router: Router

    def __init__(self, model: Any, generation: GenerationConfig, batching: ContinuousBatchingConfig, name: str) -> None:
        super().__init__(model=model, generation_config=generation, continuous_batching_config=batching)
        self.name = name
        self.output_router = Router(self.cancel_request)
        self.logit_processor = Sampler()
        resolved = self.continuous_batching_config
        compiled = resolved.varlen_compile_config or resolved.decode_compile_config
        at_once = not resolved.use_async_batching  # a batch is prepared only after the previous one has ended
        self.logit_processor.eager = at_once and not any(resolved.cuda_graph_booleans) and not compiled
        _managers.add(self)

    def start(self) -> None:
        self.background_thread_status.clear()
        self._generation_thread = threading.Thread(target=self._run_generation_loop, name=self.name, daemon=True)
        self._generation_thread.start()

    def _create_batch_processor(self) -> Any:
        processor = super()._create_batch_processor()
        processor.cache.__class__ = SaltedCache  # upstream has no setting for it
        return processor

    def _run_generation_loop(self) -> None:
        try:
            super()._run_generation_loop()
        finally:
            self.output_router.close(self.background_thread_status.fatal_error or RuntimeError("it was closed"))

    def accepts(self) -> bool:
        """Returns True if the thread runs and is not about to end."""
        return self.is_running() and self.background_thread_status.can_accept_new_requests() is None

    def submit(self, request: Request) -> bool:
        """Queues a request. Returns False if the thread has ended or is about to."""
        if not self.output_router.register(request):
            return False
        accepted = self.add_request(
            request.tokens,
            request_id=request.id,
            max_new_tokens=request.sampling.max_tokens,
            streaming=True,
            eos_token_id=None if request.stop_at_eos else -1,
            request=request,
        )
        if accepted is None:
            self.output_router.forget(request.id)
        return accepted is not None

    def withdraw(self, request: Request) -> None:
        """Ends a request before its next step and frees its blocks. Does nothing if it has ended by itself."""
        self.output_router.forget(request.id)
        self.cancel_request(request.id)

    def cached(self, tokens: list[int], salt: str) -> int:
        """Returns the number of leading tokens of a prompt whose blocks are in the cache. Thread-safe."""
        processor = self.batch_processor
        if processor is None or not processor.cache.use_prefix_sharing:
            return 0
        # The lookup ignores a prompt's last token, which must be computed; an extra token makes the last block count.
        found = [
            len(allocator.match_prefix_blocks([*with_salt(tokens, salt), 0])) * allocator.tokens_per_page
            for allocator in processor.cache.cache_allocators.values()
        ]
        kept: int = min(found)  # a prefix must be cached for every kind of attention
        return kept

    def forget_prefixes(self) -> None:
        """Empties the prefix cache. Only while the thread is paused."""
        cache = self.batch_processor.cache
        cache.evict_cached_blocks()
        for allocator in cache.cache_allocators.values():  # blocks in use lose their keys, and are freed when released
            allocator.ledger.hash_to_block.clear()
            allocator.ledger.block_to_hash.clear()


_managers: weakref.WeakSet[Manager] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    # A daemon thread inside torch may crash the process while the interpreter shuts down.
    for manager in list(_managers):
        if manager.is_running():
            with suppress(Exception):
                manager.stop(block=True, timeout=_EXIT_SECONDS, hard_stop=True)
