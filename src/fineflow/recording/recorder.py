"""``fineflow.record``: records the calls of a block, and shows them as a timeline."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from threading import Lock
from typing import Any

from fineflow.observe.critical_intervals import critical
from fineflow.observe.timeline import Timeline
from fineflow.observe.tracks import Track
from fineflow.recording.steps import plan_for, steps_of
from fineflow.runtime import recording
from fineflow.runtime.events import now
from fineflow.runtime.recording import RecordedCall

CALLS = 64
"""Calls that a recorder keeps unless told otherwise."""

# Libraries, and our module that records their runs.
_OBSERVERS = {
    "langchain_core.runnables": "fineflow.recording.langchain",
    "llama_index.core": "fineflow.recording.llamaindex",
}
_AS_STOCK = "Nothing in it could start earlier, so it ran as stock."
_lock = Lock()
_open = 0
_around: ContextVar[tuple[Any, ...]] = ContextVar("fineflow_recorders", default=())
"""The recorders around a caller."""


class Recorder:
    """The calls that were made while a block was recorded; see ``record``."""

    def __init__(self, calls: int, *, own: bool = False) -> None:
        self._own = own
        self._calls: deque[RecordedCall] = deque(maxlen=calls)
        self._seen = 0
        self._closed: float | None = None

    def __repr__(self) -> str:
        kinds = ["fineflow" if call.optimized else "stock" for call in self._calls]
        return f"<{type(self).__name__}: {kinds.count('stock')} calls of stock, {kinds.count('fineflow')} of fineflow>"

    def __len__(self) -> int:
        """Returns the number of calls that are kept."""
        return len(self._calls)

    def _began(self, call: RecordedCall) -> None:
        if self._own and self not in _around.get():
            return
        self._seen += 1
        self._calls.append(call)

    def timeline(self, *, title: str = "Timeline") -> Timeline:
        """Returns the recorded calls as a timeline: ``.html()``, ``.save(path)``, ``.json()``; notebooks show it.

        A call of an optimized object is below the same call of the object as it is, if that was recorded, too, and is
        compared with it. The object may be planned for this, which calls nothing of it.
        """
        until = now() if self._closed is None else self._closed
        tracks = _tracks(list(self._calls), until)
        dropped = self._seen - len(self._calls)
        remarks = [] if self._calls else ["No call was recorded: call the object inside the block."]
        if dropped:
            remarks.append(f"{dropped} earlier calls were not kept; record(calls=…) keeps more.")
        return Timeline(tracks, title, remarks)

    def _repr_html_(self) -> str:
        return self.timeline()._repr_html_()


@contextmanager
def record(*, calls: int = CALLS, own: bool = False) -> Iterator[Recorder]:
    """Records the calls of LangChain and LlamaIndex objects in the block, optimized or not::

        with fineflow.record() as rec:
            chain.invoke(question)
            fast.invoke(question)
        rec.timeline().save("timeline.html")

    Records all threads and tasks of the process, each outermost call by itself. Of optimized objects it shows when
    engines worked; of others when the framework's own callbacks said that a component began and ended, so a search
    includes the embedding of its query if the framework does not tell them apart. Keeps times and names, no inputs and
    no outputs. Each run inside a call takes about 0.1 ms more, and nothing when no block is open. Libraries have to
    be imported before the block.

    calls: how many are kept, the latest ones; of each call 10,000 steps. own: only calls of the block itself, and of
    tasks and threads that it starts with its context: a server records one request.

    Raises: ValueError if ``calls`` is not positive.
    """
    if calls < 1:
        raise ValueError(f"record(calls=...) expected a positive number, got {calls}")
    recorder = Recorder(calls, own=own)
    token = _around.set((*_around.get(), recorder))
    with _observing(), recording.opened(recorder._began):
        try:
            yield recorder
        finally:
            recorder._closed = now()
            with suppress(ValueError):  # closed in another context, as generators may be
                _around.reset(token)


@contextmanager
def _observing() -> Iterator[None]:
    """Has the frameworks that are imported report their runs during the block."""
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            for observer in _observers():
                observer.begin()
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                for observer in _observers():
                    observer.end()


def _observers() -> list[Any]:
    return [import_module(ours) for library, ours in _OBSERVERS.items() if sys.modules.get(library) is not None]


def _tracks(calls: Sequence[RecordedCall], until: float) -> list[Track]:
    """Returns the tracks, each optimized call behind its stock call."""
    stock = [call for call in calls if not call.optimized]
    pairs = dict(_pairs(stock, [call for call in calls if call.optimized]))
    found: list[Track] = []
    names: dict[str, int] = {}
    for call in calls:
        if call in pairs:
            continue
        first = _track(call, until, names)
        found.append(first)
        found += [replace(_track(ours, until, names), against=first.name) for ours, own in pairs.items() if own is call]
    return found


def _pairs(stock: Sequence[RecordedCall], ours: Sequence[RecordedCall]) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    """Yields optimized calls with the stock call of the same object and method; several in their order."""
    left = list(stock)
    for call in ours:
        same = [other for other in left if other.entry == call.entry and _alike(other, call)]
        if same:
            left.remove(same[0])
            yield call, same[0]


def _alike(one: RecordedCall, other: RecordedCall) -> bool:
    obj = one.obj()
    return (obj is not None and obj is other.obj()) or one.name == other.name


def _track(call: RecordedCall, until: float, names: dict[str, int]) -> Track:
    over = call.ended is not None and call.ended <= until
    ended = call.ended if over and call.ended is not None else until
    told, steps = steps_of(call, ended, plan_for(call))
    path = critical(told, call.began, ended, call.traces)
    name = f"{'fineflow' if call.optimized else 'stock'}: {call.name}.{call.entry}"
    names[name] = names.get(name, 0) + 1
    name = name if names[name] == 1 else f"{name} ({names[name]})"
    remark = _remark(call, len(steps), over=over)
    return Track(name, steps, call.began, ended, path=path, remark=remark, failed=call.failed and over)


def _remark(call: RecordedCall, steps: int, *, over: bool) -> str:
    said = []
    if call.failed and over:
        said.append("It raised an exception.")
    if not over:
        said.append("It had not ended when recording ended.")
    if call.optimized and not call.traces and not any(i.label for i in call.intervals):
        said.append(_AS_STOCK)
    if hidden := call.hidden + sum(root.hidden for root in call.runs if len(root.children) >= 1000):
        said.append(f"Only {steps} of its steps are kept, {hidden} are not.")
    return " ".join(said)
