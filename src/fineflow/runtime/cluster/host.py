"""Host of one engine: a named actor with fineflow's queue of that engine, which serves all processes of the cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, cast

import ray
from ray import cloudpickle

from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine, Delta, Sampling
from fineflow.runtime import events
from fineflow.runtime.cluster import calls
from fineflow.runtime.cluster.scope import Figures, Measurements, RequestRecord, RequestScope, keep, renamed
from fineflow.runtime.cluster.worker import ActorBatches, ActorEngine, ActorLLM, EngineWorker, Factory, described, make
from fineflow.runtime.loop.runtime_loop import add_engine_host
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.runtime.queues.held_back import HeldBack
from fineflow.runtime.queues.instances import instances
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.placement import Instance, in_service
from fineflow.runtime.queues.policy import Policy
from fineflow.runtime.queues.prompts import Segment
from fineflow.runtime.queues.registry import set_policy
from fineflow.runtime.queues.responses import listener
from fineflow.runtime.statistics import EngineStatistics, statistics

MANY = 10_000  # calls of an actor that may run at the same time: all that wait in the queue do


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is made: its instances, Ray's options for the actor of each, and the arguments of ``instances``.

    factory: the name of the factory, to compare.
    """

    factory: str
    instances: int
    options: Mapping[str, Any]
    group: Mapping[str, Any]


@dataclass(slots=True)
class _Client:
    """One process that uses the engine. watching: waits for its end. ahead: requests not wanted yet, by number."""

    gone: asyncio.Event = field(default_factory=asyncio.Event)
    watching: asyncio.Task[None] | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    ahead: dict[int, HeldBack] = field(default_factory=dict)


class EngineHost:
    """Actor that owns the queue of one engine. It holds a single instance; several are actors, which end with it.

    A process tells it with ``attend`` that it is there; when that process dies, its requests are cancelled. Each
    request brings what it takes to watch its process: it may come before ``watch``, or after the process has died.
    """

    def __init__(self, name: str, factory: Factory, settings: EngineSettings) -> None:
        self._name, self._factory, self._settings = name, factory, settings
        self._starting = asyncio.Lock()
        self._engine: Any = None
        self._queue: Any = None  # kept here: the registry holds queues weakly
        self._clients: dict[str, _Client] = {}
        self._readying: list[asyncio.Future[Any]] = []  # of the instances that are actors
        self._next = 0  # instance that encodes next
        self._measured = Measurements()  # of an engine in this process
        events.listen(keep)

    async def describe(self) -> tuple[EngineSettings, dict[str, Any]]:
        """Returns how the engine is made, and its attributes; starts it. Raises what its factory raises."""
        await self._started()
        return self._settings, described(self._queue.instances[0].engine)

    async def _started(self) -> Any:
        """Returns the queue. The engine is started at the first call, and again after Ray has restarted this actor."""
        async with self._starting:
            if self._queue is None:
                add_engine_host(asyncio.get_running_loop())
                await self._start()
        return self._queue

    async def _start(self) -> None:
        several = self._settings.instances > 1
        engines = await self._actors() if several else [await in_thread(partial(make, self._factory, self._name))]
        if not several:
            events.meters.append(self._measured)
        grouped = several or self._settings.group
        self._engine = instances(engines, name=self._name, **self._settings.group) if grouped else engines[0]
        self._queue = (batch_queue_of if isinstance(self._engine, BatchEngine) else llm_queue_of)(self._engine)
        for instance, ready in zip(self._queue.instances, self._readying, strict=several):
            if not (ready.done() and ready.exception() is None):
                instance.lose(BackendError(f"{instance.name} is being started"), inf)
                ready.add_done_callback(partial(self._serves, instance))

    async def _actors(self) -> list[ActorEngine]:
        """Returns the instances once one of them is ready; there may be no room for others yet."""
        actor = ray.remote(EngineWorker).options(max_concurrency=MANY, max_restarts=-1, **self._settings.options)
        workers = [actor.remote(self._factory, self._name) for _ in range(self._settings.instances)]
        self._readying = [asyncio.ensure_future(calls.result(each.describe.remote(), self._name)) for each in workers]
        done, _ = await asyncio.wait(self._readying, return_when=asyncio.FIRST_COMPLETED)
        try:
            found = done.pop().result()
        except Exception:
            for each in workers:
                ray.kill(each)
            raise
        kind = ActorBatches if "ops" in found else ActorLLM
        return [kind(self._name, each, found) for each in workers]

    def _serves(self, instance: Instance, ready: asyncio.Future[Any]) -> None:
        """Puts an instance into service that is ready; one that could not be made counts as lost."""
        instance.lost = None
        error = None if ready.cancelled() else ready.exception()
        if isinstance(error, Exception):
            instance.lose(error)
        self._queue.recheck()

    # Processes that use the engine

    async def attend(self, client: str) -> None:
        """Returns when the process has left."""
        await self._clients.setdefault(client, _Client()).gone.wait()

    async def watch(self, client: str, attending: bytes) -> None:
        """Begins to wait for the end of a process, which cancels its requests. attending: see ``RequestScope``."""
        self._watched(client, attending)

    def _watched(self, client: str, attending: bytes) -> _Client:
        found = self._clients.setdefault(client, _Client())
        if found.watching is None:
            found.watching = asyncio.create_task(self._until_gone(client, found, cloudpickle.loads(attending)))
        return found

    async def _until_gone(self, client: str, found: _Client, attending: Any) -> None:
        """Cancels the requests of a process at its end. Ray raises for its call of ``attend`` when it has died."""
        waits = asyncio.ensure_future(found.gone.wait()), asyncio.wrap_future(attending.future())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        found.gone.set()
        for task in found.tasks:
            task.cancel()
        if self._clients.get(client) is found:
            del self._clients[client]

    async def leave(self, client: str) -> None:
        """Ends the requests of a process that leaves."""
        if (found := self._clients.get(client)) is not None:
            found.gone.set()

    async def clients(self) -> dict[str, int]:
        """Returns the number of requests of each process that uses the engine."""
        return {name: len(client.tasks) for name, client in self._clients.items()}

    async def wanted(self) -> list[bool]:
        """Returns for each request that went ahead whether stock wants it by now."""
        return [each.wanted for client in self._clients.values() for each in client.ahead.values()]

    @contextmanager
    def _serving(self, scope: RequestScope) -> Iterator[RequestRecord]:
        """Makes the current task that of a request, which ends with the process that it comes from."""
        client, task = self._watched(scope.client, scope.attending), cast(Any, asyncio.current_task())
        record = scope.enter()
        client.tasks.add(task)
        if scope.ahead is not None:
            client.ahead[scope.ahead] = cast(HeldBack, listener.get())
        try:
            yield record
        finally:
            client.tasks.discard(task)
            if scope.ahead is not None:
                client.ahead.pop(scope.ahead, None)

    async def want(self, client: str, ahead: int) -> None:
        """Notes that stock waits for a request that was sent ahead."""
        found = self._clients.get(client)
        if found is not None and (request := found.ahead.get(ahead)) is not None:
            request.want()

    # Requests

    async def submit(self, scope: RequestScope, op: Op, items: Sequence[Any], label: str) -> tuple[list[Any], Figures]:
        """See ``BatchQueue``."""
        queue = await self._started()
        with self._serving(scope) as record:
            results = await queue.submit(op, items, label=label)
        return results, self._figures(record)

    async def generate(
        self, scope: RequestScope, tokens: Sequence[int], sampling: Sampling, segments: Sequence[Segment]
    ) -> AsyncGenerator[Delta | Figures, None]:
        """See ``LLMQueue``; the figures come last."""
        queue = await self._started()
        with self._serving(scope) as record:
            async with aclosing(queue.generate(tokens, sampling, segments)) as deltas:
                async for delta in deltas:
                    yield delta
        yield self._figures(record)

    async def prefill(self, scope: RequestScope, method: str, tokens: Sequence[int]) -> tuple[bool, Figures]:
        """See the methods of ``LLMQueue`` of that name: ``prefill``, ``prefill_ahead`` and ``prefill_spare``."""
        queue: LLMQueue = await self._started()
        with self._serving(scope) as record:
            ran = await getattr(queue, method)(tokens)
        return ran is not False, self._figures(record)

    def _figures(self, record: RequestRecord) -> Figures:
        return record.figures(renamed(self._measured, self._name))

    async def ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Calls a quick method of an instance in service: ``encode`` or ``render_chat``."""
        queue = await self._started()
        able = in_service(queue.instances) or queue.instances
        self._next += 1
        engine = able[self._next % len(able)].engine
        if isinstance(engine, ActorEngine):
            return await calls.result(engine.actor.ask.remote(method, *args, **named), self._name)
        return getattr(engine, method)(*args, **named)

    # Administration

    async def set_policy(self, policy: Policy | str) -> None:
        """See ``fineflow.engines.set_policy``."""
        await self._started()
        set_policy(self._engine, policy)

    async def restore(self) -> None:
        """Puts all instances back into service."""
        queue = await self._started()
        for instance in queue.instances:
            instance.lost = None
        queue.recheck()

    async def processes(self) -> list[int]:
        """Returns the id of the process that holds each instance."""
        engines = [instance.engine for instance in (await self._started()).instances]
        pids = [each.actor.process.remote() for each in engines if isinstance(each, ActorEngine)]
        return [await calls.result(pid, self._name) for pid in pids] or [os.getpid()]

    async def statistics(self) -> EngineStatistics:
        """Returns the figures of the engine, over all processes, with the KV caches of instances that can be asked."""
        await self._started()
        return statistics().engines[self._name]

    async def stop(self) -> None:
        """Ends all requests and the instances. The host itself is ended by the caller."""
        for client in self._clients.values():
            client.gone.set()
        if self._engine is not None:
            await self._engine.aclose()
        async with asyncio.timeout(calls.END_SECONDS):
            while self._clients:
                await asyncio.sleep(0.01)


def host_actor(name: str, factory: Factory, settings: EngineSettings) -> Any:
    """Returns the host of an engine, which is made if there is none of that name in the cluster."""
    return (
        ray.remote(EngineHost)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_concurrency=MANY,
            max_restarts=-1,
            max_task_retries=1,
            **({"num_cpus": 0} if settings.instances > 1 else settings.options),
        )
        .remote(name, factory, settings)
    )


NAMESPACE = "fineflow"


def existing(name: str) -> Any:
    """Returns the host of an engine. BackendError if there is none of that name."""
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError as error:
        raise BackendError(f"the cluster has no engine {name!r}; Runtime.engine(name, factory) makes one") from error
