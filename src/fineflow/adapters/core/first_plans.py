"""Plans of async calls are made in a thread, so that the event loop of the caller goes on meanwhile.

Planning reads the user's object, and the bytecode of its functions: some ms for each dozen of steps, and more where it
imports. Calls that come before the plan is there wait for it, from any event loop. Where no thread can make it, or the
thread fails, the call plans on its own loop, and meets the failure there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fineflow.adapters.core import unfinished
from fineflow.runtime.loop import workers
from fineflow.runtime.loop.runtime_loop import outside

if TYPE_CHECKING:
    from fineflow.adapters.core.proxy import Planned


class FirstPlans:
    """What threads are making for one optimized object, by the way of calling it."""

    def __init__(self) -> None:
        self._making: dict[Any, Future[None]] = {}
        self._process = os.getpid()

    async def made(self, way: Any, work: Callable[[], object]) -> None:
        """Waits until ``work()`` has ended in a thread, or what an earlier call has begun to make for the same way.

        Cancelling the caller takes effect at once; the thread goes on, for other callers. Raises nothing of ``work``.
        """
        if asyncio._get_running_loop() is None:  # a coroutine that somebody runs by hand
            return
        if self._process != os.getpid():  # a forked child has none of the threads
            self._process, self._making = os.getpid(), {}
        own: Future[None] = Future()
        own.set_running_or_notify_cancel()  # from now on no caller can cancel it
        making = self._making.setdefault(way, own)
        if making is own:
            try:
                workers.submit(self._job(way, own, work))
            except RuntimeError:  # no thread starts any more: the interpreter is exiting
                self._making.pop(way, None)
                own.set_result(None)
        with outside():
            await asyncio.wrap_future(making)

    def _job(self, way: Any, making: Future[None], work: Callable[[], object]) -> Callable[[], None]:
        context = copy_context()

        def run() -> None:
            try:
                with suppress(BaseException):  # the call plans once more, and meets it
                    context.run(work)
            finally:
                self._making.pop(way, None)
                making.set_result(None)

        return run


def make(planned: Planned, entry: str, way: Any, *, inside: bool = True) -> None:
    """Makes the plan for a way of calling an object, and the shadow that calls of an async entry method run.

    inside: also those of the components that user functions in it call. Raises what planning raises.
    """
    framework, eager = planned._self_framework, planned._self_options.eager
    for name in framework.first_imports:
        with suppress(ImportError):
            import_module(name)
    with unfinished.seen_through():
        plan = planned._self_plans[way] = planned._self_new_plan(way)
        bounded = framework.bounded(plan)
        if not bounded.follows_for(entry, eager=eager):
            return
        if not bounded.per_call:
            ahead = eager or entry in bounded.pays
            shadows = framework.shadows(bounded, planned, sync=False, ahead=ahead)
            bounded.shadows[False, ahead] = shadows.build(planned.__wrapped__)
        for each in framework.inside(plan) if inside else ():
            if (part := planned._self_ahead(each)) is not None:
                for kind in framework.ways(each, ""):
                    make(part, "ainvoke", kind, inside=False)
