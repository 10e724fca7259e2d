"""An engine with room for one request, and the order in which it serves twelve."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fineflow.engines import EmulatedLLM
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.queues.llm_queue import llm_queue_of

REQUESTS = 12
URGENT = 7  # arrives among the last
EXPECTED = [0, URGENT, *(number for number in range(1, REQUESTS) if number != URGENT)]


class OneAtATime(EmulatedLLM):
    """An engine with room for one request. Begins when ``gate`` opens; ``asked``: its prompts, in order."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "yes", can_prefill=False, capacity=1)
        self.asked: list[str] = []
        self.gate = threading.Event()

    async def generate(self, tokens: Any, sampling: Sampling, *, priority: int = 0) -> Any:
        self.asked.append(self._text(tokens))
        while not self.gate.is_set():
            await asyncio.sleep(0.001)
        yield Delta("yes", (1,))


def order(engine: OneAtATime, call: Callable[[int], Any]) -> list[int]:
    """Returns the numbers of the requests in the order in which the engine began with them.

    call: makes the request of a number, in a thread. The first one is at the engine when the others arrive, one after
    the other.
    """
    queue = llm_queue_of(engine)
    with ThreadPoolExecutor(REQUESTS) as pool:
        calls = []
        for number in range(REQUESTS):
            calls.append(pool.submit(call, number))
            _until(lambda count=number + 1: len(engine.asked) + queue.waiting >= count)
        engine.gate.set()
        for each in calls:
            each.result(20)
    found = [re.search(r"Request (\d+)", prompt) for prompt in engine.asked]
    return [int(each[1]) for each in found if each is not None]


def _until(held: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(10_000):
        if held():
            return
        waited.wait(0.001)
    raise AssertionError("the request never arrived")
