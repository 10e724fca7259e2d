"""Engine on a vLLM ``LLM`` that a user's component has loaded and keeps using.

``LLM.generate`` runs the requests of all callers until none is left, and returns every request that it saw end: of two
threads in it, one also gets the other's answers. So all calls run on one owner thread, and calls that wait while it is
busy are batched. Checked against the source of vllm 0.32. The library is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fineflow.backends.loaded import ItemFailed, LoadedEngine
from fineflow.ir import Op

MAX_BATCH = 256
"""Prompts of a call: vLLM's default number of concurrent requests. More would wait in its own queue."""


@dataclass(frozen=True, slots=True)
class PromptItem:
    """Item to decode: a prompt and its ``SamplingParams``."""

    prompt: str
    sampling: Any


class LoadedLLM(LoadedEngine):
    """Serves DECODE on a vLLM ``LLM``: items ``Asked``, results ``RequestOutput`` or ``Failed``."""

    op = Op.DECODE

    def __init__(self, model: Any, *, name: str, max_batch: int = MAX_BATCH) -> None:
        super().__init__(model, name=name, max_batch=max_batch)

    def _work(self, model: Any, items: list[Any]) -> list[Any]:
        if not items:
            return []
        try:
            return _generated(model, items)
        except Exception as error:  # one of them may be the cause: each caller calls the LLM again, alone
            return [ItemFailed(error) for _ in items]


def _generated(model: Any, items: Sequence[PromptItem]) -> list[Any]:
    found = model.generate([item.prompt for item in items], [item.sampling for item in items])
    if len(found) != len(items):  # another thread is calling it at the same time
        raise RuntimeError(f"the LLM gave {len(found)} answers to {len(items)} prompts")
    return list(found)
