"""Semantic functions on an emulated engine that answers with what it was asked, and what its queue has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fineflow.adapters.core.decoding import encode
from fineflow.engines import EmulatedLLM, LLMProfile, set_policy
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import Take, Waiting
from fineflow.testing import virtual

ROUND = LLMProfile(
    iteration=1.0, prefill_token=0.01, decode_sequence=0.0, prefill_tokens=4096, sequences=32, blocks=999
)


def engine(answer: Callable[[str], str], **options: Any) -> EmulatedLLM:
    return EmulatedLLM(answer, ROUND, **options)


def timed(main: Coroutine[Any, Any, Any]) -> Any:
    return virtual.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


def watched(llm: Any) -> tuple[list[Waiting], LLMQueue]:
    """The requests of an engine with a capacity, once each, in the order in which its policy saw them first."""
    timed(encode(llm, lambda: ""))  # an engine's first prompts are encoded in threads, and come in any order
    found: list[Waiting] = []

    def policy(waiting: Any, slots: int) -> list[Take]:
        known = {each.number for each in found}
        found.extend(each for each in waiting if each.number not in known and each.query not in ("one", "other"))
        return [Take(each.number, each.items) for each in sorted(waiting, key=lambda each: each.number)]

    set_policy(llm, policy)
    return found, llm_queue_of(llm)  # kept: a queue numbers its requests
