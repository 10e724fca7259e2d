"""One call of an optimized object: its shadow and its graph start together, and end together however the call ends.

A blocking component method (of a sync call) runs in a worker thread, which cannot be interrupted. A call that ends
early (an exception, an interrupt, an abandoned stream) does not wait for it: it returns or raises at once, and the
thread finishes alone, its result dropped. Stock behaves the same, except that an interrupt of the main thread breaks
into a method that stock runs there.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core import late_searches, unfinished
from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.shadows import Shadows, Stale
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.ir import Op
from fineflow.ir.text import name_of
from fineflow.runtime import recording
from fineflow.runtime.call import lifecycle, written
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.executor import Call, Execution, Kernel
from fineflow.runtime.call.identity import Marks
from fineflow.runtime.call.late_call import LateCall
from fineflow.runtime.call.lifecycle import Admission
from fineflow.runtime.loop import runtime_loop
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.loop.scopes import Scope, current, on_stop, setting
from fineflow.runtime.loop.submission import Submission, Unreachable
from fineflow.runtime.queues.admission import log

if TYPE_CHECKING:
    from fineflow.adapters.core.proxy import Planned

_numbers = itertools.count(1)


class CallSession:
    """The shadow and the graph of one call of ``planned``."""

    __slots__ = (
        "_admission",
        "_call",
        "_claiming",
        "_execution",
        "_invocation",
        "_outermost",
        "_plan",
        "_planned",
        "_scope",
        "_waits",
        "runs",
    )

    def __init__(self, planned: Planned, plan: Plan, invocation: Invocation) -> None:
        self._planned = planned
        self._plan = plan
        self._invocation = invocation
        self.runs: Any = planned.__wrapped__  # what stock runs
        self._admission: Admission | None = None
        self._call: LateCall | None = None
        self._claiming: Claiming | None = None
        self._execution: Execution | None = None
        self._scope: Scope | None = None
        self._waits = False
        self._outermost = True

    def start_ahead(self, loop: asyncio.AbstractEventLoop, finished: Callable[[Any], None]) -> bool:
        """Starts the graph before stock makes the call; ``in_thread`` or ``begin`` follow, or ``drop``.

        finished: called on the loop with the graph's output, or a ``Failed``. Returns False if nothing can run ahead.
        """

        def post(start: Callable[[], None]) -> None:
            if asyncio._get_running_loop() is loop:
                start()
            else:
                runtime_loop.post(loop, start)

        if not self._prepare(loop, Admission(lends=False), post, ahead=True, finished=finished):
            return False
        self._waits = False
        self._start(post)
        return True

    def drop(self) -> Call | None:
        """Ends a graph that ``start_ahead`` started and whose call stock has not made. Returns the call, if any."""
        late, self._call = self._call, None
        return None if late is None else late.end()

    def begin_before_writes(self, admission: Admission) -> None:
        """Starts the graph, and waits until stores that it reads are complete; ``in_thread`` follows.

        Raises what one of the writes raised; the call is over then.
        """
        writes = late_searches.writes(self._plan)
        if not writes:
            return
        try:
            loop = engine_loop()
        except RuntimeError:  # the interpreter is exiting
            return
        try:
            if late_searches.overlaps(self._plan):
                self._start_early(loop, admission, partial(runtime_loop.post, loop))
            with nullcontext() if self._call is None else on_stop(self._call.stop):
                for write in writes:
                    write.wait()
        except BaseException:
            self._dropped()
            raise
        self._waits = False
        if (late := self._call) is not None:
            begun = Submission(late.call().memory(late_searches.LateSearches).begun, loop)
            with suppress(Unreachable, asyncio.CancelledError):
                begun.start()
                begun.wait()

    def _dropped(self) -> None:
        if (call := self.drop()) is not None:
            lifecycle.close(call)

    async def abegin_before_writes(self, admission: Admission) -> None:
        """``begin_before_writes`` for coroutines, before ``begin``."""
        writes = late_searches.writes(self._plan)
        if not writes:
            return
        if late_searches.overlaps(self._plan):
            self._start_early(asyncio.get_running_loop(), admission, lambda start: start())
        for write in writes:
            await write.ended()
            write.wait()
        self._waits = False
        if self._call is not None:
            await self._call.call().memory(late_searches.LateSearches).begun()

    def _start_early(
        self, loop: asyncio.AbstractEventLoop, admission: Admission, post: Callable[[Callable[[], None]], object]
    ) -> None:
        if self._prepare(loop, admission, post, ahead=True):
            self._start(post)

    def in_thread(self, admission: Admission) -> CallSession:
        """Returns a block for the call of a plain thread, under ``admission``. The graph runs on the engine loop."""
        self._admission = admission
        return self

    def __enter__(self) -> Any:
        """Starts the graph; returns the object that stock runs in this thread."""
        try:
            loop = engine_loop()
        except RuntimeError:  # the interpreter is exiting
            return self.runs
        post = partial(runtime_loop.post, loop)
        admission, self._admission = self._admission, None
        assert admission is not None
        if self._claiming is not None:
            admission.mark(under_way, self._claiming)
        elif not self._prepare(loop, admission, post):
            return self.runs
        try:
            self._begun(post)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self.runs

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if (late := self._left()) is None:
            return
        call = late.end()
        summary = late.summary() if call is None else lifecycle.close(call)
        self._over(summary, call, error)

    # For coroutines. No async context manager: its state would exist for each of thousands of waiting calls.

    def begin(self, admission: Admission) -> Any:
        """Starts the graph on the running loop; returns what stock runs. Call ``ended`` afterwards, also on errors."""
        if self._claiming is not None:
            admission.mark(under_way, self._claiming)
        if self._claiming is not None or self._prepare(asyncio.get_running_loop(), admission, lambda start: start()):
            self._begun(lambda start: start())
        return self.runs

    async def ended(self, error: BaseException | None = None) -> None:
        """Ends the graph when stock has ended, with ``error`` or with a result."""
        if (late := self._left()) is None:
            return
        call = late.end()
        summary = late.summary() if call is None else call.close()
        if call is not None and call.tasks:
            await call.ended()
        self._over(summary, call, error)

    # For both.

    def _begun(self, post: Callable[[Callable[[], None]], object]) -> None:
        assert self._call is not None
        if (scope := current.get()) is not None:
            self._scope = scope
            scope.add(self, self._call.stop)
        if not self._waits:
            self._start(post)

    def _left(self) -> LateCall | None:
        late, self._call = self._call, None
        if late is not None and self._scope is not None:
            self._scope.discard(self)
        return late

    def _over(self, summary: Summary, call: Call | None, error: BaseException | None) -> None:
        if call is not None and call.account is not None and call.account.in_vain and self._outermost:
            in_vain, kind = dict(call.account.in_vain), "" if error is None else type(error).__name__
            summary = replace(summary, in_vain=in_vain, error=kind)
            log.debug("requests in vain", extra={"event": "in vain", "requests": in_vain, "error": kind})
        self._planned._self_last = summary
        nothing = bool(summary.surprises) and not summary.claimed and not (summary.trace and summary.trace.inside)
        if nothing or self._plan.losses.count:
            self._plan.losses.learn(profit=not nothing)
        if recording.recorders:
            self._record(summary)
        if error is None:
            lifecycle.report(summary, self._planned.__wrapped__, self._planned._self_options.strict)

    def _record(self, summary: Summary) -> None:
        """Tells recorders of the end of the call."""
        recording.ended(self._planned.__wrapped__, self._plan.p_graph, summary)

    # Start.

    def _prepare(
        self,
        loop: asyncio.AbstractEventLoop,
        admission: Admission,
        post: Callable[[Callable[[], None]], object],
        *,
        ahead: bool = False,
        finished: Callable[[Any], None] | None = None,
    ) -> bool:
        """Makes the call, the shadow and the execution; returns False if the call has to run on the user's object."""
        plan, invocation = self._plan, self._invocation
        ahead = ahead or invocation.entry in plan.pays or self._planned._self_eager(invocation)
        shadows = self._new(ahead) if plan.per_call else self._kept(ahead)
        if shadows is None:
            return False
        late = self._late_call(loop, admission.marks)
        claiming = Claiming(late, shadows, shadows.leaves, under_way.get())
        if plan.per_call and not self._built_in(claiming):
            if (call := late.end()) is not None:
                call.close()
            return False
        admission.mark(under_way, claiming)
        self._call, self._claiming, self.runs = late, claiming, shadows.shadow
        self._outermost = claiming.outer is None
        if ahead and plan.e_graph.primitives:
            self._execution = Execution(plan.e_graph, late.call(), invocation.inputs(), finished)
            self._waits = invocation.method in shadows.opens
            if self._waits:
                claiming.start = partial(self._opened, claiming, post)
        return True

    def _late_call(self, loop: asyncio.AbstractEventLoop, marks: Marks) -> LateCall:
        invocation = self._invocation
        return LateCall(
            loop,
            self._kernels(),
            invocation.entry,
            partial(_prepared, self._planned, invocation, marks),
            sync=invocation.sync,
            streaming=invocation.streaming,
            facts=invocation.facts(),
        )

    def _kernels(self) -> Mapping[Op, Kernel]:
        kernels = self._planned._self_framework.kernels
        return late_searches.waiting(kernels) if unfinished.some() else kernels

    def _built_in(self, claiming: Claiming) -> bool:
        """Builds shadows that serve one call only, and may claim during the build."""
        with setting((under_way, claiming)):
            return self._built(claiming.shadows) is not None

    def _start(self, post: Callable[[Callable[[], None]], object]) -> None:
        # Nothing waits for the start: claims take the same way to the loop and cannot overtake it.
        execution, self._execution = self._execution, None
        if execution is not None:
            execution.call.reached = True
            post(execution.start)

    def _opened(self, claiming: Claiming, post: Callable[[Callable[[], None]], object]) -> None:
        """Starts the graph in the context in which stock runs the inside of its outermost run.

        Handlers may have set context variables at the start of that run, such as OpenTelemetry's current span.
        Components that run ahead see them, as they would in stock.
        """
        context = contextvars.copy_context()
        context.run(self._as_component, claiming)
        claiming.call.enter(context)
        context.copy().run(self._start, post)

    def _as_component(self, claiming: Claiming) -> None:
        written.searching.set(True)
        under_way.set(claiming.outer)
        self._planned._self_framework.prepare_component_context(claiming.outer)

    # Shadows.

    def _new(self, ahead: bool) -> Shadows:
        invocation, planned = self._invocation, self._planned
        return planned._self_framework.shadows(self._plan, planned, sync=invocation.sync, ahead=ahead)

    def _kept(self, ahead: bool) -> Shadows | None:
        """Returns the plan's shadows, rebuilt if something that they copied has changed."""
        key = (self._invocation.sync, ahead)
        kept = self._plan.shadows.get(key)
        if kept is not None and unfinished.some():
            with unfinished.seen_through():
                kept = kept if kept.hold(self._planned.__wrapped__) else None
        elif kept is not None and not kept.hold(self._planned.__wrapped__):
            kept = None
        if kept is not None:
            return kept
        made = self._built(self._new(ahead))
        if made is not None:
            self._plan.shadows[key] = made
        return made

    def _built(self, shadows: Shadows) -> Shadows | None:
        """Builds the shadows; returns None if this call has to run on the user's object."""
        planned = self._planned
        obj = planned.__wrapped__
        try:
            with unfinished.seen_through():
                return shadows.build(obj)
        except Stale:  # the user has replaced a component: the next call plans again
            planned._self_plans.clear()
            return None
        except Exception as error:
            text = f"{name_of(obj)} could not be prepared ({type(error).__name__}: {error})"
            if planned._self_options.strict:
                raise PlanningError(f"{text}; without strict=True it runs as stock") from error
            warnings.warn(f"{text}; it runs as stock. Please report this.", FineflowWarning, stacklevel=6)
            return None


def _prepared(planned: Planned, invocation: Invocation, marks: Marks) -> tuple[str, asyncio.Semaphore | None]:
    """Makes a copy of the caller's context what components see; returns a label, and the bound on their calls."""
    limit = invocation.limit() or planned._self_bound()
    for var, value in marks:
        var.set(value)
    written.searching.set(True)
    invocation.prepare()
    return f"query-{next(_numbers)}", limit
