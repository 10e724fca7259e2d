"""Programs: the calls that a thread or task has made so far, run as one graph when a value is asked for.

The graph runs on the runtime's loop, beside the engines and their queues: a dependent request starts there, in the same
turn in which the text that it needs is complete (Parrot, section 5.1).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from fineflow.adapters.semantic import calls
from fineflow.adapters.semantic.calls import Pending, Variable, cancelled, failed
from fineflow.adapters.semantic.kernels import KERNELS
from fineflow.adapters.semantic.lowering import Shape, planned
from fineflow.adapters.semantic.prompts import Written, as_text
from fineflow.errors import SemanticError
from fineflow.ir import Graph, Op
from fineflow.ir.objectives import LATENCY, THROUGHPUT, TPOT, TTFT
from fineflow.runtime import events, recording
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.executor import Call, Execution, Failed
from fineflow.runtime.call.lifecycle import Admission
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.loop.runtime_loop import current_runtime, on_engine_loop, post, set_done
from fineflow.runtime.loop.submission import RuntimeSubmission
from fineflow.runtime.queues.request_context import query, started

_numbers = itertools.count(1)
_STRICTEST = (THROUGHPUT, LATENCY, TTFT, TPOT)  # a request that several variables need is for the last of these


def ask(variable: Variable, objective: str | None) -> SemanticProgram | None:
    """Submits the program of a variable unless that was done; sets what the variable is wanted for.

    Returns the program; None for a variable that was cancelled before.
    """
    with calls.lock:
        variable._objective = objective or variable._objective
        program: SemanticProgram | None = variable._step.program
        if variable._outcome.done():
            return program
        if program is None:
            program = SemanticProgram(variable._step.pending)
            program.start()
        elif objective is not None:
            program.post(program.deduce)
        return program


def cancel(variable: Variable, *, waited: bool = True) -> None:
    """Cancels what only this variable needs. waited: also if callers wait for it."""
    with calls.lock:
        step = variable._step
        if step.program is not None:
            step.program.post(partial(step.program.give_up, variable, waited))
        elif not variable._outcome.done():
            variable._outcome.set_exception(cancelled(variable._name))
            step.reads = step.reads if step.wanted else {}


class SemanticProgram:
    """One submission: the graph of all pending calls, and the variables that it gives their values."""

    def __init__(self, pending: Pending) -> None:
        """Submits nothing yet; takes the pending calls. Raises what lowering raises, and leaves them pending."""
        steps = pending.steps()
        self.shape = Shape.of(steps)
        self.plan = planned(self.shape)
        self.label, self.began = f"program-{next(_numbers)}", events.now()
        self.objectives: dict[str, str] = {}  # of decodes
        self.skipped: set[str] = set()  # primitives that nothing needs any more
        self.running: dict[str, asyncio.Future[Any]] = {}  # primitives that work
        self._call: Call | None = None
        self._summary: Summary | None = None
        self._variables: dict[str, tuple[weakref.ref[Variable], Future[Any]]] = {}
        self.streams: dict[str, Stream[str]] = {}  # what each variable's request has written so far
        self._given_up: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._execution: Execution | None = None
        for step, places in zip(steps, self.plan.places, strict=True):
            step.program, step.reads = self, {}  # so only their users refer to the variables from now on
            for place, each in zip(places, step.variables, strict=True):
                if (variable := each()) is not None:
                    self._variables[place] = each, variable._outcome
        pending.clear()
        for variable in self.shape.late:
            variable._count(readers=1)

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
        for variable in self.shape.read:  # one application, one query
            if (earlier := variable._step.program) is not None:
                self.label, self.began = earlier.label, earlier.began
                break
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

    def _mark(self) -> None:
        if not query.get():
            query.set(self.label)
            started.set(self.began)

    def post(self, function: Callable[[], object]) -> None:
        """Calls a function on the program's loop."""
        if self._loop is not None:
            post(self._loop, function)

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
        call = Call(loop=loop, kernels=KERNELS, entry="get", sync=False, context=context, label=self.label, facts=self)
        over: asyncio.Future[None] = loop.create_future()
        plan, shape = self.plan, self.shape
        given = {name: value for name, value in zip(plan.given, shape.given, strict=True) if name}
        late = [name for name in plan.late if name]
        execution = Execution(plan.e_graph, call, given, lambda _: set_done(over), late=late)
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
        stream = self.streams.get(place)
        if isinstance(value, Failed):
            error = self._error(place, value.error)
            outcome.set_exception(error)
            if stream is not None:
                stream.close(error)
            return
        outcome.set_result(str(value) if isinstance(value, str) else value)
        if stream is not None:
            if not isinstance(value, Written):  # which it has written piece by piece
                stream.put(as_text(value))
            stream.close()

    async def pieces(self, variable: Variable) -> AsyncGenerator[str, None]:
        """Yields the text of a variable while it is written, without white space around it."""
        place = next((place for place, (ref, _) in self._variables.items() if ref() is variable), None)
        if place is None or variable._outcome.done():
            yield as_text(variable._outcome.result())
            return
        held = None  # white space that is only part of the value if text follows
        async for piece in self.streams.setdefault(place, Stream()).read():
            text = piece.lstrip() if held is None else held + piece
            found = text.rstrip()
            held = text[len(found) :] if held is not None or found else None
            if found:
                yield found

    def _error(self, place: str, error: BaseException) -> SemanticError:
        name = self._name(place)
        if not isinstance(error, SemanticError):
            return failed(name, error)
        if error.name == name:
            return error
        made = SemanticError(name, error.reason)
        made.__cause__ = error.__cause__
        return made

    @staticmethod
    def _name(place: str) -> str:
        return place.removesuffix(".decode")

    def _over(self, error: BaseException | None) -> None:
        """Ends the program, however it ended: no variable waits for ever."""
        for variable in self.shape.late:
            variable._count(readers=-1)
        for place, (_, outcome) in self._variables.items():
            if not outcome.done():
                with suppress(Exception):  # it was set meanwhile
                    if error is None or isinstance(error, asyncio.CancelledError):
                        outcome.set_exception(cancelled(self._name(place)))
                    else:
                        outcome.set_exception(self._error(place, error))
        for stream in self.streams.values():
            stream.close(cancelled("it"))  # does nothing to those that are closed
        self.streams.clear()
        self._variables.clear()  # a variable that somebody keeps must not keep the values of the others
        self.shape.clear()

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

    def give_up(self, variable: Variable, waited: bool) -> None:
        """Cancels the work that only this variable needs. waited: also if callers wait for it.

        Does nothing while a later program reads it.
        """
        if variable._outcome.done() or variable._readers or (variable._waits and not waited):
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
        """Raises SemanticError if nothing needs the primitive ``name`` any more."""
        if name in self.skipped:
            raise cancelled(self._name(name))


def _stricter(one: str | None, other: str) -> str:
    return other if one is None else max(one, other, key=_STRICTEST.index)


_tasks: set[asyncio.Task[Any]] = set()  # on loops in virtual time, which hold their tasks weakly
