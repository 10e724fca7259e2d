"""Model names, settings by device, and errors while loading."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import ContinuousBatchingConfig

from fineflow.backends.transformers.manager import SCHEDULER_TYPE
from fineflow.errors import BackendError, missing_folder

_MARGIN = 0.15  # share of the cache that transformers keeps free for decoding requests; its own default
_CPU_CACHE_TOKENS = 16384  # size of the KV cache on CPU; on CUDA transformers uses the free memory


def is_local(model: str | Path) -> bool:
    """Returns True if a model name is a folder: only a ``name`` or ``owner/name`` that is no folder is a hub id."""
    text = str(model)
    path = Path(text)
    return isinstance(model, Path) or path.exists() or path.is_absolute() or text.startswith((".", "~"))


@contextlib.contextmanager
def loading(model_id: str) -> Iterator[None]:
    """Turns errors while loading into a BackendError with a one-line reason."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        lines = (line.strip() for line in str(error).splitlines() if line.strip())
        reason = missing_folder(model_id) or next(lines, type(error).__name__)
        raise BackendError(
            f"LLM {model_id!r} could not be loaded; pass a folder with a Hugging Face causal LM, or the hub id of one "
            f"where the hub can be reached ({reason})"
        ) from error


def batching_config(given: ContinuousBatchingConfig | None, device: torch.device) -> ContinuousBatchingConfig:
    """Returns the settings of the manager: a copy of ``given``, or the defaults for the device."""
    if given is not None:
        batching = copy.deepcopy(given)
    elif device.type == "cpu":
        page = 16
        batching = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=_CPU_CACHE_TOKENS // page,
            max_batch_tokens=512,
            max_requests_per_batch=64,
            auto_switch_to_flash=False,
        )
    else:
        # Double buffering crashes on the blocks of requests that were cancelled meanwhile.
        batching = ContinuousBatchingConfig(use_async_batching=False, max_memory_percent=0.8)
    batching.scheduler_type = SCHEDULER_TYPE
    batching.safety_margin = _MARGIN if batching.safety_margin is None else batching.safety_margin
    return batching
