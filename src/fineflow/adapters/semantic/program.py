"""Programs: the calls that a thread or task has made so far, run as one graph when a value is asked for.

The graph runs on the runtime's loop, beside the engines and their queues: a dependent request starts there, in the same
turn in which the text that it needs is complete (Parrot, section 5.1).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fineflow.adapters.semantic.variables import SemanticVariable, Step
from fineflow.errors import SemanticError
from fineflow.ir import Graph, Op
from fineflow.ir.objectives import LATENCY, THROUGHPUT, TPOT, TTFT
from fineflow.runtime import events, recording
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.executor import Call, Execution, Failed
from fineflow.runtime.call.lifecycle import Admission
from fineflow.runtime.loop.runtime_loop import current_runtime, on_engine_loop
from fineflow.runtime.loop.submission import RuntimeSubmission
from fineflow.runtime.queues.request_context import query, started

if TYPE_CHECKING:
    from fineflow.adapters.semantic.lowering import Plan, Shape

_numbers = itertools.count(1)
_lock = threading.RLock()  # of everything that is not submitted yet
_STRICTEST = (THROUGHPUT, LATENCY, TTFT, TPOT)  # a request that several variables need is for the last of these


class Pending:
    """Calls of one thread or task that have not been submitted. Those whose variables nobody refers to are dropped."""

    def __init__(self) -> None:
        self._steps: list[weakref.ref[Step]] = []

    def add(self, step: Step) -> None:
        """Adds a call; its inputs were made before it."""
        step.pending = self
        with _lock:
            self._steps = [each for each in self._steps if each() is not None]
            self._steps.append(weakref.ref(step))

    def steps(self) -> list[Step]:
        """Returns the calls that are still wanted, in program order, after those of other threads that they read."""
        with _lock:
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


def _variables(values: Iterable[Any]) -> Iterator[SemanticVariable]:
    for value in values:
        if isinstance(value, SemanticVariable):
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


def ask(variable: SemanticVariable, objective: str | None) -> None:
    """Submits the program of a variable unless that was done; sets what the variable is wanted for."""
    with _lock:
        variable._objective = objective or variable._objective
        program = variable._step.program
        if program is None:
            SemanticProgram(variable._step.pending).start()
        elif objective is not None:
            program.post(program.deduce)


def cancel(variable: SemanticVariable) -> None:
    """Cancels what only this variable needs."""
    with _lock:
        program = variable._step.program
        if program is None:
            if not variable.done():
                variable._outcome.set_exception(_cancelled(variable.name))
        else:
            program.post(partial(program.give_up, variable))


def _cancelled(name: str) -> SemanticError:
    return SemanticError(f"{name} was cancelled: whoever waited for it has stopped, and nothing else needs it")


class SemanticProgram:
    """One submission: the graph of all pending calls, and the variables that it gives their values."""

    def __init__(self, pending: Pending) -> None:
        """Submits nothing yet; takes the pending calls. Raises what lowering raises, and leaves them pending."""
        from fineflow.adapters.semantic.lowering import Shape, planned

        steps = pending.steps()
        self.shape: Shape = Shape.of(steps)
        self.plan: Plan = planned(self.shape)
        self.label, self.began = f"program-{next(_numbers)}", events.now()
        self.objectives: dict[str, str] = {}  # of decodes
        self.skipped: set[str] = set()  # primitives that nothing needs any more
        self.running: dict[str, asyncio.Future[Any]] = {}  # primitives that work
        self._call: Call | None = None
        self._summary: Summary | None = None
        self._variables: dict[str, tuple[weakref.ref[SemanticVariable], Future[Any]]] = {}
        self._given_up: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._execution: Execution | None = None
        for step, places in zip(steps, self.plan.places, strict=True):
            step.program = self
            for place, each in zip(places, step.variables, strict=True):
                if (variable := each()) is not None:
                    self._variables[place] = each, variable._outcome
        pending.clear()
        for variable in self.shape.late:
            variable._count(1)

    def __repr__(self) -> str:
        return f"<SemanticProgram {self.label}: {len(self._variables)} variables>"

    @property
    def graph(self) -> Graph:
        return self.plan.e_graph

    def summary(self) -> Summary | None:
        """Returns the figures of the program, so far if it has not ended; None before it begins."""
        call = self._call
        return self._summary if call is None else call.summary()

    def start(self) -> None:
        """Starts the program on the loop of the engines, in a copy of the current context."""
        context = contextvars.copy_context()
        if earlier := next((each for each in self._read() if each.label), None):  # one application, one query
            self.label, self.began = earlier.label, earlier.began
        context.run(self._mark)
        if on_engine_loop():
            self._loop = loop = asyncio.get_running_loop()
            task = loop.create_task(self._run(), context=context)
            task.add_done_callback(lambda done: self._over(None if done.cancelled() else done.exception()))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
        else:
            self._loop = current_runtime().loop
            work = RuntimeSubmission(self._run, context)
            work.outcome.add_done_callback(lambda done: self._over(done.exception()))
            work.start()

    def _read(self) -> Iterator[SemanticProgram]:
        """Yields the earlier programs whose variables this one reads."""
        for variable in self.shape.late:
            if (program := variable._step.program) is not None:
                yield program

    def _mark(self) -> None:
        if not query.get():
            query.set(self.label)
            started.set(self.began)

    def post(self, function: Callable[[], object]) -> None:
        """Calls a function on the program's loop."""
        with suppress(RuntimeError):  # it is closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)

    # On the loop.

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        record = recording.call(self, "get") if recording.due() else nullcontext()
        with record:
            async with Admission() as admission:
                await self._executed(admission)

    async def _executed(self, admission: Admission) -> None:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        context.run(admission.apply)
        call = Call(
            loop=loop, kernels=_kernels(), entry="get", sync=False, context=context, label=self.label, facts=self
        )
        over: asyncio.Future[Any] = loop.create_future()
        plan, shape = self.plan, self.shape
        given = {name: value for name, value in zip(plan.given, shape.given, strict=True) if name}

        def end(_: object) -> None:
            if not over.done():
                over.set_result(None)

        execution = Execution(plan.e_graph, call, given, end, late=[name for name in plan.late if name])
        self._call, self._execution = call, execution
        self.deduce()
        for place in self._variables:
            execution.ended(place, partial(self._hand_over, place))
        try:
            execution.start()
            for name, variable in zip(plan.late, shape.late, strict=True):
                variable._outcome.add_done_callback(partial(self._arrived, name))
            await over
        finally:
            summary = self._summary = await call.aclose()
            self._call = self._execution = None
            if recording.recorders:
                recording.ended(self, plan.p_graph, summary)

    def _arrived(self, name: str, outcome: Future[Any]) -> None:
        """Hands a value of an earlier program to the graph. Called on any thread."""
        error = outcome.exception()
        self.post(partial(self._give, name, outcome.result() if error is None else Failed(error)))

    def _give(self, name: str, value: Any) -> None:
        if self._execution is not None:
            self._execution.give(name, value)

    def _hand_over(self, place: str) -> None:
        """Gives a variable its value, or the error that names what failed."""
        assert self._execution is not None
        value, outcome = self._execution.values[place], self._variables[place][1]
        if outcome.done():
            return
        if isinstance(value, Failed):
            outcome.set_exception(self._error(place, value.error))
        else:
            outcome.set_result(str(value) if isinstance(value, str) else value)

    def _error(self, place: str, error: BaseException) -> SemanticError:
        if isinstance(error, SemanticError):  # of another variable, or of a program before
            made = SemanticError(str(error))
            made.__cause__ = error.__cause__
            return made
        name = self._name(place)
        made = SemanticError(f"{name} failed: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made

    def _name(self, place: str) -> str:
        return place.removesuffix(".decode")

    def _over(self, error: BaseException | None) -> None:
        """Ends the program, however it ended: no variable waits for ever."""
        for variable in self.shape.late:
            variable._count(-1)
        for place, (_, outcome) in self._variables.items():
            if not outcome.done():
                with suppress(Exception):  # it was set meanwhile
                    if error is None or isinstance(error, asyncio.CancelledError):
                        outcome.set_exception(_cancelled(self._name(place)))
                    else:
                        outcome.set_exception(self._error(place, error))

    # Objectives and cancellation: what each variable needs is in the graph.

    def deduce(self) -> None:
        """Gives every request the strictest objective of the variables that need it (Parrot, section 5.2).

        In reverse topological order. Requests that run already keep theirs.
        """
        needed: dict[str, str] = {}
        for p in reversed(self.graph.primitives):
            found = self._variables.get(p.name)
            variable = found[0]() if found is not None else None
            if variable is not None and variable._objective is not None:
                needed[p.name] = _stricter(needed.get(p.name), variable._objective)
            if p.name in needed:
                for ref in p.args.values():
                    needed[ref.name] = _stricter(needed.get(ref.name), needed[p.name])
        self.objectives.update(needed)

    def give_up(self, variable: SemanticVariable) -> None:
        """Cancels the work that only this variable needs. Does nothing while a caller waits for it."""
        if variable._outcome.done() or variable._waits:
            return
        self._given_up.update(place for place, (ref, _) in self._variables.items() if ref() is variable)
        wanted = {place for place, (ref, _) in self._variables.items() if ref() is not None} - self._given_up
        wanted -= {place for place, (_, outcome) in self._variables.items() if outcome.done()}
        if not wanted and self._task is not None:
            self._task.cancel()
            return
        for p in reversed(self.graph.primitives):
            if p.name in wanted:
                wanted.update(ref.name for ref in p.args.values())
        self.skipped.update(p.name for p in self.graph if p.name not in wanted and p.op is not Op.RECORD)
        for name, work in list(self.running.items()):
            if name in self.skipped:
                asyncio.get_running_loop().call_soon(work.cancel)  # after its first step, which can then tell

    def check(self, name: str) -> None:
        """Raises SemanticError if nothing needs a primitive any more."""
        if name in self.skipped:
            raise _cancelled(self._name(name))


def _stricter(one: str | None, other: str) -> str:
    return other if one is None else max(one, other, key=_STRICTEST.index)


_tasks: set[asyncio.Task[Any]] = set()  # on loops in virtual time, which hold their tasks weakly


def _kernels() -> Any:
    from fineflow.adapters.semantic.kernels import KERNELS

    return KERNELS
