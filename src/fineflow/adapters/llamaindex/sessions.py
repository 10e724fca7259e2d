"""One call: its shadow and its graph begin together, and end together in whatever way the call ends.

A response that streams is read after the call: its last answer is streamed by the user's own model, so nothing of the
graph is needed any more when the response object is there.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.schema import QueryBundle

from fineflow.adapters.llamaindex.claiming import Claiming
from fineflow.adapters.llamaindex.kernels.operations import KERNELS
from fineflow.adapters.llamaindex.lowering.context import Place
from fineflow.adapters.llamaindex.methods import opened
from fineflow.adapters.llamaindex.models.embeddings import PLAIN
from fineflow.adapters.llamaindex.plan import Plan, shadow
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.runtime.call import completion
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.executor import Call, Execution
from fineflow.runtime.loop import scopes
from fineflow.runtime.loop.interpreter_exit import hold_daemon_task, hold_daemon_thread
from fineflow.runtime.loop.runtime_loop import engine_loop

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Session:
    """How one call of an object is run. ahead: whether the graph runs, or only what would block an event loop is moved.

    nested: makes of a part of the object one that runs sooner by itself. ended: told what is left to know of the call.
    """

    obj: Any
    plan: Plan
    ahead: bool
    strict: bool
    nested: Callable[[Any], Any]
    ended: Callable[[Summary], None]

    @contextmanager
    def sync(self, name: str, query: Any) -> Iterator[Any]:
        """For a plain thread: that of which it should call ``name``. The graph runs on the runtime's loop meanwhile."""
        try:
            loop = engine_loop()
        except RuntimeError:  # the interpreter is exiting
            yield self.obj
            return
        call = _call(loop, query, self.plan)
        runs = self._shadow(call)
        try:
            if runs is not self.obj and self.ahead:
                run = Execution(self.plan.e_graph, call, _inputs(query))
                _begin(call, runs, name, lambda: completion.post(loop, run.start))
            with scopes.on_stop(partial(completion.stop, call)):
                yield runs
        except BaseException:
            hold_daemon_thread()
            raise
        finally:
            summary = completion.close(call)
            self.ended(summary)
        completion.tell(summary, self.obj, self.strict)

    @asynccontextmanager
    async def on_loop(self, name: str, query: Any) -> AsyncIterator[Any]:
        """For a coroutine: that of which it should call ``name``. The graph runs on the same loop meanwhile."""
        call = _call(asyncio.get_running_loop(), query, self.plan)
        runs = self._shadow(call)
        try:
            if runs is not self.obj and self.ahead:
                _begin(call, runs, name, Execution(self.plan.e_graph, call, _inputs(query)).start)
            with scopes.on_stop(partial(completion.stop, call)):
                yield runs
        except Exception:
            await hold_daemon_task()
            raise
        finally:
            summary = await call.aclose()
            self.ended(summary)
        completion.tell(summary, self.obj, self.strict)

    def _shadow(self, call: Call) -> Any:
        """The copy of the object that stock runs, or the object where that cannot be made."""
        claims = Claiming(call, self.plan.leaves if self.ahead else frozenset())
        try:
            models, graph = list(self.plan.models), self.plan.p_graph
            return shadow(self.obj, Place(claims, call.sync, models, self.nested, graph=graph))
        except Exception as error:
            text = f"{type(self.obj).__name__} could not be prepared ({type(error).__name__}: {error})"
            if self.strict:
                raise PlanningError(f"{text}; without strict=True it runs as stock") from error
            warnings.warn(f"{text}; it runs as stock. Please report this.", FineflowWarning, stacklevel=6)
            return self.obj


def _begin(call: Call, runs: Any, name: str, start: Callable[[], None]) -> None:
    """Starts the graph when stock is inside of the call's own span; at once where the method opens none.

    Handlers of spans set context variables, such as the current span of OpenTelemetry. What components do ahead of
    stock is done under these, as stock would do it.
    """
    waiting = [start]

    def inside_span() -> None:
        if waiting:
            call.enter(contextvars.copy_context())
            waiting.pop()()

    if not opened(runs, name, inside_span):
        start()


def _call(loop: asyncio.AbstractEventLoop, query: Any, plan: Plan) -> Call:
    call = Call(
        loop=loop,
        kernels=KERNELS,
        sync=plan.way.sync,
        entry=plan.way.entry,
        streaming=False,
        handlers=False,
        context=contextvars.copy_context(),
        label=f"query-{next(_numbers)}",
    )
    call.tables[PLAIN] = isinstance(query, str) or (
        type(query) is QueryBundle
        and query.embedding is None
        and not query.custom_embedding_strs
        and query.image_path is None
    )
    return call


def _inputs(query: Any) -> Mapping[str, Any]:
    return {"input": query if isinstance(query, str) else getattr(query, "query_str", None), "nodes": None}
