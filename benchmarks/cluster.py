"""Engines on Ray (``Runtime(cluster=...)``): what a call of another process costs, and what sharing engines gains.

Usage: python -m benchmarks.cluster [--calls 500] [--queries 1000]

Engines are emulated: a batch sleeps for as long as its profile says. Needs the extra ``ray``; starts one instance of it
on this machine, and ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import fineflow
from fineflow.backends.emulated import BatchProfile, EmulatedEmbedding, EmulatedReranker
from fineflow.engines import EmulatedLLM
from fineflow.ir import Op
from fineflow.langchain import ChatEngine
from fineflow.protocols import BatchEngine
from fineflow.runtime.queues.batch_queue import batch_queue_of

NOTHING = BatchProfile(0, 0, 16)  # so all that is measured is the way there and back
ONE = BatchProfile(0.25, 0, 1)  # one item at a time, a quarter of a second each
EACH = 24
WORDS = 64
TENANTS = {"one": 1, "four": 4}


def embedding(profile: BatchProfile = NOTHING) -> EmulatedEmbedding:
    return EmulatedEmbedding(profile)


def reranker() -> EmulatedReranker:
    return EmulatedReranker(NOTHING)


def llm() -> EmulatedLLM:
    return EmulatedLLM(lambda prompt: "word " * WORDS)


class Held(EmulatedEmbedding):
    """Begins when a file is there."""

    def __init__(self, profile: BatchProfile, file: str) -> None:
        super().__init__(profile)
        self._file = file

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        while not await asyncio.to_thread(os.path.exists, self._file):
            await asyncio.sleep(0.01)
        return await super().execute(op, items)


class Driver:
    """Another process, with a connection of its own: an actor, for which Ray starts one."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._runtime = fineflow.Runtime(cluster="auto", tenants=TENANTS).start()

    def ready(self, name: str, factory: Any, instances: int = 1) -> None:
        self._engine = self._runtime.engine(name, factory, instances=instances)

    def run(self, texts: Sequence[str]) -> list[tuple[float, Any]]:
        """Embeds texts, all at once. Returns the time at which each came, and the vector or the error."""

        async def one(text: str) -> tuple[float, Any]:
            try:
                found: Any = (await batch_queue_of(self._engine).submit_async(Op.EMBED, [("document", text)]))[0]
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            return time.time(), found

        async def all_of_them() -> list[tuple[float, Any]]:
            return await asyncio.gather(*(one(text) for text in texts))

        with fineflow.identity(tenant=self._tenant):
            return asyncio.run(all_of_them())


def times(call: Callable[[], Any], calls: int) -> str:
    """Returns median and 99th percentile of the milliseconds of calls, one after the other."""
    found = []
    for _ in range(calls + 10):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e3)
    found = sorted(found[10:])
    return f"{median(found):6.2f} ms median, {found[int(0.99 * calls)]:6.2f} ms p99"


def one_text(engine: BatchEngine, op: Op = Op.EMBED) -> Callable[[], Any]:
    item = ("query", "where is Paris?")
    return lambda: batch_queue_of(engine).submit_sync(op, [item])


def overhead(runtime: fineflow.Runtime, calls: int) -> None:
    print(f"What one call costs beside its work ({calls} calls, one after the other)")
    print(f"  one text, engine in this process        {times(one_text(embedding()), calls)}")
    print(f"  one text, one instance on the cluster   {times(one_text(runtime.engine('one', embedding)), calls)}")
    two = runtime.engine("two", embedding, instances=2)
    print(f"  one text, of two instances              {times(one_text(two), calls)}")
    pairs = runtime.engine("pairs", reranker)
    print(f"  one pair, one instance on the cluster   {times(one_text(pairs, Op.RERANK), calls)}")
    for place, engine in (("in this process", llm()), ("on the cluster", runtime.engine("llm", llm))):
        chat = ChatEngine(engine=engine)
        first, whole = [], []
        for _ in range(12):
            began, came = time.perf_counter(), 0.0
            for _ in chat.stream("Where is Paris?"):
                came = came or time.perf_counter() - began
            first.append(came * 1e3)
            whole.append((time.perf_counter() - began) * 1e3)
        print(
            f"  LLM {place:16} first word {median(first):6.1f} ms, all {WORDS} words {median(whole):7.1f} ms (medians)"
        )
    for name in ("one", "two", "pairs", "llm"):
        runtime.remove_engine(name)


def throughput(runtime: fineflow.Runtime) -> None:
    print(f"\nTexts a second, {ONE.call} s each, {EACH} for each instance at once")
    base = 0.0
    for instances in (1, 2, 4):
        engine = runtime.engine(f"of {instances}", partial(embedding, ONE), instances=instances)
        one_text(engine)()
        count = EACH * instances
        began = time.perf_counter()

        async def all_of_them(engine: Any = engine, count: int = count) -> None:
            queue = batch_queue_of(engine)
            await asyncio.gather(*(queue.submit_async(Op.EMBED, [("query", f"{n}")]) for n in range(count)))

        asyncio.run(all_of_them())
        rate = count / (time.perf_counter() - began)
        base = base or rate
        print(f"  {instances} instances: {rate:6.1f} ({rate / base:.2f} times one)")
        runtime.remove_engine(f"of {instances}")


def fairness(runtime: fineflow.Runtime, queries: int) -> None:
    import ray

    each, file = queries // 2, os.path.join(tempfile.mkdtemp(), "begin")
    factory = partial(Held, BatchProfile(0.005, 0, 1), file)
    runtime.engine("fair", factory)
    drivers = [ray.remote(Driver).options(num_cpus=0).remote(tenant) for tenant in TENANTS]
    ray.get([driver.ready.remote("fair", factory) for driver in drivers])
    texts = [[f"{tenant} {n}" for n in range(each)] for tenant in TENANTS]
    running = [driver.run.remote(some) for driver, some in zip(drivers, texts, strict=True)]
    host = ray.get_actor("fair", "fineflow")
    while ray.get(host.statistics.remote()).queued < queries - 1:
        time.sleep(0.05)
    pathlib.Path(file).touch()
    found = ray.get(running)
    order = sorted((at, tenant) for tenant, some in zip(TENANTS, found, strict=True) for at, _ in some)
    both = order[1:each]  # while both have requests in the line; one was at the engine before
    counts = Counter(tenant for _, tenant in both)
    print(f"\n{queries} queries of two processes, tenants of weights 1 and 4, one at a time")
    print(f"  of {len(both)} answers while both wait: {counts['one']} and {counts['four']}", end="")
    print(f" ({counts['four'] / max(counts['one'], 1):.2f} to 1)")
    alone = embedding()
    same = sum(
        vector == alone.compute(("document", text))
        for some, given in zip(found, texts, strict=True)
        for (_, vector), text in zip(some, given, strict=True)
    )
    print(f"  equal to those of an engine in this process: {same} of {queries}")
    runtime.remove_engine("fair")
    for driver in drivers:
        ray.kill(driver)


def losses(runtime: fineflow.Runtime, queries: int) -> None:
    import ray

    factory = partial(embedding, BatchProfile(0.02, 0, 4))
    runtime.engine("lossy", factory, instances=3)
    drivers = [ray.remote(Driver).options(num_cpus=0).remote(tenant) for tenant in TENANTS]
    ray.get([driver.ready.remote("lossy", factory, 3) for driver in drivers])
    host = ray.get_actor("lossy", "fineflow")
    running = [driver.run.remote([f"{n}" for n in range(queries // 2)]) for driver in drivers]
    while ray.get(host.statistics.remote()).batches < 10:
        time.sleep(0.01)
    for process in ray.get(host.processes.remote())[:2]:
        os.kill(process, signal.SIGKILL)
        time.sleep(0.2)
    outcomes = Counter(
        found if isinstance(found, str) else "answered" for some in ray.get(running) for _, found in some
    )
    print(f"\nTwo of three instances killed while {queries} queries wait")
    for what, count in outcomes.most_common():
        print(f"  {count} {what}")
    runtime.remove_engine("lossy")
    for driver in drivers:
        ray.kill(driver)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--calls", type=int, default=500, help="calls of which the median is taken")
    parser.add_argument("--queries", type=int, default=1000, help="queries of the two processes together")
    given = parser.parse_args()
    with fineflow.Runtime(cluster="local", tenants=TENANTS) as runtime:
        overhead(runtime, given.calls)
        throughput(runtime)
        fairness(runtime, given.queries)
        losses(runtime, given.queries)


if __name__ == "__main__":
    main()
