"""Model names, settings by device, and errors while loading."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import ContinuousBatchingConfig

from fineflow.backends.transformers.manager import SCHEDULER_TYPE
from fineflow.errors import missing_folder, not_loaded

_EXPECTED = "a folder with a causal LM in Hugging Face format"
_MARGIN = 0.15  # share of the cache that transformers keeps free for decoding requests; its own default
_CPU_CACHE_TOKENS = 16384  # size of the KV cache on CPU; on CUDA transformers uses the free memory


def is_local(model: str | Path) -> bool:
    """Returns True if a model name is a folder: only a ``name`` or ``owner/name`` that is no folder is a hub id."""
    text = str(model)
    path = Path(text)
    return isinstance(model, Path) or path.exists() or path.is_absolute() or text.startswith((".", "~"))


def check_folder(model: str | Path) -> None:
    """Raises BackendError for a local folder that is not there: transformers would take it for a malformed hub id."""
    if missing := missing_folder(model):
        raise not_loaded("LLM", model, _EXPECTED, missing)


@contextlib.contextmanager
def loading(model_id: str) -> Iterator[None]:
    """Turns errors while loading into a BackendError with a one-line reason."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        lines = (line.strip() for line in str(error).splitlines() if line.strip())
        raise not_loaded("LLM", model_id, _EXPECTED, next(lines, type(error).__name__)) from error


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
