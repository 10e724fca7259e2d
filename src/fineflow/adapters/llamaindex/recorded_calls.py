"""Calls of whole components ahead of stock: their spans and events are recorded, and sent when stock makes the call.

``methods`` runs the functions inside LlamaIndex's wrappers, which is only possible for known leaves. A retriever or a
query engine opens spans all the way down. It runs ahead in a context in which the dispatchers and callback managers
keep what they are given. When stock makes the call, they get it: in the same order, under the spans and events that
are open then. A component whose call stock never makes leaves no trace.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from datetime import datetime
from functools import partial, wraps
from typing import Any

from llama_index.core.callbacks.base import CallbackManager, global_stack_trace
from llama_index.core.callbacks.schema import LEAF_EVENTS
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import Dispatcher, active_instrument_tags
from llama_index_instrumentation.span import active_span_id

from fineflow.adapters.inner_calls.calls_ahead import Finished, MethodAhead
from fineflow.adapters.inner_calls.entry_wrappers import put
from fineflow.adapters.llamaindex.as_reported import AsReported
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.runtime.loop.scopes import Scope
from fineflow.runtime.loop.submission import Submission
from fineflow.runtime.queues.in_vain import AheadRequest

_recording: ContextVar[Recording | None] = ContextVar("fineflow_recording", default=None)
_installing = threading.Lock()
_installed: list[bool] = []

_DISPATCHED = ("span_enter", "span_exit", "span_drop", "event")
_MANAGED = ("on_event_start", "on_event_end", "start_trace", "end_trace")
_GIVEN = {
    "on_event_start": ("event_type", "payload", "event_id", "parent_id"),
    "on_event_end": ("event_type", "payload", "event_id"),
}
"""Parameters of methods, which callers pass in either way."""


class Recording:
    """What one call reports. Thread-safe.

    then: called whenever the call has got further, until stock makes it.
    """

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self._outside = f"outside-{uuid.uuid4()}"  # in place of the span and of the event around the call
        self._reports: deque[Callable[[], None]] = deque()
        self._sent = False
        self._open: list[str] = []
        self._base: list[str] = []  # of the sender: its open events, and its span
        self._span: str | None = None
        self._then = then

    def begin(self) -> None:
        """Records in the current context from now on."""
        _install()
        _recording.set(self)
        active_span_id.set(self._outside)
        global_stack_trace.set([self._outside])

    def ended(self) -> None:
        """Notes which events the call leaves open: LlamaIndex ends none of a model that raises. In its context."""
        self._open = global_stack_trace.get()[1:]

    def send(self) -> None:
        """Sends the reports from the current context; later ones go straight on."""
        self._base, self._span = global_stack_trace.get(), active_span_id.get()
        while self._reports:
            self._reports.popleft()()
        self._sent = True
        global_stack_trace.set([*self._base, *self._open])

    def _keep(self, report: Callable[[], None]) -> None:
        if self._sent:  # of a task that has outlived its call
            report()
            return
        self._reports.append(report)
        self.progressed()

    def progressed(self) -> None:
        """Notes that the call has got further: a search has its vector, or something has been reported."""
        if self._then is not None and not self._sent:
            self._then()

    # --- dispatchers ------------------------------------------------------------------------------------------------

    def dispatched(self, own: Callable[..., Any], dispatcher: Any, args: Args, named: Named) -> None:
        """Keeps a call of a dispatcher's method."""
        if self._sent:
            self._dispatch(own, dispatcher, args, dict(named))
            return
        kept, kept_named = [*map(AsReported, args)], {name: AsReported(value) for name, value in named.items()}

        def report() -> None:
            values = {name: each.value() for name, each in kept_named.items()}
            self._dispatch(own, dispatcher, [each.value() for each in kept], values)

        self._keep(report)

    def _dispatch(self, own: Callable[..., Any], dispatcher: Any, args: Sequence[Any], named: dict[str, Any]) -> None:
        if named.get("parent_id") == self._outside:
            named["parent_id"] = self._span
        if named.get("tags") is not None:
            named["tags"] = active_instrument_tags.get()
        for event in (*args, *named.values()):
            if isinstance(event, BaseEvent):
                event.timestamp = datetime.now()
                if event.span_id == self._outside:
                    event.span_id = self._span
        self._report(own, dispatcher, args, named)

    # --- callback managers ------------------------------------------------------------------------------------------

    def managed(self, own: Callable[..., Any], manager: Any, args: Args, named: Named) -> Any:
        """Keeps a call of a callback manager's method; returns what the method returns."""
        given = dict(zip(_GIVEN.get(own.__name__, ()), args, strict=False)) | dict(named)
        args = args if own.__name__ not in _GIVEN else ()
        inside = global_stack_trace.get()[1:]
        name = own.__name__
        made = None
        if name == "on_event_start":
            made = given["event_id"] = given.get("event_id") or str(uuid.uuid4())
        self._keep(partial(self._manage, own, manager, args, given, inside))
        if name in ("on_event_start", "on_event_end") and given.get("event_type") not in LEAF_EVENTS:
            stack = global_stack_trace.get()
            global_stack_trace.set([*stack, made] if made is not None else stack[:-1])
        return made

    def _manage(self, own: Callable[..., Any], manager: Any, args: Args, named: Named, inside: list[str]) -> None:
        name = own.__name__
        if name in ("start_trace", "end_trace"):
            before = global_stack_trace.get()
            self._report(own, manager, args, named)
            if global_stack_trace.get() is not before:  # the outermost trace begins a stack of its own
                self._base = global_stack_trace.get()
            return
        global_stack_trace.set([*self._base, *inside])
        self._report(own, manager, args, named)

    def _report(self, own: Callable[..., Any], obj: Any, args: Args, named: Named) -> None:
        if self._sent:
            own(obj, *args, **named)
        else:  # by the wrapper: the sender may itself be recorded
            getattr(obj, own.__name__)(*args, **named)


def _install() -> None:
    """Wraps the methods by which LlamaIndex reports, once per process, as instrumentation libraries do.

    Outside of recorded calls a wrapper reads one context variable and calls the method.
    """
    if _installed:
        return
    with _installing:
        if not _installed:
            for name in _DISPATCHED:
                setattr(Dispatcher, name, _keeping(getattr(Dispatcher, name), Recording.dispatched))
            Dispatcher.aevent = _akeeping(Dispatcher.aevent, Dispatcher.__dict__["event"].__wrapped__)  # type: ignore[method-assign]
            search, own = "_get_nodes_with_embeddings", VectorIndexRetriever._get_nodes_with_embeddings
            put(VectorIndexRetriever, search, own, _searching(own))
            for name in _MANAGED:
                setattr(CallbackManager, name, _keeping(getattr(CallbackManager, name), Recording.managed))
            _installed.append(True)


def _keeping(own: Any, keep: Callable[..., Any]) -> Any:
    @wraps(own)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        recording = _recording.get()
        return own(self, *args, **named) if recording is None else keep(recording, own, self, args, named)

    return method


def _searching(own: Any) -> Any:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        if (recording := _recording.get()) is not None:
            recording.progressed()
        return own(self, *args, **named)

    return method


def _akeeping(own: Any, event: Any) -> Any:
    @wraps(own)
    async def method(self: Any, *args: Any, **named: Any) -> Any:
        recording = _recording.get()
        if recording is None:
            return await own(self, *args, **named)
        recording.dispatched(event, self, args, named)

    return method


class RecordedAhead(MethodAhead):
    """A call of a component's method that opens spans and sends events, ahead of stock.

    then: called whenever the call has got further, on any thread.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        args: Args,
        named: Named,
        limit: asyncio.Semaphore | None,
        then: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(method, args, named, limit)
        self._recording, self._scope = Recording(then), Scope()
        self._call = partial(self._arecorded if self._awaits else self._recorded, self._call)

    def _recorded(self, call: Callable[[], Any]) -> Any:
        with self._scope.inside():
            try:
                return call()
            finally:
                self._recording.ended()

    async def _arecorded(self, call: Callable[[], Any]) -> Any:
        try:
            return await call()
        finally:
            self._recording.ended()

    def start(self, loop: asyncio.AbstractEventLoop, context: Context, finished: Finished) -> bool:
        context.run(self._recording.begin)
        return super().start(loop, context, finished)

    @contextmanager
    def _taking(self) -> Iterator[tuple[Submission[Any], AheadRequest]]:
        try:
            with super()._taking() as taken:
                yield taken
        finally:
            self._scope.close()
            self._recording.send()

    def _in_vain(self) -> None:
        self._scope.stop()
        self._scope.close()
        super()._in_vain()
