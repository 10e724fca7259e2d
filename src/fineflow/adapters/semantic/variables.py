"""Semantic variables: values that requests are going to write, as futures (Parrot, section 4.1)."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager, suppress
from time import monotonic
from typing import Any, Self, cast

from fineflow.adapters.semantic import transforms
from fineflow.adapters.semantic.calls import Step, Variable, pending
from fineflow.adapters.semantic.explaining import explained
from fineflow.adapters.semantic.program import SemanticProgram, ask, cancel
from fineflow.explanation import Explanation
from fineflow.ir.objectives import wrong_objective
from fineflow.runtime.loop import scopes
from fineflow.runtime.loop.interpreter_exit import silent_at_exit
from fineflow.runtime.loop.iteration import iterate_async, iterate_sync
from fineflow.runtime.loop.runtime_loop import refuse_blocking
from fineflow.runtime.loop.submission import POLL_SECONDS, done_with


class SemanticVariable(Variable):
    """A value that is going to be there: an output of a semantic function, or a transform of one.

    Pass it to other semantic functions, which then wait for it in the runtime rather than here; ``get`` it, or await
    it, where your own code needs the value. Nothing runs before the first variable of a program is asked for (or
    ``start`` is called); then every call that was made so far in this thread or task, and whose variables somebody
    still refers to, starts as soon as its inputs are there. Thread-safe.
    """

    def __repr__(self) -> str:
        if not self._outcome.done():
            state = "pending" if self._step.program is None else "running"
        else:
            state = "failed" if self._outcome.exception() is not None else "done"
        return f"<SemanticVariable {self._name}: {state}>"

    def __str__(self) -> str:
        """Raises TypeError: a variable in an f-string would be its name, not its value."""
        raise TypeError(f"{self._name} is a variable whose value may not be there yet; call get(), or pass it as it is")

    @property
    def name(self) -> str:
        """Names of the function and of its output, and of transforms: ``write_code.code.regex``."""
        return self._name

    def done(self) -> bool:
        """Returns True if it has a value, has failed, or was cancelled."""
        return self._outcome.done()

    def start(self, *, objective: str | None = None) -> Self:
        """Starts the program without waiting. objective: see ``get``. Returns the variable."""
        self._asked(objective)
        return self

    def get(self, *, objective: str | None = None, timeout: float | None = None) -> Any:
        """Blocks until the value is there, and returns it: a text without white space around it, or what a transform
        returned.

        objective: what it is wanted for (``"latency"``, ``"throughput"``, ``"ttft"``, ``"tpot"``; see
        ``fineflow.identity``); counts for every request that it depends on and that has not begun. timeout: seconds.

        Raises: SemanticError if a request or transform that it depends on failed, naming that; its cause is the
        exception. TimeoutError after ``timeout``, or CancelledError if the call around it was stopped: requests that
        nothing else needs are cancelled. ValueError for an unknown objective; RuntimeError on the runtime's own thread.
        """
        refuse_blocking("SemanticVariable.get", "SemanticVariable.aget")
        scopes.check()
        self._asked(objective)
        until = None if timeout is None else monotonic() + timeout
        with silent_at_exit, self._waiting():
            while not self._outcome.done():
                scopes.check()
                left = POLL_SECONDS if until is None else min(until - monotonic(), POLL_SECONDS)
                if left <= 0:
                    raise self._late(timeout)
                with suppress(TimeoutError):
                    self._outcome.exception(left)
            scopes.check()
        return self._outcome.result()

    async def aget(self, *, objective: str | None = None, timeout: float | None = None) -> Any:
        """``get`` for coroutines, on any event loop. ``await variable`` does the same.

        Cancelling it cancels requests that nothing else needs.
        """
        scopes.check()
        self._asked(objective)
        done = done_with(self._outcome)
        with self._waiting():
            try:
                async with asyncio.timeout(timeout):
                    await done
            except TimeoutError:
                raise self._late(timeout) from None
        return self._outcome.result()

    def stream(self, *, objective: str | None = None) -> Iterator[str]:
        """Yields the text while it is written; together the pieces are the value. What is no text comes as a whole.

        Closing it early cancels requests that nothing else needs. Raises what ``get`` raises.
        """
        refuse_blocking("SemanticVariable.stream", "SemanticVariable.astream")
        scopes.check()
        program = self._asked(objective)
        with self._waiting():
            if program is None:
                self._outcome.result()
            else:
                yield from iterate_sync(lambda: program.pieces(self))

    async def astream(self, *, objective: str | None = None) -> AsyncGenerator[str, None]:
        """``stream`` for coroutines, on any event loop."""
        scopes.check()
        program = self._asked(objective)
        with self._waiting():
            if program is None:
                self._outcome.result()
                return
            async with aclosing(cast(Any, iterate_async(lambda: program.pieces(self)))) as pieces:
                async for piece in pieces:
                    yield piece

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aget().__await__()

    def cancel(self) -> None:
        """Cancels the requests that this value needs and no other variable does. Does not wait for their end."""
        cancel(self)

    # Transforms.

    def regex(self, pattern: str | re.Pattern[str], group: int | str | None = None, flags: int = 0) -> SemanticVariable:
        """Returns a variable for what a regular expression finds first in the text.

        group: default the first one, or all of the match if there is none. Raises: ValueError for a pattern that is
        not valid, or without that group.
        """
        return self._through(transforms.regex(pattern, group, flags))

    def json(self, path: str = "") -> SemanticVariable:
        """Returns a variable for a part of the JSON in the text: ``steps[0].title``, ``items[*].name``; "": all of it.

        Takes JSON in a code fence or with text around it, too. Raises: ValueError for another form of path.
        """
        list(transforms.steps(path))
        return self._through(transforms.JsonPath(path))

    def parse(self, parser: Any) -> SemanticVariable:
        """Returns a variable for what an output parser (``parse(text)``) or a pydantic model class makes of the text.

        Raises: TypeError for another object.
        """
        return self._through(transforms.parsed(parser))

    def map(self, function: Callable[[Any], Any]) -> SemanticVariable:
        """Returns a variable for what a function makes of the value. It runs once, in a worker thread.

        Raises: TypeError for what is no function.
        """
        if not callable(function):
            raise TypeError(f"{self._name}.map expected a function of the value, got {function!r}")
        return self._through(transforms.Function(function))

    def _through(self, transform: transforms.Transform) -> SemanticVariable:
        step = Step(transform, {"value": self}, pending())
        made = SemanticVariable(f"{self._name}.{transform.name}", step)
        step.variables = (weakref.ref(made),)
        step.pending.add(step)
        return made

    # Waiting.

    def _asked(self, objective: str | None) -> SemanticProgram | None:
        if wrong := wrong_objective(objective):
            raise ValueError(f"{self._name}.get(objective=...) is {wrong}")
        return ask(self, objective)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts a caller that waits. One that leaves early, or is stopped, cancels what nobody else needs."""
        stays = [self]

        def leave() -> None:
            with suppress(IndexError):
                stays.pop()._count(waits=-1)
                if not self._outcome.done():
                    cancel(self, waited=False)

        self._count(waits=1)
        try:
            with scopes.on_stop(leave):
                yield
        finally:
            leave()

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"{self._name} was not there within {timeout:g} s; requests that nothing else needs were cancelled"
        )

    def __fineflow_explain__(self, last_run: bool) -> Explanation:
        return explained(self, last_run=last_run)
