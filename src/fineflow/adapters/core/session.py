"""One call of an optimized object: its shadow and its graph start together, and end together however the call ends.

A blocking component method (of a sync call) runs in a worker thread, which nothing can interrupt. A call that ends
early (an exception, an interrupt, an abandoned stream) does not wait for it: it returns or raises at once, and the
thread finishes alone, its result dropped. Stock behaves the same, except that an interrupt of the main thread breaks
into a method that stock runs there.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.shadows import Shadows, Stale
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.runtime.call import completion
from fineflow.runtime.call.executor import Call, Execution
from fineflow.runtime.call.lifecycle import Entered
from fineflow.runtime.loop.runtime_loop import engine_loop, exiting
from fineflow.runtime.loop.scopes import Scope, current, on_stop

if TYPE_CHECKING:
    from fineflow.adapters.core.proxy import Planned

_numbers = itertools.count(1)


class Entrance(Entered):
    """A call that was admitted: sets, while its code runs, what components and shadows find in context variables."""

    __slots__ = ("_outer", "claiming")

    def __init__(self, tenant: str | None = None, priority: int | None = None) -> None:
        super().__init__(tenant, priority)
        self.claiming: Claiming | None = None
        self._outer: Claiming | None = None

    def __enter__(self) -> None:
        super().__enter__()
        if self.claiming is not None:
            self._outer = under_way.get()
            under_way.set(self.claiming)

    def __exit__(self, *_: object) -> None:
        if self.claiming is not None:
            if under_way.get() is not self.claiming:
                return  # an abandoned coroutine, collected in some other context: there is nothing to take back
            under_way.set(self._outer)
            self._outer = None
        super().__exit__()


class Session:
    """The shadow and the graph of one call of ``planned``."""

    __slots__ = ("_call", "_execution", "_invocation", "_plan", "_planned", "_scope", "_waits", "runs")

    def __init__(self, planned: Planned, plan: Plan, invocation: Invocation) -> None:
        self._planned = planned
        self._plan = plan
        self._invocation = invocation
        self.runs: Any = planned.__wrapped__  # what stock runs
        self._call: Call | None = None
        self._execution: Execution | None = None
        self._scope: Scope | None = None
        self._waits = False

    @contextmanager
    def in_thread(self, entrance: Entrance) -> Iterator[Any]:
        """Yields what stock should run in this thread, under ``entrance``. The graph runs on the runtime's loop."""
        try:
            loop = engine_loop()
        except RuntimeError:  # the interpreter is exiting
            yield self.runs
            return
        if not self._prepare(loop, entrance, lambda start: completion.post(loop, start)):
            yield self.runs
            return
        call = self._call
        assert call is not None
        try:
            if not self._waits:
                self._start(lambda start: completion.post(loop, start))
            with on_stop(partial(completion.stop, call)):
                yield self.runs
        except BaseException:
            if exiting() and threading.current_thread().daemon:
                # The end of the process came before the end of the call. Stock would be stuck in a component until the
                # process is gone; an error about the end of our loop is of no use to anybody.
                threading.Event().wait()
            raise
        finally:
            self._planned._self_last = summary = completion.close(call)
        completion.report(summary, self._planned.__wrapped__, self._planned._self_options.strict)

    # For coroutines. Not an async context manager: what that keeps while a call waits is there for thousands of calls.

    def begin(self, entrance: Entrance) -> Any:
        """Starts the graph on the running loop; returns what stock should run. To be ``ended``, also if it raises."""
        if self._prepare(asyncio.get_running_loop(), entrance, lambda start: start()):
            call = self._call
            assert call is not None
            if (scope := current.get()) is not None:
                self._scope = scope
                scope.add(self, partial(completion.stop, call))
            if not self._waits:
                self._start(lambda start: start())
        return self.runs

    async def ended(self, error: BaseException | None = None) -> None:
        """Ends the graph: stock has ended, with ``error`` or with a result."""
        call, self._call = self._call, None
        if call is None:
            return
        if self._scope is not None:
            self._scope.discard(self)
        summary = call.close()
        if call.tasks:
            await call.ended()
        self._planned._self_last = summary
        if error is None:
            completion.report(summary, self._planned.__wrapped__, self._planned._self_options.strict)

    # How it begins.

    def _prepare(
        self, loop: asyncio.AbstractEventLoop, entrance: Entrance, post: Callable[[Callable[[], None]], None]
    ) -> bool:
        """Makes the call, the shadow and the execution; False where the call has to run on the user's object."""
        planned, plan, invocation = self._planned, self._plan, self._invocation
        ahead = invocation.entry in plan.pays or planned._self_eager(invocation)
        shadows = None if plan.per_call else self._kept(ahead)
        if shadows is None and not plan.per_call:
            return False
        call = Call(
            loop=loop,
            kernels=planned._self_framework.kernels,
            entry=invocation.entry,
            sync=invocation.sync,
            context=_context(invocation, entrance),
            label=f"query-{next(_numbers)}",
            streaming=invocation.streaming,
            limit=invocation.limit(),
            facts=invocation.facts(),
        )
        if shadows is None:
            shadows = self._new(ahead)
            entrance.claiming = Claiming(call, shadows, shadows.leaves, under_way.get())
            with entrance:
                if self._built(shadows) is None:
                    call.close()
                    entrance.claiming = None
                    return False
        else:
            entrance.claiming = Claiming(call, shadows, shadows.leaves, under_way.get())
        self._call, self.runs = call, shadows.shadow
        if ahead:
            self._execution = Execution(plan.e_graph, call, invocation.inputs())
            self._waits = invocation.method in shadows.opens
            if self._waits:
                entrance.claiming.start = partial(self._opened, entrance.claiming, post)
        return True

    def _start(self, post: Callable[[Callable[[], None]], None]) -> None:
        # Nobody waits for the start: claims take the same way to the loop, and none can overtake it.
        execution, self._execution = self._execution, None
        if execution is not None:
            post(execution.start)

    def _opened(self, claiming: Claiming, post: Callable[[Callable[[], None]], None]) -> None:
        """Starts the graph in the context in which stock runs what is inside of its outermost run.

        Handlers may have set context variables at the start of that run, such as the current span of OpenTelemetry.
        What components do ahead of stock is done under these, as stock would do it.
        """
        context = contextvars.copy_context()
        context.run(self._as_component, claiming)
        claiming.call.enter(context)
        context.copy().run(self._start, post)

    def _as_component(self, claiming: Claiming) -> None:
        under_way.set(claiming.outer)
        self._planned._self_framework.prepare_component_context(claiming.outer)

    # Shadows.

    def _new(self, ahead: bool) -> Shadows:
        invocation, planned = self._invocation, self._planned
        return planned._self_framework.shadows(self._plan, planned, sync=invocation.sync, ahead=ahead)

    def _kept(self, ahead: bool) -> Shadows | None:
        """The shadows of the plan, made anew where something that they copied has changed."""
        key = (self._invocation.sync, ahead)
        kept = self._plan.shadows.get(key)
        if kept is not None and kept.hold(self._planned.__wrapped__):
            return kept
        made = self._built(self._new(ahead))
        if made is not None:
            self._plan.shadows[key] = made
        return made

    def _built(self, shadows: Shadows) -> Shadows | None:
        """The shadows, built; None where this call has to run on the user's object."""
        planned = self._planned
        obj = planned.__wrapped__
        try:
            return shadows.build(obj)
        except Stale:  # the user has put another component in: the next call plans again
            planned._self_plans.clear()
            return None
        except Exception as error:
            text = f"{type(obj).__name__} could not be prepared ({type(error).__name__}: {error})"
            if planned._self_options.strict:
                raise PlanningError(f"{text}; without strict=True it runs as stock") from error
            warnings.warn(f"{text}; it runs as stock. Please report this.", FineflowWarning, stacklevel=6)
            return None


def _context(invocation: Invocation, entrance: Entrance) -> contextvars.Context:
    """The caller's context, as components see it."""
    context = contextvars.copy_context()
    context.run(entrance.apply)
    context.run(invocation.prepare)
    return context
