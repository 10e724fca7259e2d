"""One walk through a function: its budget, what it created, and the state that all its frames share."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import wrapt

from fineflow.adapters.analysis.tables import is_plain
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.lookahead.aliases import Aliases, compared, has_code, special_of
from fineflow.adapters.lookahead.calls import call
from fineflow.adapters.lookahead.frame import Frame, arguments
from fineflow.adapters.lookahead.iteration import Generator
from fineflow.adapters.lookahead.past import AlreadyChanged, Changes, Past
from fineflow.adapters.lookahead.reachable import attributes_of
from fineflow.adapters.lookahead.stopwatch import Stopwatch
from fineflow.adapters.lookahead.tasks import Tasks
from fineflow.adapters.lookahead.tries import Tries
from fineflow.adapters.lookahead.values import (
    HELD,
    INERT,
    MET,
    NULL,
    SCALARS,
    STAND_INS,
    UNKNOWN,
    Awaited,
    Coroutine,
    Host,
    Lazy,
    Local,
    Method,
    Partial,
    Progress,
    Stop,
    Unknown,
    unknown,
)
from fineflow.adapters.python.graph import only_yields

_STEPS = 20_000  # instructions of one walk
_SECONDS = 0.05  # of processor time of one walk
_CONTAINERS = frozenset({list, tuple, dict, set})
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # flags of code objects
_NEVER_KNOWN = Lazy | Progress | Coroutine
_FUNCTIONS = (Local, Method, Partial, Lazy, Coroutine, Awaited, FunctionType, MethodType, BuiltinFunctionType, partial)


class Walk:
    """A walk through one call of a user function. Not thread-safe; walks of one call are made one after the other.

    host: the framework's side, which learns of every component call. reason: why the walk ended early, if it did.
    where: file and line of that. value: what the function returns, if the walk got through. left: instructions that it
    may still take. depth: of the calls that it is in. asked: how often the caller of a generator function has asked
    for more; -1 for other functions. paused: the walk ended where the caller has not asked for more yet. took: in
    seconds of processor time.
    """

    asked, paused = -1, False
    in_context = True  # the walk runs in the context of the function
    call = call  # for modules that ``calls`` imports

    def __init__(self, host: Host, past: Past | None = None) -> None:
        self.host = host
        self.past = past or Past()
        self.stale = False  # the walk has met a change that stock may have made already
        self.reason = self.where = ""
        self.value: Any = UNKNOWN
        self.beside = False  # the walk has met calls that only stock can start, in threads of its own
        self.unsure = 0  # branches entered that the function may not take
        self.left = _STEPS
        self.depth = 0
        self.took = 0.0
        self._watch: Stopwatch | None = None  # while it runs
        self._own: dict[int, Any] = {}  # containers that the walk created, by id
        self._doubts: dict[int, int] = {}  # ``unsure`` when it created one of these, or an object, by id; 0 is left out
        self._objects: dict[int, Any] = {}  # objects of the user's classes that the walk created, by id
        self.kinds = set[type]()  # classes of packages and of the user's that the walk has met
        self.aliases = Aliases(self)
        self.tries = Tries(self)
        self.tasks = Tasks(self)
        self.changes = Changes(self, self.past)
        self._tainted = self.changes.tainted
        self._fixed: dict[int, Any] = {}  # containers that the function may not change, by id

    def run(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Walks through ``func(*args, **named)``. Never raises: what it does not understand ends it."""
        self._watch = Stopwatch()
        for each in (*args, *named.values()):
            self.changes.given(each)
        try:
            self.value = self.awaited(self.call(func, list(args), dict(named)), optional=True)
        except Stop as why:
            self.reason, self.where, self.stale = str(why), why.where, isinstance(why, AlreadyChanged)
        except RecursionError:
            self.reason = "is nested too deeply"
        except Exception as error:  # stock will meet it, or the user's thread changes what is being read
            self.reason = f"raises {type(error).__name__}"
        finally:
            self.took, self._watch = self._watch.stop(), None
        self.past.first = False

    def leave(self) -> None:
        """Lets go of the host, which keeps its last walk: what refers to each other stays until Python looks for it."""
        self.tasks.leave()
        self.changes.leave()
        del self.host, self.aliases, self.tries

    @property
    def steps(self) -> int:
        """Instructions of the walk so far."""
        return _STEPS - self.left

    def spend(self, steps: int = 1) -> None:
        """Counts instructions, or work that takes as long. Raises Stop when the budget is spent."""
        self.left -= steps
        looks = steps > 255 or not self.left & 255
        late = looks and self._watch is not None and self._watch.seconds > _SECONDS
        if self.left < 0 or late:
            raise Stop("is too long to be looked through")

    def enter(self, func: Local, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Walks through a call of a Python function; returns what it returns."""
        flags = func.code.co_flags
        streams = flags & _ASYNC_GENERATOR or (flags & _GENERATOR and func.code.co_name != "<genexpr>")
        if streams and (self.depth or self.asked < 0):
            if not only_yields(func.code):
                raise Stop("calls a generator function")
            streams = False
        if flags & _COROUTINE:  # which may be walked through more than once
            names = arguments(self, func, args, named)
            return Coroutine(lambda: self._frame(func).run(dict(names)), self.unsure)
        frame = self.frame(func, args, named)
        frame.streams = bool(streams)
        return Generator(frame) if flags & _GENERATOR and not streams else frame.run(frame.names)

    def frame(self, func: Local, args: Sequence[Any], named: Mapping[str, Any]) -> Frame:
        """Returns a call of a function, at its beginning. Raises Stop if the arguments do not fit."""
        names = arguments(self, func, args, named)
        made = self._frame(func)
        made.names = names
        return made

    def _frame(self, func: Local) -> Frame:
        return Frame(self, func.code, func.owner, dict(zip(func.code.co_freevars, func.cells, strict=True)))

    def awaited(self, value: Any, *, optional: bool = False) -> Any:
        """Returns what awaiting a value gives; tasks begin meanwhile. Raises Stop.

        optional: a value that cannot be awaited is returned as it is.
        """
        if optional and not isinstance(value, Coroutine | Awaited):
            return value
        task = value if isinstance(value, Coroutine) else None
        if task is not None:
            if self.tasks.goes_with_others(task):
                self.tasks.begin()
            self.tasks.drops(task)
            value = self.tasks.done(task)
        elif isinstance(value, Awaited):
            value = value.value
        elif not unknown(value):
            raise Stop(f"awaits a {type(value).__name__}")
        self.tasks.begin()
        if task is not None:
            self.tasks.joins(task)
        return value

    def done(self, coroutine: Coroutine) -> Any:
        """Walks through the work of a coroutine, unless that has been done for certain; returns its result."""
        if coroutine.result is not NULL:
            return coroutine.result
        result = coroutine.work()
        result = result.value if isinstance(result, Awaited) else result
        if self.unsure == coroutine.unsure:
            coroutine.result = result
            self.tasks.finished.append(coroutine)
        return result

    def yielded(self, value: Any) -> None:
        """Goes past a yield of the function itself. Raises Stop unless its caller has asked for more since then.

        Before that, the caller may do anything.
        """
        if self.unsure or self.asked < 1:
            self.paused = not self.unsure
            raise Stop("yields, and what its caller does before it asks for more is not known")
        self.asked -= 1
        if unknown(value):
            self.aliases.change(value)
        elif type(value) not in SCALARS:
            raise Stop("yields something that its caller may change")

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Marks what is met inside as something that the function may not do."""
        self.unsure += 1
        try:
            yield
        finally:
            self.unsure -= 1

    # --- values -----------------------------------------------------------------------------------------------------

    def own(self, value: Any, *, new: bool = True) -> Any:
        """Registers a container that the walk has created, and returns it. new: the function makes it here."""
        if not unknown(value):
            if self.unsure and new and id(value) not in self._own:
                self._doubts[id(value)] = self.unsure
            self._own[id(value)] = value
            self.tries.made(value)
        return value

    def certain(self, value: Any) -> bool:
        """Returns True if the function, having made a container or object, is sure to get here."""
        return not self.unsure or self.unsure <= self._doubts.get(id(value), 0)

    def stands(self, value: Any) -> Any:
        """Registers a container of the walk's own that stands for one that was there before; returns it."""
        self._own[id(value)] = value
        return value

    def fixed(self, value: Any) -> Any:
        """Registers a container that stands for one of stock's, which the function may not change; returns it."""
        self._fixed[id(value)] = value
        return self.own(value)

    def is_fixed(self, value: Any) -> bool:
        """Returns True for a container that the function may not change."""
        return self._fixed.get(id(value), NULL) is value

    def owns(self, value: Any) -> bool:
        """Returns True for a container that the walk has created."""
        return self._own.get(id(value), NULL) is value

    def create(self, kind: Any) -> Any:
        """Returns a new object of one of the user's classes. It is never given to the user's code or to components."""
        made = object.__new__(kind)
        self._objects[id(made)] = made
        if self.unsure:
            self._doubts[id(made)] = self.unsure
        self.tries.made(made)
        return made

    def created(self, value: Any) -> bool:
        """Returns True for an object of the walk's own: another one than that of the function."""
        return self._objects.get(id(value), NULL) is value

    def meet(self, kind: Any) -> None:
        """Notes a class. Raises Stop for one that is asked even when somebody tests what an object is."""
        if kind.__module__ in sys.stdlib_module_names:
            MET.add(kind)
            return
        if issubclass(kind, wrapt.ObjectProxy):  # an optimized object, or an instrumentation's: is what it wraps
            self.kinds.add(kind)
            return
        look_up: Any = type(kind).__getattribute__
        for base in kind.__mro__ if look_up is type.__getattribute__ else (kind,):
            own = base is kind and look_up is not type.__getattribute__
            own = own or "__class__" in base.__dict__ or "__getattribute__" in base.__dict__
            if own and not of_package(base.__module__) and base.__module__ not in sys.stdlib_module_names:
                raise Stop(f"meets a {kind.__name__}, which may run code")
        self.kinds.add(kind)

    def known(self, value: Any) -> bool:
        """Returns True if nothing in a value is unknown. Only the walk's own containers can hold unknown values."""
        if not self.whole(value) or issubclass(type(value), _NEVER_KNOWN) or self.created(value):
            return False
        if type(value) not in _CONTAINERS or not self.owns(value):
            return not self.changes.outside or not self._touched(value)
        self.spend(len(value) if type(value) in _CONTAINERS else 1)
        if type(value) is dict:
            return all(map(self.known, value)) and all(map(self.known, value.values()))
        return all(map(self.known, value))

    def changes_part(self, value: Any) -> bool:
        """Returns True if this walk, or one before it, has noted a change of a value or of something in it."""
        return self._touched(value, self.changes.assigned_to)

    def _touched(self, value: Any, others: Collection[int] = ()) -> bool:
        """Returns True if something in a value may have been changed, or is one of others, by id."""
        todo = [value]
        while todo:
            part = todo.pop()
            self.spend()
            if id(part) in self.changes.tainted or id(part) in others:
                return True
            if type(part) is dict:
                todo += part.values()
            elif type(part) in _CONTAINERS:
                todo += part
            elif type(part) not in SCALARS:
                todo += attributes_of(part).values()
        return False

    def real(self, value: Any) -> bool:
        """Returns True if stock can meet an equal value: it contains no function that only this walk has defined."""
        if issubclass(type(value), STAND_INS):
            return False
        if type(value) is dict:
            return all(map(self.real, value.values()))
        return type(value) not in _CONTAINERS or not self.owns(value) or all(map(self.real, value))

    def whole(self, value: Any) -> bool:
        """Returns True if a container's length and order are known, if not its elements."""
        if type(value) is Unknown or value is INERT or id(value) in self.changes.tainted:
            return False
        if self.tasks.current is not None:
            self.tasks.read(value)
        return True

    def plain(self, value: Any) -> bool:
        """Returns True for known plain data, on which operators and builtins run no user code."""
        if type(value) in SCALARS:
            return True
        self.spend(len(value) if type(value) in _CONTAINERS else 1)
        return self.known(value) and is_plain(value)

    def touch(self, *values: Any) -> None:
        """Raises Stop if an operation whose result is unknown may run the user's code: that of one of its operands."""
        self.tries.raises(TypeError, seldom=True)
        for each in values:
            if not self._inert(each):
                raise Stop(f"uses a {type(each).__name__} together with a result that is not known yet")

    def _inert(self, value: Any) -> bool:
        kind = type(value)
        if kind in SCALARS or value is INERT:
            return True
        if kind is Unknown or id(value) in self._tainted:
            return (kind is Unknown and value is not HELD) or not self.aliases.have_code()
        if kind in _CONTAINERS or kind is frozenset:
            self.spend(len(value))
            return all(map(self._inert, (*value, *value.values()) if kind is dict else value))
        if issubclass(kind, type):
            return bool(value.__module__ == "builtins")
        if issubclass(kind, _FUNCTIONS) or has_code(value):
            return False
        return all(map(self._inert, compared(value)))

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
        if kind in SCALARS or kind in _CONTAINERS or kind is frozenset:
            return bool(value)
        name = _tests_itself(kind)
        if name and (own := special_of(self, value, name)) is not None:
            found = self.call(own, [value], {})
            if type(found) is (bool if name == "__bool__" else int) and found >= 0:
                return bool(found)
        if name:
            raise Stop(f"tests the truth of a {kind.__name__}")
        return True


def _tests_itself(kind: type) -> str:
    """Returns the name of the method that finds the truth of an object; "" if there is none."""
    for name in ("__bool__", "__len__"):
        for base in kind.__mro__:
            if name in base.__dict__:
                return name
    return ""
