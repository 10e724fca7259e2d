"""Component calls of a graph's next nodes, started while nodes of the current superstep still run.

Pregel stays stock's: it decides what runs when, and shows it. Where a superstep begins, a node is entered or a node's
writes are there, the nodes that are certain to follow are looked at, with the state as far as it is known by then.
Their functions are walked through as those of running nodes are, and calls that need nothing else start. When stock
enters the node, its own walk takes the calls over, and stock claims those that it makes with equal arguments.

A node is certain to follow if each node that still runs is known to get through: walks have found what its function
returns, and that it only reads. Then it cannot interrupt the run, nor change what later calls read.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import ERROR, INTERRUPT, PULL
from langgraph._internal._runnable import RunnableCallable

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.losses import Losses
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.predicted_calls import PredictedCalls
from fineflow.adapters.langchain.calls import streaming_handlers
from fineflow.adapters.langchain.inner_calls.inner_calls import HIDDEN_VALUES, inner_calls_of
from fineflow.adapters.langchain.user_functions import called_by_name
from fineflow.adapters.langgraph.next_state import NextState, Writes
from fineflow.adapters.langgraph.node_facts import NodeFacts
from fineflow.adapters.langgraph.steps import in_executor
from fineflow.adapters.lookahead import UNKNOWN, Stop
from fineflow.adapters.lookahead.values import INERT

_FAR = 8  # supersteps that are looked ahead


class NodeVisit:
    """One run of a node: predicted, under way, or over.

    predicted: calls that have started before stock entered it. returns: the dict that its function returns, as far as
    it is known; None if it may do anything. writes: all that it has written, once it is over. given: the state that
    ``predicted`` has got.
    """

    def __init__(self, facts: NodeFacts | None) -> None:
        self.facts = facts
        self.predicted: PredictedCalls | None = None
        self.returns: Mapping[str, Any] | None = None
        self.writes: Writes | None = None
        self.given: Mapping[str, Any] = {}

    def known_writes(self) -> Writes | None:
        """Returns what it has written, or is certain to write; None if that is not known."""
        if self.writes is not None:
            return self.writes
        if self.facts is None or self.returns is None:
            return None
        return [*self.returns.items(), *self.facts.triggers]

    def has_given(self, state: Mapping[str, Any]) -> bool:
        same = self.given.keys() == state.keys() and all(self.given[key] is state[key] for key in state)
        return self.predicted is not None and same


class AheadOfNodes:
    """The nodes that follow those of the current superstep, in one run of a graph. Thread-safe.

    here: the call of the graph. loop: stock's. nodes: what is known of them, by name. losses: is told whether it paid.
    """

    def __init__(self, here: Claiming, loop: Any, nodes: Mapping[str, NodeFacts], losses: Losses) -> None:
        self._here, self._loop, self._nodes, self._losses = here, loop, nodes, losses
        self._async_loop = asyncio._get_running_loop()
        config = dict(loop.config)
        if loop.manager is not None:
            config["callbacks"] = loop.manager.get_child()
        self._streams = streaming_handlers(config)  # type: ignore[arg-type]
        self._context = copy_context()
        self._context.run(var_child_runnable_config.set, config)  # type: ignore[arg-type]
        self._lock = threading.Lock()
        self._looking: int | None = None  # the thread that looks
        self._due = self._closed = False
        self._spent = self._saved = (
            0.0  # seconds of processor time; seconds of calls that ran before stock asked for them
        )
        self._visits: dict[str, NodeVisit] = {}  # of the current superstep, by the id of their task
        self._next: dict[tuple[int, str], NodeVisit] = {}  # by superstep and node
        self._left: list[PredictedCalls] = []  # that nobody claims
        here.post(lambda: here.call.task(self._end_calls(), 0, 0.0, "next nodes", None))

    # --- what stock does --------------------------------------------------------------------------------------------

    def begin_superstep(self) -> None:
        """Takes the tasks that stock is about to run."""
        with self._lock:
            step, self._visits = self._loop.step, {}
            for number, task in self._loop.tasks.items():
                pulled = bool(task.path) and task.path[0] == PULL
                visit = self._next.pop((step, task.name), None) if pulled else None
                self._visits[number] = visit = visit or NodeVisit(self._nodes.get(task.name) if pulled else None)
                visit.returns = None
                if task.writes:  # in an earlier run, which was interrupted
                    self._over(visit, task.writes)
            for key in [key for key in self._next if key[0] <= step]:
                self._drop(self._next.pop(key))

    def enter(self, number: str, func: Any, calls: InnerCalls) -> None:
        """Lets the calls of a function that stock is about to call claim what has been started for it."""
        visit = self._visits.get(number)
        if visit is None or visit.facts is None or not any(func is each for each in visit.facts.functions):
            return
        with self._lock:
            predicted, visit.predicted, visit.returns = visit.predicted, None, None
            if predicted is not None:
                self._saved += predicted.hand_over(calls)
            calls.watcher = partial(self._walked, visit)

    def write(self, number: str, writes: Writes) -> None:
        """Takes what a task has written at its end."""
        if any(channel in (ERROR, INTERRUPT) for channel, _ in writes):
            self.close()
            return
        visit = self._visits.get(number)
        if visit is not None:
            with self._lock:
                self._over(visit, writes)
            self.look()

    def close(self) -> None:
        """Ends what stock has not asked for: it will not get there."""
        with self._lock:
            self._closed = True
            for visit in (*self._visits.values(), *self._next.values()):
                self._drop(visit)

    def _over(self, visit: NodeVisit, writes: Writes) -> None:
        visit.writes = tuple(writes)
        self._drop(visit)

    # --- looking ahead ----------------------------------------------------------------------------------------------

    def _walked(self, visit: NodeVisit, returns: Mapping[str, Any] | None) -> None:
        visit.returns = returns
        if self._looking != threading.get_ident():
            self.look()

    def look(self) -> None:
        """Starts what the state allows that is known by now. One thread at a time does it, also for the others."""
        self._due = True
        while self._due and not self._closed and self._lock.acquire(blocking=False):
            try:
                self._due, self._looking = False, threading.get_ident()
                if not self._here.call.claims.closed:
                    began = time.thread_time()
                    self._context.copy().run(self._look)
                    self._spent += time.thread_time() - began
            finally:
                self._looking = None
                self._lock.release()

    def _look(self) -> None:
        if all(visit.writes is not None for visit in self._visits.values()):
            return  # stock is about to begin the next superstep
        loop, visits = self._loop, list(self._visits.values())
        state = NextState(loop.channels, loop.tasks.values())
        for step in range(loop.step + 1, min(loop.step + _FAR, loop.stop) + 1):
            try:
                routed = [self._routed(visit, state) for visit in visits]
            except Stop:  # a router may do anything
                return
            written = [visit.known_writes() for visit in visits]
            if not state.apply([*written, *(each for each in routed if each is not None)]):
                return
            certain = not state.sends and None not in routed
            names = [name for name, node in loop.nodes.items() if state.starts(node.triggers)]
            visits = [self._predicted(step, name, state.values) for name in names]
            state.next_superstep()
            if not (visits and certain):
                return

    def _predicted(self, step: int, name: str, state: Mapping[str, Any]) -> NodeVisit:
        """Returns the run of a node that follows, whose calls have been started as far as the state allows."""
        visit = self._next.setdefault((step, name), NodeVisit(self._nodes.get(name)))
        facts = visit.facts
        if facts is None:
            return visit
        given = {key: state[key] for key in facts.keys if key in state}
        if not visit.has_given(given):
            if visit.predicted is None:
                visit.predicted = self._calls(facts.step)
            if visit.predicted is not None:
                visit.predicted.watcher = partial(self._walked, visit)
                visit.given = given
                visit.predicted.predict(given)
        return visit

    def _routed(self, visit: NodeVisit, state: NextState) -> Writes | None:
        """Returns what the routers behind a node write; None if that is not known yet. Raises Stop."""
        if visit.writes is not None or visit.facts is None or visit.returns is None:
            return ()
        found: list[tuple[str, Any]] = []
        known = True
        for router in visit.facts.routers:
            calls = self._calls(router.step)
            if calls is None:
                raise Stop("has no function for this kind of call")
            value = calls.result({**visit.returns, **state.after(visit.returns, router.keys)})
            channels = None if value is UNKNOWN else router.channels(value, self._loop.nodes)
            known = known and channels is not None
            found += channels or ()
        return found if known else None

    def _calls(self, step: RunnableCallable) -> PredictedCalls | None:
        func, afunc = step.func, step.afunc
        own = func if self._here.call.sync or in_executor(afunc, func) or afunc is None else afunc
        if own is None:
            return None
        hidden = {**HIDDEN_VALUES, **dict.fromkeys(step.func_accepts, UNKNOWN), "writer": INERT}
        named = {name: hidden[name] for name in step.func_accepts}
        own, streams = called_by_name(own), self._streams
        calls = inner_calls_of(self._here, own, (), named, hidden, streams_models=streams, kind=PredictedCalls)
        calls.awaited_on(self._async_loop)
        return calls

    # --- the end ----------------------------------------------------------------------------------------------------

    def _drop(self, visit: NodeVisit) -> None:
        calls, visit.predicted = visit.predicted, None
        if calls is not None:
            self._left.append(calls)
            self._here.post(self._wake)

    _event: asyncio.Event | None = None

    def _wake(self) -> None:
        if self._event is not None:
            self._event.set()

    async def _end_calls(self) -> None:
        """Ends the calls that nobody claims; all of them at the end of the graph's call. On its loop."""
        self._event = asyncio.Event()
        try:
            while True:
                await self._end_left()
                await self._event.wait()
                self._event.clear()
        finally:
            self.close()
            self._losses.learn(profit=self._saved > self._spent)
            await self._end_left()

    async def _end_left(self) -> None:
        while self._left:
            await self._left.pop().aclose()
