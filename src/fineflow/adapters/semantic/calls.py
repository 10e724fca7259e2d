"""Calls of semantic functions before they are submitted, and the state of variables."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fineflow.adapters.semantic.prompts import Prompt
from fineflow.adapters.semantic.transforms import Transform
from fineflow.errors import SemanticError
from fineflow.runtime.loop.forks import in_forked_children

lock = threading.RLock()
"""Lock of everything that is not submitted yet."""

_counting = threading.Lock()


@in_forked_children
def _forget() -> None:
    # In a forked child the threads that may hold the locks do not exist.
    global lock, _counting
    lock, _counting = threading.RLock(), threading.Lock()


class Variable:
    """State of a semantic variable. waits: callers that wait for it. readers: later programs that read it."""

    def __init__(self, name: str, step: Step) -> None:
        self._name = name
        self._step = step
        self._outcome: Future[Any] = Future()
        self._objective: str | None = None
        self._waits = 0
        self._readers = 0

    def _count(self, *, waits: int = 0, readers: int = 0) -> None:
        with _counting:
            self._waits += waits
            self._readers += readers


@dataclass(eq=False, slots=True, weakref_slot=True)
class Step:
    """What writes variables: a call of a semantic function, or a transform of a value.

    does: the prompt of the function, or the transform. reads: values, variables, and lists of both, by parameter; empty
    once it is submitted, so that only their users refer to the variables then. variables: of its outputs, in order, as
    far as somebody refers to them. program: what it was submitted with (a ``program.SemanticProgram``), or None.
    """

    does: Prompt | Transform
    reads: Mapping[str, Any]
    pending: Pending
    variables: Sequence[weakref.ref[Variable]] = ()
    program: Any = field(default=None, repr=False)

    @property
    def wanted(self) -> bool:
        """True while somebody refers to one of its variables and has not cancelled it."""
        found = [each() for each in self.variables]
        return any(variable is not None and not variable._outcome.done() for variable in found)


class Pending:
    """Calls of one thread or task that have not been submitted. Those whose variables nobody refers to are dropped."""

    def __init__(self) -> None:
        self._steps: list[weakref.ref[Step]] = []

    def add(self, step: Step) -> None:
        """Adds a call; its inputs were made before it."""
        with lock:
            self._steps = [each for each in self._steps if each() is not None]
            self._steps.append(weakref.ref(step))

    def steps(self) -> list[Step]:
        """Returns the calls that are still wanted, in program order, after those of other threads that they read."""
        with lock:
            found = [step for each in self._steps if (step := each()) is not None and step.wanted]
            return list(dict.fromkeys(each for step in found for each in _unsubmitted(step)))

    def clear(self) -> None:
        """Forgets the calls: they are submitted."""
        self._steps = []


def _unsubmitted(step: Step) -> Iterator[Step]:
    """Yields the calls that a call reads and that are not submitted, then itself."""
    if step.program is None:
        for variable in _variables(step.reads.values()):
            yield from _unsubmitted(variable._step)
        yield step


def _variables(values: Iterable[Any]) -> Iterator[Variable]:
    for value in values:
        if isinstance(value, Variable):
            yield value
        elif isinstance(value, list | tuple):
            yield from _variables(value)


class _Local(threading.local):
    def __init__(self) -> None:
        self.pending = Pending()


_of_thread = _Local()
_of_task: weakref.WeakKeyDictionary[asyncio.Task[Any], Pending] = weakref.WeakKeyDictionary()


def pending() -> Pending:
    """Returns the pending calls of the current task, or of the thread if no event loop runs in it."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return _of_thread.pending if task is None else _of_task.setdefault(task, Pending())


def cancelled(name: str) -> SemanticError:
    """Returns the error of a request that nothing needs any more."""
    return SemanticError(name, f"{name} was cancelled: whoever waited for it has stopped, and nothing else needs it")


def failed(name: str, error: BaseException) -> SemanticError:
    """Returns the error of the request or transform ``name`` that raised another one."""
    made = SemanticError(name, f"{name} failed: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
