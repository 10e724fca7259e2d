"""The proxy that ``optimize`` returns, for every framework: the user's object, but its calls run ahead."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from fineflow.adapters.core import installers, unfinished
from fineflow.adapters.core.framework import Framework, Planner
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.repeatable import Repeatability, verdict
from fineflow.adapters.core.session import CallSession
from fineflow.adapters.core.verifying import Sampled, chosen
from fineflow.adapters.core.with_plans import WithPlans
from fineflow.options import Options, changes_nothing
from fineflow.runtime import recording
from fineflow.runtime.call.cancellation import stopping
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.lifecycle import Admission, InThread
from fineflow.runtime.loop import deadline
from fineflow.runtime.loop.bridge import AbandonableStream
from fineflow.runtime.loop.iteration import END, aanswer
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.scopes import Scope
from fineflow.runtime.queues import in_vain, provider_caches
from fineflow.runtime.queues.admission import limits_in_force
from fineflow.runtime.queues.registry import queues_in_use
from fineflow.runtime.queues.request_context import depth
from fineflow.verification.settings import Verify

_SHOWN = 100  # characters of an object's own representation
_COMPONENTS = 256  # of user functions, that are kept planned


class Planned(WithPlans):
    """A user object with its plans, whose calls run ahead where that gains.

    Subclasses define the entry methods of their framework, each of which makes an ``Invocation`` and passes it on.
    """

    def __init__(self, wrapped: Any, options: Options, framework: Framework, planner: Planner) -> None:
        super().__init__(wrapped, options, framework, planner)
        self._self_parts: dict[int, Planned] = {}
        self._self_components: dict[int, Planned] = {}
        self._self_last: Summary | None = None  # of the call that ended last: statistics, no values
        self._self_verifies = options.verify is not None
        self._self_waste = None if options.waste in (None, 1) else in_vain.Bound(options.waste or 0.0)
        self._self_merges = changes_nothing(options)  # in functions of another optimized object, calls are that one's
        self._self_verdicts: dict[int, tuple[Plan, Repeatability]] = {}  # by the id of the plan
        installers.look()

    def _self_part(self, obj: Any) -> Any:
        """Returns a part of the object that is called by itself, optimized; the same proxy in every call."""
        found = self._self_parts.get(id(obj))
        if found is None or found.__wrapped__ is not obj:
            made = self._self_optimized(obj)
            if made is obj:
                return obj
            found = self._self_parts[id(obj)] = made
        return found

    def _self_ahead(self, obj: Any) -> Planned | None:
        """Returns a proxy of a component that a user function calls, whose graph may run before stock calls it.

        None for an object that the framework does not take.
        """
        found = self._self_components.get(id(obj))
        if found is None or found.__wrapped__ is not obj:
            framework = self._self_framework.of(obj)
            kind = None if isinstance(obj, Planned) else framework.optimized_class(obj)
            if kind is None:
                return None
            changed = replace(self._self_options, eager=True, timeout=None, verify=None)
            made: Planned = kind(obj, changed, framework, _answering(self._self_planner))
            if len(self._self_components) >= _COMPONENTS:  # a function may make new ones in every call
                self._self_components.clear()
            found = self._self_components[id(obj)] = made
        return found

    def _self_optimized(self, obj: Any) -> Any:
        """Returns an object of the framework optimized with the same options; other objects unchanged."""
        framework = self._self_framework.of(obj)
        kind = None if isinstance(obj, Planned) else framework.optimized_class(obj)
        return obj if kind is None else kind(obj, self._self_options, framework, self._self_planner)

    @property
    def _self_setup(self) -> tuple[Options, Framework, Planner]:
        """Constructor arguments of a proxy after the object."""
        return self._self_options, self._self_framework, self._self_planner

    def _self_bound(self) -> asyncio.Semaphore | None:
        """Returns the bound on component calls of a call whose invocation sets none."""
        most = self._self_options.max_concurrency
        return None if most is None else asyncio.Semaphore(most)

    def _self_governed(self, way: Any, *, sync: bool) -> bool:
        """Returns True if even calls that go straight to the user's object are admitted and counted.

        They are if they have limits, or may reach an engine, whose queue has to know whose requests it gets.
        """
        hosted = on_engine_loop()
        if not hosted and (limits_in_force() or self._self_options.timeout is not None):
            return True
        plan = self._self_plans.get(way)
        return queues_in_use() and (plan is None or plan.reaches_engines) and not (sync and hosted)

    def _self_admission(self, invocation: Invocation) -> Admission:
        """Returns the admission of a call, with what the queues of engines have to know of it."""
        said = invocation.identity()
        if said.objective is None and self._self_options.objective is not None:
            said = said._replace(objective=self._self_options.objective)
        admission = Admission(said)
        if self._self_options.cache is not None:
            admission.mark(provider_caches.mode, self._self_options.cache)
        plan = self._self_plans.get(invocation.way)
        if plan is not None:
            admission.mark(depth, plan.depth)
        around, waste = in_vain.account.get(), self._self_waste
        if around is None:
            admission.mark(in_vain.account, in_vain.Account(*([] if waste is None else [waste])))
        elif waste is not None and not any(bound.share <= waste.share for bound in around.bounds):
            admission.mark(in_vain.account, in_vain.Account(*around.bounds, waste))
        return admission

    # Verification.

    def _self_chosen(self, plan: Plan | None, invocation: Invocation) -> Sampled | None:
        """Returns the call if it is to be verified: one that follows a plan."""
        return chosen(self, plan, invocation) if self._self_verifies and plan is not None else None

    def _self_verdict(self, plan: Plan, settings: Verify) -> Repeatability:
        """Returns what verification does with calls that follow a plan."""
        kept = self._self_verdicts.get(id(plan))
        if kept is None or kept[0] is not plan or not kept[1].still_holds():
            if len(self._self_verdicts) > len(self._self_plans):  # of plans that are not used any more
                self._self_verdicts.clear()
            kept = plan, verdict(self._self_framework, plan, settings, self._self_plan_of)
            self._self_verdicts[id(plan)] = kept
        return kept[1]

    def _self_plan_of(self, obj: Any) -> Plan | None:
        """Returns the plan of a component that a user's function calls with anything."""
        part = self._self_ahead(merged(obj))
        return None if part is None else part._self_current(self._self_framework.ways(obj, {})[0])

    # Calls.

    def _self_call(self, invocation: Invocation) -> Any:
        """Runs a sync call."""
        if recording.recorders and recording.due():
            with recording.call(self.__wrapped__, invocation.method):
                return self._self_call(invocation)
        plan = self._self_plan(invocation)
        if plan is None and not self._self_governed(invocation.way, sync=invocation.sync):
            return invocation.stock(self.__wrapped__)
        timeout = self._self_options.timeout
        if timeout is None:
            return self._self_run(plan, invocation)
        return deadline.run(partial(self._self_run, plan, invocation), timeout)

    def _self_run(self, plan: Plan | None, invocation: Invocation, session: CallSession | None = None) -> Any:
        """Runs a sync call. session: of this call, if its graph has already started."""
        if (verified := self._self_chosen(plan, invocation)) is not None:
            return verified.run(partial(self._self_run, plan, invocation, session))
        with InThread(self._self_admission(invocation)) as admission:
            if plan is None:
                with admission:
                    return invocation.stock(self.__wrapped__)
            if session is None:
                session = CallSession(self, plan, invocation)
                if unfinished.some():
                    session.begin_before_writes(admission)
            with session.in_thread(admission) as runs, admission:
                return invocation.stock(runs)

    async def _self_acall(self, invocation: Invocation) -> Any:
        """Runs an async call."""
        if recording.recorders and recording.due():
            with recording.call(self.__wrapped__, invocation.method):
                return await self._self_acall(invocation)
        plan = await self._self_aplan(invocation)
        if plan is None and not self._self_governed(invocation.way, sync=invocation.sync):
            return await invocation.stock(self.__wrapped__)
        timeout = self._self_options.timeout
        if timeout is None:
            return await self._self_arun(plan, invocation)
        return await deadline.arun(partial(self._self_arun, plan, invocation), timeout)

    async def _self_arun(self, plan: Plan | None, invocation: Invocation, session: CallSession | None = None) -> Any:
        """Runs an async call. session: of this call, if its graph has already started."""
        if (verified := self._self_chosen(plan, invocation)) is not None:
            return await verified.arun(partial(self._self_arun, plan, invocation, session))
        # No `async with`: the state it keeps while a call waits would exist for each of thousands of calls.
        admission = self._self_admission(invocation)
        await admission.admitted()
        try:
            if plan is None:
                with admission:
                    value = await invocation.stock(self.__wrapped__)
            else:
                new, session = session is None, session or CallSession(self, plan, invocation)
                try:
                    if new and unfinished.some():
                        await session.abegin_before_writes(admission)
                    runs = session.begin(admission)
                    with admission:
                        value = await invocation.stock(runs)
                except BaseException as error:
                    await session.ended(error)
                    raise
                await session.ended()
        except BaseException as error:
            await admission.ended(error)
            raise
        await admission.ended()
        return value

    def _self_iterate(self, invocation: Invocation) -> Iterator[Any]:
        """Runs a sync call that streams."""
        plan = self._self_plan(invocation)
        if plan is None:
            invocation.make_now(self.__wrapped__)
        if recording.recorders and recording.due():
            return recording.stream(self.__wrapped__, invocation.method, partial(self._self_pieces, plan, invocation))
        return self._self_pieces(plan, invocation)

    def _self_pieces(self, plan: Plan | None, invocation: Invocation) -> Iterator[Any]:
        if plan is None and not self._self_governed(invocation.way, sync=invocation.sync):
            stock: Iterator[Any] = invocation.stock(self.__wrapped__)
            return stock
        timeout = self._self_options.timeout
        if timeout is None or on_engine_loop():
            return self._self_chunks(plan, invocation)
        return deadline.iterate(partial(self._self_chunks, plan, invocation), timeout)

    def _self_chunks(self, plan: Plan | None, invocation: Invocation) -> Generator[Any, Any, Any]:
        if (verified := self._self_chosen(plan, invocation)) is not None:
            return (yield from verified.iterate(self._self_chunks(plan, invocation)))
        with InThread(self._self_admission(invocation)) as admission:
            if plan is None:
                with admission:
                    chunks = invocation.stock(self.__wrapped__)
                return (yield from _Steps(chunks, admission))
            session = CallSession(self, plan, invocation)
            if unfinished.some():
                session.begin_before_writes(admission)
            with session.in_thread(admission) as runs:
                return (yield from _Steps(AbandonableStream(invocation.stock(runs)), admission))

    def _self_aiterate(self, invocation: Invocation) -> AsyncIterator[Any]:
        """Runs an async call that streams."""
        plan = self._self_plan(invocation)
        if plan is None:
            invocation.make_now(self.__wrapped__)
        if recording.recorders and recording.due():
            return recording.astream(self.__wrapped__, invocation.method, partial(self._self_apieces, plan, invocation))
        return self._self_apieces(plan, invocation)

    def _self_apieces(self, plan: Plan | None, invocation: Invocation) -> AsyncIterator[Any]:
        if plan is None and not self._self_governed(invocation.way, sync=invocation.sync):
            stock: AsyncIterator[Any] = invocation.stock(self.__wrapped__)
            return stock
        timeout = self._self_options.timeout
        items = partial(self._self_achunks, plan, invocation)
        return items() if timeout is None else deadline.aiterate(items, timeout)

    async def _self_achunks(self, plan: Plan | None, invocation: Invocation) -> AsyncGenerator[Any, Any]:
        if (verified := self._self_chosen(plan, invocation)) is not None:
            async with aclosing(verified.aiterate(self._self_achunks(plan, invocation))) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        async with AsyncExitStack() as stack:
            admission = await stack.enter_async_context(self._self_admission(invocation))
            runs: Any = self.__wrapped__
            scope = Scope()
            stack.callback(scope.close)
            if plan is not None:
                session = CallSession(self, plan, invocation)
                stack.push_async_exit(_Ending(session))
                if unfinished.some():
                    await session.abegin_before_writes(admission)
                with scope.inside():
                    runs = session.begin(admission)
            with admission:
                items = invocation.stock(runs)
            if hasattr(items, "aclose"):
                stack.push_async_callback(items.aclose)
            step = aanswer(items)
            while True:
                with admission, scope.inside():
                    item = await stopping(step, scope.stop)
                if item is END:
                    return
                try:
                    sent = yield item
                except (GeneratorExit, asyncio.CancelledError):  # the parts of stock's stream are stopped first
                    raise
                except BaseException as error:
                    step = aanswer(items, error=error)
                else:
                    step = aanswer(items, sent)

    # Copies of a proxy are optimized copies of the wrapped object.

    def __repr__(self) -> str:
        shown = " ".join(repr(self.__wrapped__).split())  # LangChain's take many lines
        return f"fineflow.optimize({shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + '…'})"

    def __copy__(self) -> Any:
        return type(self)(copy.copy(self.__wrapped__), *self._self_setup)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(copy.deepcopy(self.__wrapped__, memo), *self._self_setup)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.__wrapped__, *self._self_setup)


def merged(obj: Any) -> Any:
    """Returns the user's object of an optimized one that another optimized object's functions call; others as they are.

    There its calls are parts of the outer call, as those of the user's object are, unless its options say otherwise.
    """
    return obj.__wrapped__ if issubclass(type(obj), Planned) and obj._self_merges else obj


def _answering(planner: Planner) -> Planner:
    return planner if isinstance(planner, partial) else partial(planner, answer=True)


class _Ending:
    """Ends a session when an exit stack unwinds."""

    def __init__(self, session: CallSession) -> None:
        self._session = session

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._session.ended(error)


class _Steps(Iterator[Any]):
    """The chunks of a stream, each produced inside the call's context marks, which the reader's code does not see."""

    def __init__(self, chunks: Any, admission: Admission) -> None:
        self._chunks = chunks
        self._admission = admission

    def __next__(self) -> Any:
        with self._admission:
            return next(self._chunks)

    def send(self, value: Any) -> Any:
        with self._admission:
            return self._chunks.send(value)

    def throw(self, *error: Any) -> Any:
        with self._admission:
            return self._chunks.throw(*error)

    def close(self) -> None:
        with self._admission:
            self._chunks.close()
