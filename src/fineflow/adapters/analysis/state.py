"""State of one analysis: keys read so far, closure cells, results of functions, and what it relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

from fineflow.adapters.analysis.data_models import is_data_model, plain_model
from fineflow.adapters.analysis.outside import Key, Outside
from fineflow.adapters.analysis.tables import is_model
from fineflow.adapters.analysis.values import NULL, SHARED, Impure, Kind, Value, immutable, is_scalar, join

_BUDGET = 20_000  # instructions interpreted per verdict; a larger function is not worth the planning time


class Closure:
    """A function defined by the analysed one: its code, the function whose globals it sees, its cells."""

    __slots__ = ("cells", "code", "owner", "path")

    def __init__(self, code: CodeType, owner: FunctionType, cells: tuple[Value, ...], path: Key) -> None:
        self.code, self.owner, self.cells, self.path = code, owner, cells, path

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Closure)
            and self.code is other.code
            and self.path == other.path
            and self.cells == other.cells
        )

    __hash__ = None  # type: ignore[assignment]


class Reached(Exception):
    """The path has come to the call up to which the function is analysed."""


class Analysis(Outside):
    """State shared by all frames of one verdict.

    Closure cells are flow-insensitive: one abstract value for everything ever stored in a cell. It may grow after it
    was read, so the analysis is repeated to a fixed point.

    trusting: validators of pydantic models are believed to change nothing.
    """

    up_to_a_call, coroutines = False, False
    """Whether paths end at some call, and whether coroutines are judged, which may await nothing before (``hooks``)."""

    def __init__(
        self,
        returned: Iterable[Any] = (),
        *,
        trusting: bool = False,
        reads: Callable[[Any, str], bool] | None = None,
    ) -> None:
        super().__init__(returned, {}, reads)
        self._trusting = trusting
        self.keys: dict[str, None] = {}
        self.escaped = False
        self.raises = False
        self.notes: dict[str, None] = {}
        self.unordered: dict[str, None] = {}  # what only stock may do, in its own time: "prints"
        self.cells: dict[Key, Value] = {}
        self.read: set[Key] = set()  # cells read so far: only their growth requires another round
        self.grown = False
        self.bodies: dict[Key, Value] = {}
        self.folded: dict[Key, tuple[Any, tuple[Any, ...]]] = {}
        self.budget = _BUDGET

    def settle(self, enter: Callable[[], None]) -> None:
        while True:
            self.grown = False
            self.bodies.clear()
            enter()
            if not self.grown:
                return

    def use(self, value: Value) -> Value:
        """Uses a value: reads, stores or passes it on. The argument escapes; iterators and functions must not."""
        kind = value.kind
        if kind is Kind.ARG:
            self.escaped = True
            return SHARED
        if kind is Kind.CONST:
            if not immutable(value.data):
                raise Impure(f"uses {name_of(value.data)} as a value")  # a module, a function, a logger
        elif kind is Kind.BAD:
            raise Impure(value.data)
        elif kind is Kind.OBJECT:
            raise Impure(f"reads {self.names[id(value.data)]}, which can change")
        elif kind is Kind.COMPONENT:
            raise Impure(f"uses a {type(value.data).__name__} as a value")
        elif kind is Kind.LAZY:
            raise Impure("stores, returns or passes on an iterator, which is read later")
        elif kind is Kind.STREAM:
            raise Impure("uses the iterator that it gets for something else than one loop")
        elif kind in (Kind.FUNC, Kind.BOUND):
            raise Impure("stores, returns or passes on a function")
        elif kind in (Kind.NULL, Kind.CELL, Kind.CELLS):
            raise Impure("unsupported use of a closure cell")
        return value

    def makes(self, cls: Any) -> bool:
        """Returns True for classes whose instances are data that is only validated, which may be a guard."""
        if is_model(cls):
            return True
        if not (plain_model(cls) or (self._trusting and is_data_model(cls))):
            return False
        self.raises = True
        return True

    def meet(self, a: Value, b: Value) -> Value:
        """Joins the values of two paths; the argument joined with other data is no longer tracked."""
        found = join(a, b)
        if found.kind is Kind.SHARED and Kind.ARG in (a.kind, b.kind):
            self.escaped = True
        return found

    def store_cell(self, key: Key, value: Value) -> None:
        old = self.cells.get(key, NULL)
        new = self.meet(old, value)
        if new != old:
            self.cells[key] = new
            self.grown = self.grown or key in self.read

    def read_cell(self, key: Key) -> Value:
        self.read.add(key)
        return self.cells.get(key, NULL)

    def fold(self, key: Key, values: list[Value], make: Callable[..., Any]) -> Value:
        """Makes a known object from known objects; the same instruction yields the same object again."""
        parts = tuple(v.data for v in values)
        full = (*key, *map(id, parts))
        if full not in self.folded:
            self.folded[full] = (make(*parts), parts)  # keeps the parts alive so that their ids are not reused
        return Value(Kind.CONST, self.folded[full][0])

    def spend(self) -> None:
        self.budget -= 1
        if self.budget < 0:
            raise Impure("is too large to analyse")


def name_of(obj: Any) -> str:
    """Returns the name of an object for a reason text."""
    name = getattr(obj, "__name__", None)
    return name if isinstance(name, str) else f"a {type(obj).__name__}"


def all_scalar(values: list[Value]) -> bool:
    """Returns True if all values are immutable builtin data."""
    return all(map(is_scalar, values))
