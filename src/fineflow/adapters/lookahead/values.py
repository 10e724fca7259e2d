"""Values of a walk: the user's own objects, containers that the walk created, and what is not known yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Protocol

from fineflow.declare import Declaration

Args = Sequence[Any]
Named = Mapping[str, Any]


class _Marker:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


class Unknown(_Marker):
    """A value that is not known yet: the result of a component call that has not ended, or what depends on it."""


UNKNOWN: Any = Unknown("UNKNOWN")
"""Something unknown that nobody else holds: plain data, or the answer of a model with all its parts."""

FOUND: Any = Unknown("FOUND")
"""A new list of unknown objects that others may hold, such as the documents of a store."""

HELD: Any = Unknown("HELD")
"""Something unknown that others may hold: one of several known objects, or part of what a component returned."""

INERT: Any = _Marker("INERT")
"""An object of which nothing is known but that its methods change nothing else, such as a counter or a progress bar."""

SWALLOWS: Any = _Marker("SWALLOWS")
"""A context manager that ends what is inside it at an exception, and nothing else."""

NOW: Any = Unknown("NOW")
"""The current time, of which only the day is known."""

TODAY: Any = Unknown("TODAY")
"""The current date."""

HANDLED: Any = _Marker("HANDLED")
"""What lies below the exception on the stack of a handler."""

NULL: Any = _Marker("NULL")
"""An unbound local, or the marker that calls push."""


PATHS: frozenset[type] = frozenset({type(Path())})
"""Classes of file names: values like texts, whose operators look at no files."""

SCALARS = frozenset({str, int, float, complex, bool, bytes, type(None)}) | PATHS

MET: set[type] = {str, int, float, bool, type(None), list, tuple, dict, Unknown, *PATHS}
"""Classes of Python's own that walks have met: they run no code of the user's."""


class Stop(Exception):
    """The walk cannot go on: what follows may have side effects, or depends on a result. The message says why.

    where: file and line of the instruction at which the walk ended, once a frame has been left.
    """

    where = ""


class Method(NamedTuple):
    """A method of plain data, of an unknown value, or of a component."""

    owner: Any
    name: str


class Local(NamedTuple):
    """A function that the walked code defined. owner: the function whose globals it sees."""

    code: CodeType
    owner: Any
    defaults: tuple[Any, ...]
    named_defaults: Mapping[str, Any]
    cells: tuple[Any, ...]


class Partial(NamedTuple):
    """A ``functools.partial`` of any function."""

    func: Any
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]


class Lazy:
    """An iterator whose elements are computed when they are asked for."""

    __slots__ = ("unsure",)

    def __init__(self, walk: Any) -> None:
        self.unsure: int = walk.unsure
        walk.tries.made(self)

    def drains(self) -> None:
        """Notes that all elements are asked for, whatever these are."""

    def pull(self, walk: Any) -> Any:
        """Returns the next element; NULL if it is not known which one that is. Raises StopIteration."""
        raise NotImplementedError

    def finish(self, walk: Any) -> Any:
        """Walks through what computes the elements that are left; returns one of them, which is unknown."""
        raise NotImplementedError


class Progress(NamedTuple):
    """A progress bar around something that is iterated over."""

    elements: Any


class Awaited(NamedTuple):
    """Something that can be awaited and has done its work: a value."""

    value: Any


class Coroutine:
    """A coroutine, whose work is done when it is awaited or becomes a task. work: does it, and returns the result."""

    __slots__ = ("result", "unsure", "work")

    def __init__(self, work: Callable[[], Any], unsure: int) -> None:
        self.work, self.unsure = work, unsure
        self.result: Any = NULL


class TaskGroup:
    """An ``asyncio.TaskGroup``, whose block ends when its tasks have ended."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        self.tasks: list[Any] = []


class Digest(NamedTuple):
    """A hash object of ``hashlib`` over bytes that the walk knows. of: the object itself."""

    of: Any


class Managed:
    """A context manager made by ``contextlib.contextmanager``. func: its generator function. entered: it has been."""

    __slots__ = ("args", "entered", "func", "named")

    def __init__(self, func: Any, args: Args, named: Named) -> None:
        self.func, self.args, self.named, self.entered = func, args, named, False


def unknown(value: Any) -> bool:
    """Returns True for a value that is not known yet."""
    return type(value) is Unknown


class Cell:
    """A variable that a function shares with functions defined in it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def content(cell: Any) -> Any:
    """Returns the value of a variable that functions of Python's own share, NULL if it has none."""
    try:
        return cell.cell_contents
    except ValueError:
        return NULL


STAND_INS = (Local, Method, Partial, Lazy, Progress, Coroutine, Awaited, TaskGroup, Cell, Digest, Managed)
"""Classes of the walk's own values: where they are, stock has objects of other classes."""


class Host(Protocol):
    """Answers questions of a walk about the components of its framework.

    met: number of component calls that walks have met. changed: what ``changes`` has noted in this walk, by id.
    """

    met: int
    changed: dict[int, Any]

    def calls_so_far(self) -> Callable[[], None]:
        """Returns a function that forgets the calls that walks meet from now on: they are met again, or never made."""

    def knows(self, obj: Any) -> bool:
        """Returns True for a component."""

    def awaits(self, obj: Any, name: str) -> bool:
        """Returns True for async methods of components."""

    def judges(self, obj: Any, name: str) -> bool:
        """Returns True if calls of this method of a component are ``call``'s to judge; others are walked through."""

    def call(self, obj: Any, name: str, args: Args, named: Named, *, sure: bool) -> Any:
        """Returns the result of a component call if it is known, else something unknown.

        Arguments may be unknown, or contain what is. sure: False if the function may not make this call after all.

        Raises: Stop if the call may have side effects that what follows depends on.
        """

    def function(
        self, func: FunctionType, promise: Declaration, args: Args, named: Named, *, of: Any, sure: bool
    ) -> Any:
        """Returns the result of a declared function that only reads, if it is known; else something unknown.

        Awaited, for a coroutine function. of: the object whose method it is, the first of ``args``; None for others.
        Raises Stop if a call of it has failed.
        """
        return HELD

    def inner(self, obj: Any, name: str, args: Args, named: Named) -> tuple[Any, Args, Named] | None:
        """Returns the user's function that a component call runs, and its arguments; None if there is none."""
        return None

    def joined(self, left: Any, right: Any) -> Any:
        """Returns ``left | right``. Raises Stop if that is not understood."""
        raise Stop("composes a chain")

    def changes(self, value: Any) -> None:
        """Notes that the function changes a container or object that it did not create.

        ``call`` raises Stop for components that hold it.
        """
        raise Stop("changes something that it did not create")

    def made(self, kind: Any, name: str, args: Args, named: Named) -> Any:
        """Returns a new object, by ``kind(...)`` or ``kind.name(...)``; kind: a class or a component.

        Raises Stop if making it may do more.
        """
        raise Stop(f"makes a {getattr(kind, '__name__', 'component')}")
