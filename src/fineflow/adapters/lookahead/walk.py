"""One walk through a function: its budget, what it created, and the state that all its frames share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.adapters.analysis.tables import is_plain
from fineflow.adapters.lookahead.values import UNKNOWN, Awaited, Host, Local, Stop

_STEPS = 20_000  # instructions of one walk: some 20 ms
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
        self._own: dict[int, Any] = {}  # containers that the walk created, by id
        self._tainted: set[int] = set()  # those of them that the function may have changed by now

    def run(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Walks through ``func(*args, **named)``. Never raises: what it does not understand ends it."""
        from fineflow.adapters.lookahead.calls import call

        try:
            call(self, func, list(args), dict(named))
        except Stop as why:
            self.reason = str(why)
        except RecursionError:
            self.reason = "is nested too deeply"
        except Exception as error:  # stock will meet it, or the user's thread changes what is being read
            self.reason = f"raises {type(error).__name__}"

    def spend(self) -> None:
        """Counts one instruction. Raises Stop when the budget is spent."""
        self._steps -= 1
        if self._steps < 0:
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

    def taint(self, value: Any) -> None:
        """Notes that a container may have any content from now on. Raises Stop if the walk has not created it."""
        if not self.owns(value):
            raise Stop("may change an object that it was given")
        self._tainted.add(id(value))

    def known(self, value: Any) -> bool:
        """Returns True if nothing in a value is unknown. Only the walk's own containers can hold unknown values."""
        if value is UNKNOWN:
            return False
        if not self.owns(value):
            return True
        if id(value) in self._tainted:
            return False
        if type(value) is dict:
            return all(map(self.known, value)) and all(map(self.known, value.values()))
        return type(value) not in _CONTAINERS or all(map(self.known, value))

    def whole(self, value: Any) -> bool:
        """Returns True if a container's length and order are known, if not its elements."""
        return value is not UNKNOWN and id(value) not in self._tainted

    def plain(self, value: Any) -> bool:
        """Returns True for known plain data, on which operators and builtins run no user code."""
        return type(value) in _SCALARS or (self.known(value) and is_plain(value))

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
