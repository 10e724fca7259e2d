"""One walk through a function: its budget, what it created, and the state that all its frames share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.adapters.analysis.tables import is_plain
from fineflow.adapters.lookahead.values import UNKNOWN, Awaited, Cell, Host, Local, Method, Stop

_STEPS = 20_000  # instructions of one walk
_SECONDS = 0.05  # of processor time of one walk
_DEPTH = 12  # calls inside calls
_CONTAINERS = frozenset({list, tuple, dict, set})
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # flags of code objects
_SCALARS = frozenset({str, int, float, complex, bool, bytes, type(None)})


class Walk:
    """A walk through one call of a user function. Not thread-safe; walks of one call are made one after the other.

    host: the framework's side, which learns of every component call. reason: why the walk ended early, if it did.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.reason = ""
        self.unsure = 0  # branches entered that the function may not take
        self._steps = _STEPS
        self._depth = 0
        self._until = 0.0
        self._own: dict[int, Any] = {}  # containers that the walk created, by id
        self._given: dict[int, Any] = {}  # containers of data that the function was given
        self._tainted: dict[int, Any] = {}  # containers that the function may have changed by now
        self._outside = False  # some of these are not the walk's own

    def run(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Walks through ``func(*args, **named)``. Never raises: what it does not understand ends it."""
        from fineflow.adapters.lookahead import frame  # noqa: F401  (imported before the clock starts)
        from fineflow.adapters.lookahead.calls import call

        self._until = time.thread_time() + _SECONDS
        for each in (*args, *named.values()):
            self.given(each)
        try:
            call(self, func, list(args), dict(named))
        except Stop as why:
            self.reason = str(why)
        except RecursionError:
            self.reason = "is nested too deeply"
        except Exception as error:  # stock will meet it, or the user's thread changes what is being read
            self.reason = f"raises {type(error).__name__}"

    def spend(self, steps: int = 1) -> None:
        """Counts instructions, or work that takes as long. Raises Stop when the budget is spent."""
        self._steps -= steps
        late = not self._steps & 255 and time.thread_time() > self._until
        if self._steps < 0 or late:
            raise Stop("is too long to be looked through")

    def enter(self, func: Local, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Walks through a call of a Python function; returns what it returns."""
        from fineflow.adapters.lookahead.frame import Frame, arguments

        flags = func.code.co_flags
        if flags & _ASYNC_GENERATOR or (flags & _GENERATOR and func.code.co_name != "<genexpr>"):
            raise Stop("calls a generator function")
        self._depth += 1
        if self._depth > _DEPTH:
            raise Stop("calls functions that are nested too deeply")
        try:
            frame = Frame(self, func.code, func.owner, dict(zip(func.code.co_freevars, func.cells, strict=True)))
            if flags & _GENERATOR:
                frame.yielded = self.own([])
            value = frame.run(arguments(self, func, args, named))
        finally:
            self._depth -= 1
        if flags & _GENERATOR:
            return frame.yielded
        return Awaited(value) if flags & _COROUTINE else value

    # --- values -----------------------------------------------------------------------------------------------------

    def own(self, value: Any) -> Any:
        """Registers a container that the walk has created, and returns it."""
        self._own[id(value)] = value
        return value

    def owns(self, value: Any) -> bool:
        """Returns True for a container that the walk has created."""
        return self._own.get(id(value)) is value

    def given(self, value: Any) -> Any:
        """Registers a container of data that the function was given, or that is part of a document; returns it.

        The function may change it: that touches no component. Other containers may be part of one.
        """
        if type(value) in (list, dict):
            self._given[id(value)] = value
        return value

    def taint(self, value: Any) -> None:
        """Notes that a container may have any content from now on. Raises Stop if a component may hold it."""
        if not self.owns(value):
            if self._given.get(id(value)) is not value:
                raise Stop("may change an object that it was given")
            self._outside = True
        self._tainted[id(value)] = value

    def known(self, value: Any) -> bool:
        """Returns True if nothing in a value is unknown. Only the walk's own containers can hold unknown values."""
        if value is UNKNOWN or id(value) in self._tainted:
            return False
        if type(value) not in _CONTAINERS or not self.owns(value):
            return not self._outside or not self._touched(value)
        self.spend(len(value) if type(value) in _CONTAINERS else 1)
        if type(value) is dict:
            return all(map(self.known, value)) and all(map(self.known, value.values()))
        return all(map(self.known, value))

    def _touched(self, value: Any) -> bool:
        """Returns True if something in a value may have been changed."""
        todo = [value]
        while todo:
            part = todo.pop()
            self.spend()
            if id(part) in self._tainted:
                return True
            if type(part) is dict:
                todo += part.values()
            elif type(part) in _CONTAINERS:
                todo += part
            elif type(part) not in _SCALARS and isinstance(getattr(part, "__dict__", None), dict):
                todo += vars(part).values()
        return False

    def real(self, value: Any) -> bool:
        """Returns True if stock can meet an equal value: it contains no function that only this walk has defined."""
        if isinstance(value, Local | Method | Awaited | Cell):
            return False
        if type(value) is dict:
            return all(map(self.real, value.values()))
        return type(value) not in _CONTAINERS or not self.owns(value) or all(map(self.real, value))

    def whole(self, value: Any) -> bool:
        """Returns True if a container's length and order are known, if not its elements."""
        return value is not UNKNOWN and id(value) not in self._tainted

    def plain(self, value: Any) -> bool:
        """Returns True for known plain data, on which operators and builtins run no user code."""
        if type(value) in _SCALARS:
            return True
        self.spend(len(value) if type(value) in _CONTAINERS else 1)
        return self.known(value) and is_plain(value)

    def copied(self, value: Any) -> Any:
        """Returns a value with the walk's own containers copied: the walk may change them later."""
        if not self.owns(value):
            return value
        if type(value) is dict:
            return {self.copied(key): self.copied(part) for key, part in value.items()}
        return type(value)(map(self.copied, value)) if type(value) in _CONTAINERS else value

    def truth(self, value: Any) -> bool:
        """Returns the truth of a known value. Raises Stop if finding out would run code."""
        kind = type(value)
        if kind in _SCALARS or kind in _CONTAINERS or kind is frozenset:
            return bool(value)
        if any("__bool__" in vars(base) or "__len__" in vars(base) for base in kind.__mro__):
            raise Stop(f"tests the truth of a {kind.__name__}")
        return True
