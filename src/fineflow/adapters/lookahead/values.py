"""Values of a walk: the user's own objects, containers that the walk created, and what is not known yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple, Protocol


class _Marker:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


UNKNOWN: Any = _Marker("UNKNOWN")
"""The result of a component call that has not ended, and whatever depends on it."""

INERT: Any = _Marker("INERT")
"""An object of which nothing is known but that its methods change nothing else, such as a counter or a progress bar."""

NULL: Any = _Marker("NULL")
"""An unbound local, or the marker that calls push."""


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


class Pending(NamedTuple):
    """A generator expression that nothing has read yet. names: its local variables."""

    func: Local
    names: Mapping[str, Any]


class Progress(NamedTuple):
    """A progress bar around something that is iterated over."""

    elements: Any


class Awaited(NamedTuple):
    """What a coroutine will return."""

    value: Any


class Cell:
    """A variable that a function shares with functions defined in it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Host(Protocol):
    """What a walk asks its framework about components."""

    def knows(self, obj: Any) -> bool:
        """Returns True for a component."""

    def judges(self, obj: Any, name: str) -> bool:
        """Returns True if calls of this method of a component are ``call``'s to judge; others are walked through."""

    def call(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], *, sure: bool) -> Any:
        """Returns the result of a component call if it is known, else UNKNOWN.

        Arguments may be UNKNOWN, or contain it. sure: False if the function may not make this call after all.

        Raises: Stop if the call may have side effects that what follows depends on.
        """

    def inner(
        self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Any, Sequence[Any], Mapping[str, Any]] | None:
        """Returns the user's function that a component call runs, and its arguments; None if there is none."""

    def joined(self, left: Any, right: Any) -> Any:
        """Returns ``left | right``. Raises Stop if that is not understood."""

    def changes(self, value: Any) -> None:
        """Notes that the function changes a container or object that it did not create.

        ``call`` raises Stop for components that hold it.
        """

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Returns a new object, by ``kind(...)`` or ``kind.name(...)``; kind: a class or a component.

        Raises Stop if making it may do more.
        """
