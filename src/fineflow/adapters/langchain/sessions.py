"""One call: its shadow and its graph begin together, and end together in whatever way the call ends.

A blocking inner method (``_generate`` of a sync call) runs in a worker thread, which nothing can interrupt. A call that
ends early (an exception, an interrupt, an abandoned stream) does not wait for such a method: it returns or raises at
once, and the thread finishes alone, unheard. Stock behaves the same, except that an interrupt of the main thread breaks
into a method that stock runs there.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT, ensure_config, var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from fineflow.adapters.langchain.call_metadata import Entered
from fineflow.adapters.langchain.claiming import Claiming, under_way
from fineflow.adapters.langchain.kernels.operations import KERNELS
from fineflow.adapters.langchain.plan import Plan, rows
from fineflow.adapters.langchain.shadows import Shadows, Stale
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.runtime.call import completion
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.executor import Call, Execution
from fineflow.runtime.loop.interpreter_exit import hold_daemon_task, hold_daemon_thread
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.scopes import Scope, current, on_stop

_numbers = itertools.count(1)


@dataclass(slots=True)
class Session:
    """How calls of one object are run.

    runnable: the user's object. stale: called when the object is no longer the one that was planned. strict: whether a
    failure of fineflow's own is raised. last: what is left to know of the call that ended last.
    """

    runnable: Runnable[Any, Any]
    stale: Callable[[], None]
    strict: bool
    last: Summary | None = None

    @contextmanager
    def sync(
        self,
        plan: Plan,
        input: Any,
        config: RunnableConfig | None,
        marks: Entered,
        *,
        streaming: bool = False,
        limit: asyncio.Semaphore | None = None,
    ) -> Iterator[Runnable[Any, Any]]:
        """For a plain thread: what it should call, under ``marks``. The graph runs on the runtime's loop meanwhile."""
        try:
            loop = engine_loop()
        except RuntimeError:  # the interpreter is exiting
            yield self.runnable
            return
        shadows = self._shadows(plan, sync=True)
        if shadows is None:
            yield self.runnable
            return
        call = _call(loop, config, self.runnable, limit, marks, sync=True, streaming=streaming)
        marks.claiming = claiming = Claiming(call, shadows, under_way.get())
        run = Execution(plan.e_graph, call, _given(input))

        def start() -> None:
            # Nobody waits for the start: claims take the same way to the loop, and none can overtake it.
            completion.post(loop, run.start)

        try:
            if shadows.opens:
                claiming.waiting = partial(_opened, claiming, start)
            else:
                start()
            with on_stop(partial(completion.stop, call)):
                yield shadows.shadow
        except BaseException:
            hold_daemon_thread()
            raise
        finally:
            self.last = summary = completion.close(call)
        completion.tell(summary, self.runnable, self.strict)

    def on_loop(
        self,
        plan: Plan,
        input: Any,
        config: RunnableConfig | None,
        marks: Entered,
        *,
        streaming: bool = False,
        handlers: bool = False,
        limit: asyncio.Semaphore | None = None,
    ) -> OnLoop:
        """For a coroutine: ``async with`` gives what it should call, under ``marks``, the graph running beside it."""
        shadows = self._shadows(plan, sync=False)
        if shadows is None:
            return OnLoop(self, self.runnable)
        loop = asyncio.get_running_loop()
        call = _call(loop, config, self.runnable, limit, marks, sync=False, streaming=streaming, handlers=handlers)
        marks.claiming = claiming = Claiming(call, shadows, under_way.get())
        run = Execution(plan.e_graph, call, _given(input))
        if shadows.opens:
            claiming.waiting = partial(_opened, claiming, run.start)
        return OnLoop(self, shadows.shadow, run, waits=shadows.opens)

    def _shadows(self, plan: Plan, *, sync: bool) -> Shadows | None:
        """The copy of the object that stock runs, or None where this call had better be stock's alone."""
        kept = plan.shadows.get(sync)
        if kept is not None and kept.hold(self.runnable):
            return kept
        try:
            made = Shadows(rows(), plan.objects, plan.touched, plan.tapped, sync=sync).build(self.runnable)
        except Stale:  # the user has put another component in: it is planned again for the next call
            self.stale()
            return None
        except Exception as error:
            text = f"{type(self.runnable).__name__} could not be prepared ({type(error).__name__}: {error})"
            if self.strict:
                raise PlanningError(f"{text}; without strict=True it runs as stock") from error
            warnings.warn(f"{text}; it runs as stock. Please report this.", FineflowWarning, stacklevel=6)
            return None
        plan.shadows[sync] = made
        return made


class OnLoop:
    """One call by a coroutine: its graph runs for as long as the block does.

    waits: it does not begin with the block, but when stock has opened the outermost run.
    """

    __slots__ = ("_call", "_execution", "_runnable", "_scope", "_session", "_waits")

    def __init__(
        self,
        session: Session,
        runnable: Runnable[Any, Any],
        execution: Execution | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self._session = session
        self._runnable = runnable
        self._execution = execution
        self._call = None if execution is None else execution.call
        self._scope: Scope | None = None
        self._waits = waits

    def start(self) -> Runnable[Any, Any]:
        """Starts the graph, if nothing else does; what stock is to run. To be ``ended`` then, also where it raises."""
        run, self._execution = self._execution, None
        if run is not None:
            if (scope := current.get()) is not None:
                self._scope = scope
                scope.add(self, partial(completion.stop, run.call))
            if not self._waits:
                run.start()
        return self._runnable

    async def ended(self, error: BaseException | None = None) -> None:
        """Stock has ended, in whatever way: so does the graph."""
        call, self._call = self._call, None
        if call is None:
            return
        if self._scope is not None:
            self._scope.discard(self)
        summary = call.close()
        if call.tasks:
            await call.ended()
        self._session.last = summary
        if error is None:
            completion.tell(summary, self._session.runnable, self._session.strict)
        elif isinstance(error, Exception):
            await hold_daemon_task()

    async def __aenter__(self) -> Runnable[Any, Any]:
        try:
            return self.start()
        except BaseException as error:
            await self.ended(error)
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.ended(error)


def _call(
    loop: asyncio.AbstractEventLoop,
    config: RunnableConfig | None,
    runnable: Runnable[Any, Any],
    limit: asyncio.Semaphore | None,
    marks: Entered,
    *,
    sync: bool,
    streaming: bool,
    handlers: bool = False,
) -> Call:
    if limit is None:
        limit = semaphore(_max_concurrency(runnable, config))
    return Call(
        loop=loop,
        kernels=KERNELS,
        sync=sync,
        streaming=streaming,
        handlers=handlers or _streaming_handlers(config),
        context=_context(config, marks),
        label=f"query-{next(_numbers)}",
        limit=limit,
    )


def _context(config: RunnableConfig | None, marks: Entered) -> contextvars.Context:
    """The caller's context, in which components find what the config says; only its handlers are for stock."""
    context = contextvars.copy_context()
    context.run(marks.apply)
    context.run(var_child_runnable_config.set, _visible(config))
    return context


def _opened(claiming: Claiming, start: Callable[[], None]) -> None:
    """Starts the graph in the context in which stock runs what is inside of the outermost run."""
    context = contextvars.copy_context()
    context.run(_as_component, claiming)
    claiming.call.enter(context)
    context.copy().run(start)


def _as_component(claiming: Claiming) -> None:
    """Makes the context of a step of stock's one for components: of the config they see all but the handlers."""
    under_way.set(claiming.outer)
    var_child_runnable_config.set({**(var_child_runnable_config.get() or {}), "callbacks": None})


def _visible(config: RunnableConfig | None) -> RunnableConfig:
    if not config and not var_child_runnable_config.get():
        # What LangChain makes of that, without the way through all that there could be.
        limit = DEFAULT_RECURSION_LIMIT
        return {"tags": [], "metadata": {}, "callbacks": None, "recursion_limit": limit, "configurable": {}}
    return {**ensure_config(config), "callbacks": None}


def semaphore(limit: int | None) -> asyncio.Semaphore | None:
    """For ``max_concurrency``; belongs to the loop on which it is first waited for."""
    return asyncio.Semaphore(limit) if limit else None


def _given(input: Any) -> dict[str, Any]:
    return {"input": dict(input) if type(input) is dict else input}


def _max_concurrency(runnable: Any, config: RunnableConfig | None) -> int | None:
    for found in (config, getattr(runnable, "config", None), var_child_runnable_config.get()):
        limit = found.get("max_concurrency") if isinstance(found, Mapping) else None
        if limit:
            return int(limit)
    return None


def _streaming_handlers(config: RunnableConfig | None) -> bool:
    """Whether a handler is attached that makes chat models stream inside ``invoke``."""
    for found in (config, var_child_runnable_config.get()):
        callbacks: Any = (found or {}).get("callbacks") or ()
        if any(isinstance(handler, _StreamingCallbackHandler) for handler in getattr(callbacks, "handlers", callbacks)):
            return True
    return False
