"""The engine on an ``LLM`` of vllm that a user's component has loaded already, and goes on using.

``LLM.generate`` runs the requests of all who are in it until none is left, and returns what it has seen end: of two
threads in it, one gets the other's answers, too. So all calls are made on one owner thread, and those that wait
while it is at work are made as one. Read: vllm 0.32. Nothing is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fineflow.backends.loaded import Failed, LoadedEngine
from fineflow.ir import Op

MAX_BATCH = 256
"""Prompts of a call: as many as vllm works on at once by default. More would wait in its own queue."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An item to decode: a prompt, and the ``SamplingParams`` of its own."""

    prompt: str
    sampling: Any


class LoadedLLM(LoadedEngine):
    """Serves DECODE on an ``LLM`` of vllm: items ``Asked``, results its ``RequestOutput`` each, or ``Failed``."""

    op = Op.DECODE

    def __init__(self, model: Any, *, name: str, max_batch: int = MAX_BATCH) -> None:
        super().__init__(model, name, max_batch)

    def _work(self, model: Any, items: list[Any]) -> list[Any]:
        if not items:
            return []
        try:
            return _generated(model, items)
        except Exception as error:  # one of them may be at fault; who asked asks the LLM again, alone
            return [Failed(error) for _ in items]


def _generated(model: Any, items: Sequence[Asked]) -> list[Any]:
    found = model.generate([item.prompt for item in items], [item.sampling for item in items])
    if len(found) != len(items):  # somebody is in it at the same time, on a thread of their own
        raise RuntimeError(f"the LLM gave {len(found)} answers to {len(items)} prompts")
    return list(found)
