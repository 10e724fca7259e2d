"""One run: requests of an application arrive, a scheme answers them; how long each took, and what was sent."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.apps.app import App
from benchmarks.harness.schemes import Scheme
from benchmarks.harness.world import World
from fineflow.cost_model.costs import costs
from fineflow.runtime.events import now
from fineflow.testing import virtual, virtual_threads

WARM = 2  # requests before those that count: caches, threads, and what fineflow learns
_FIRST = 1_000_000  # number of the first of these


@dataclass(frozen=True)
class Run:
    """latencies: seconds from arrival to answer of each request. first: to the first token, where the app was streamed.

    answers: for comparison between schemes. sent: what the LLMs were sent (``World.sent``), without the warm-up.
    """

    latencies: list[float]
    first: list[float]
    answers: list[Any]
    sent: dict[str, float]


def poisson(requests: int, rate: float, seed: int) -> list[float]:
    """Returns arrival times, in seconds."""
    chosen, now, found = random.Random(seed), 0.0, []
    for _ in range(requests):
        now += chosen.expovariate(rate)
        found.append(now)
    return found


def run(
    app: App,
    scheme: Scheme,
    world: World,
    arrivals: Sequence[float] | int,
    *,
    seed: int,
    real: bool = False,
    stream: bool = False,
) -> Run:
    """Runs a load.

    arrivals: seconds at which requests come; a number: so many requests, each after the answer to the one before.
    stream: by ``astream``.
    """
    costs.forget()
    chain = scheme.build(app, world)
    count = arrivals if isinstance(arrivals, int) else len(arrivals)
    inputs = [app.asked(number, seed) for number in range(count)]
    warm = [app.asked(_FIRST + number, seed) for number in range(WARM)]
    if scheme.entry == "invoke":
        work = functools.partial(_in_threads, app, chain, world, warm, inputs, arrivals)
        return work() if real else virtual_threads.run(work).value
    load = _on_loop(app, chain, world, warm, inputs, arrivals, stream)
    return asyncio.run(load) if real else virtual.run(load).value


async def acall(chain: Any, given: Any) -> Any:
    """Calls a runnable, or LlamaIndex's question about documents."""
    if hasattr(chain, "ainvoke"):
        return await chain.ainvoke(given)
    return await chain.aquery(given["documents"], given["question"])


def _call(chain: Any, given: Any) -> Any:
    if hasattr(chain, "invoke"):
        return chain.invoke(given)
    return chain.query(given["documents"], given["question"])


async def _on_loop(
    app: App,
    chain: Any,
    world: World,
    warm: Sequence[Any],
    inputs: Sequence[Any],
    arrivals: Sequence[float] | int,
    stream: bool,
) -> Run:
    for each in warm:
        await acall(chain, each)
    before, loop = world.sent(), asyncio.get_running_loop()
    began = loop.time()

    async def one(given: Any, at: float) -> tuple[float, float, Any]:
        await asyncio.sleep(max(0.0, began + at - loop.time()))
        if not stream:
            answer = await acall(chain, given)
            return loop.time() - began - at, 0.0, app.answer(answer)
        first, parts = 0.0, []
        async for part in chain.astream(given):
            first = first or loop.time() - began - at
            parts.append(part)
        return loop.time() - began - at, first, "".join(map(str, parts))

    if isinstance(arrivals, int):
        ended = [await one(given, loop.time() - began) for given in inputs]
    else:
        ended = await asyncio.gather(*map(one, inputs, arrivals))
    return _collected(ended, before, world.sent(), stream)


def _in_threads(
    app: App, chain: Any, world: World, warm: Sequence[Any], inputs: Sequence[Any], arrivals: Sequence[float] | int
) -> Run:
    for each in warm:
        _call(chain, each)
    before, began = world.sent(), now()
    ended: list[Any] = [None] * len(inputs)

    def one(place: int, at: float) -> None:
        time.sleep(max(0.0, began + at - now()))
        try:
            answer = _call(chain, inputs[place])
        except Exception as error:
            ended[place] = error
        else:
            ended[place] = (now() - began - at, 0.0, app.answer(answer))

    if isinstance(arrivals, int):
        for place in range(len(inputs)):
            one(place, now() - began)
    else:
        threads = [threading.Thread(target=one, args=each) for each in enumerate(arrivals)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for each in ended:
        if isinstance(each, Exception):
            raise each
    return _collected(ended, before, world.sent(), False)


def _collected(
    ended: Sequence[tuple[float, float, Any]], before: dict[str, float], after: dict[str, float], stream: bool
) -> Run:
    latencies, first, answers = map(list, zip(*ended, strict=True))
    sent = {name: value - before.get(name, 0) for name, value in after.items()}
    return Run(latencies, first if stream else [], answers, sent)
