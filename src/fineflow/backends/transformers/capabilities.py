"""Check that the installed transformers has the parts of continuous batching that the engine builds on.

They are no stable interface: a release may move or rename one. The check runs before anything else of the engine is
imported, so that such a release gives one clear error and not an AttributeError in the middle of a request.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

TESTED = ("5.20", "5.21", "5.22", "5.23")
"""Minor releases that the engine's tests passed with (docs/versions.md)."""

_BATCHING = "transformers.generation.continuous_batching"

# Module, class or table, and the members of it that the engine calls or overrides, with the parameters it relies on.
_NEEDED: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]] = {
    ("transformers", "ContinuousBatchingConfig"): {},
    (f"{_BATCHING}.continuous_api", "ContinuousBatchingManager"): {
        "__init__": ("model", "generation_config", "continuous_batching_config"),
        "_create_batch_processor": (),
        "_run_generation_loop": (),
        "add_request": ("request_id", "max_new_tokens", "streaming", "eos_token_id"),
        "cancel_request": (),
        "is_running": (),
        "pause": (),
        "stop": ("block", "timeout", "hard_stop"),
    },
    (f"{_BATCHING}.continuous_api", "OutputRouter"): {
        "deliver": (),
        "deliver_batch": (),
        "fail_and_deliver": (),
    },
    (f"{_BATCHING}.requests", "GenerationOutput"): {"is_finished": ()},
    (f"{_BATCHING}.requests", "RequestState"): {},
    (f"{_BATCHING}.requests", "RequestStatus"): {"DECODING": ()},
    (f"{_BATCHING}.requests", "FutureRequestState"): {},
    (f"{_BATCHING}.scheduler", "FIFOScheduler"): {"_process_candidates": (), "_infer_request_tokens": ()},
    (f"{_BATCHING}.scheduler", "SCHEDULER_MAPPING"): {},
    (f"{_BATCHING}.cache", "PagedAttentionCache"): {
        "evict_cached_blocks": (),
        "mark_complete_blocks": ("state", "complete_blocks"),
        "search_prefix_match": ("request_id", "prompt_ids"),
    },
}
_SETTINGS = (  # of ContinuousBatchingConfig
    *("page_size", "num_blocks", "max_batch_tokens", "max_requests_per_batch", "auto_switch_to_flash"),
    *("use_async_batching", "max_memory_percent", "scheduler_type", "safety_margin", "allow_block_sharing"),
)


def missing(needed: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]] = _NEEDED) -> list[str]:
    """Returns what the installed transformers lacks of ``needed``, by dotted names; empty if nothing."""
    found: list[str] = []
    for (module, name), members in needed.items():
        try:
            value = getattr(import_module(module), name, None)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("transformers"):
                raise  # a dependency of transformers
            value = None
        if value is None:
            found.append(f"{module}.{name}")
            continue
        found += [f"{name}.{member}" for member in members if not hasattr(value, member)]
        for member, parameters in members.items():
            if parameters and hasattr(value, member):
                found += [f"{name}.{member}({given}=)" for given in _refused(getattr(value, member), parameters)]
        if name == "ContinuousBatchingConfig":
            found += [f"{name}.{given}" for given in _refused(value, _SETTINGS)]
    return list(dict.fromkeys(found))


def _refused(called: Any, parameters: tuple[str, ...]) -> list[str]:
    return [name for name in parameters if name not in inspect.signature(called).parameters]


def check() -> None:
    """Raises ImportError if the installed transformers lacks a part; names the part and the releases tested."""
    if not (lack := missing()):
        return
    import transformers

    shown = ", ".join(lack[:3]) + (f" and {len(lack) - 3} more" if len(lack) > 3 else "")
    raise ImportError(
        f"transformers {transformers.__version__} has no {shown}, which continuous batching needs here; tested with "
        f'{TESTED[0]} to {TESTED[-1]}: pip install "transformers~={TESTED[-1]}.0"',
        name="transformers",
    )
