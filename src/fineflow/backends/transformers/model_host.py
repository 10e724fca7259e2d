"""Life cycle of a transformers model and its thread: loaded and started on first use, stopped, started again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from fineflow.backends.transformers.loading import batching_config, loading
from fineflow.backends.transformers.manager import Manager
from fineflow.backends.transformers.text import Text
from fineflow.backends.transformers.threads import in_thread


@dataclass(frozen=True, slots=True)
class CacheStats:
    """State of the KV cache in blocks: used by requests, kept for reuse, in total; and the number of live requests."""

    requests: int
    used: int
    kept: int
    total: int


class Hosting:
    """Host of a ``TransformersEngine``'s model. Arguments as for the engine, with its defaults.

    text: tokenizer side of the model. manager: None while nothing runs. eos: tokens that end an output, known after
    the first start. context: most tokens of prompt and output together; from the model's config once that is loaded.
    can_prefill: prompts share the KV cache of common prefixes.
    """

    def __init__(
        self,
        model_id: str,
        name: str,
        device: torch.device,
        dtype: str | torch.dtype,
        context: int | None,
        batching: ContinuousBatchingConfig | None,
    ) -> None:
        self.name = name
        self.text = Text(model_id)
        self.context = context
        self.config: Any = None
        self.model: Any = None
        self.eos: tuple[int, ...] = ()
        self.manager: Manager | None = None
        self._model_id, self._device, self._dtype = model_id, device, dtype
        self._batching = batching_config(batching, device)
        self.block_size: int = self._batching.page_size
        self.can_prefill = bool(self._batching.allow_block_sharing)
        self._lock = threading.RLock()  # guards loading, starting and stopping

    # Life

    def alive(self) -> bool:
        """Returns True if it accepts requests."""
        return self.manager is not None and self.manager.accepts()

    async def running(self) -> Manager:
        """Returns the manager; loads the model and starts its thread if necessary. BackendError if loading fails."""
        if not self.alive():
            await in_thread(self._start)
        assert self.manager is not None
        return self.manager

    async def aclose(self) -> None:
        """Fails running requests, ends the thread and releases the model. Idempotent."""
        await in_thread(self._stop)

    def load_config(self) -> None:
        """Reads the model's config, without its weights. BackendError if there is no such model."""
        with loading(self._model_id):
            self.config = AutoConfig.from_pretrained(self._model_id)
        text = self.config.get_text_config()
        layers = set(getattr(text, "layer_types", None) or ())
        sliding = layers - {"full_attention"} or (not layers and getattr(text, "sliding_window", None))
        self.can_prefill = self.can_prefill and not sliding
        limits = [self.context, getattr(text, "max_position_embeddings", None)]
        if self._batching.num_blocks is not None:
            limits.append(self._batching.num_blocks * self.block_size)
        self.context = min(limit for limit in limits if limit) if any(limits) else 2**31

    def _start(self) -> None:
        with self._lock:
            if self.alive():
                return
            self._stop(release=False)
            self._load()
            own = self.model.generation_config
            self.eos = (own.eos_token_id,) if isinstance(own.eos_token_id, int) else tuple(own.eos_token_id or ())
            generation = GenerationConfig(
                do_sample=False, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id, max_new_tokens=1
            )
            self.manager = Manager(self.model, generation, self._batching, f"fineflow-{self.name}")
            self.manager.start()

    def _load(self) -> None:
        if self.config is None:
            self.load_config()
        _ = self.text.tokenizer
        if self.model is None:
            with loading(self._model_id):
                model = AutoModelForCausalLM.from_pretrained(self._model_id, dtype=self._dtype)
                self.model = model.to(self._device).eval()

    def _stop(self, *, release: bool = True) -> None:
        with self._lock:
            if self.manager is not None:
                self.manager.stop(block=True, hard_stop=True)  # even if its thread has died: this frees the cache
                self.manager = None
            if release:
                self.model = None

    # State

    @property
    def eager(self) -> bool:
        """True if passes of the model are neither captured nor compiled, so that requests can be steered."""
        return self.manager.logit_processor.eager if self.manager is not None else self._device.type == "cpu"

    @property
    def capacity(self) -> int | None:
        """Tokens that transformers admits to its KV cache; None until it has measured the free memory.

        These are its blocks minus the margin, below which it starts no further prompt and evicts the prefix cache.
        """
        processor = self.manager.batch_processor if self.manager is not None else None
        blocks = processor.cache.num_blocks if processor is not None else self._batching.num_blocks
        return None if blocks is None else int(blocks * (1 - self._batching.safety_margin)) * self.block_size

    def cached(self, tokens: Sequence[int], salt: str) -> int:
        """Returns the number of leading tokens of a prompt in the prefix cache now."""
        manager = self.manager
        return manager.cached(list(tokens), salt) if manager is not None else 0

    def stats(self) -> CacheStats:
        """Returns the state of the KV cache; all zero while nothing runs. Approximate while the engine is busy."""
        manager = self.manager
        processor = manager.batch_processor if manager is not None else None
        if processor is None:
            return CacheStats(0, 0, 0, 0)
        used = kept = total = 0
        for allocator in processor.cache.cache_allocators.values():
            used += len({block for blocks in list(allocator.block_table.values()) for block in list(blocks)})
            kept += len(allocator.ledger.cached_blocks)
            total += allocator.num_blocks
        live = len(processor.scheduler.active_requests) + len(processor.scheduler.waiting_requests)
        return CacheStats(live, used, kept, total)

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; the thread is paused between two steps for it."""
        manager = self.manager
        if manager is None or not manager.is_running():
            return

        def reset() -> None:
            with contextlib.suppress(RuntimeError), manager.pause():  # raised if the thread ends meanwhile
                if manager.batch_processor is not None:
                    manager.forget_prefixes()

        await in_thread(reset)
