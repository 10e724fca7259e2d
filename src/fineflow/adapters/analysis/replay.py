"""Verdicts by code: an equal function, made anew in every request, is not interpreted again.

An analysis is decided by the code of a function and by what it reads of the function's surroundings. ``Outside`` notes
these readings in their order. For another function of the same code they are made again, of *its* globals, closure and
defaults: if each gives what it gave before, so would the analysis, and only the checks of the verdict are new. It gives
the same if that is the same object, an equal immutable value, a function of the same code, whose surroundings are read
in turn, or an object whose attributes are.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from threading import RLock
from types import CodeType, FunctionType, MethodType
from typing import Any, Generic, NamedTuple, TypeVar

from fineflow.adapters.analysis import libraries, tables
from fineflow.adapters.analysis.outside import Outside, OutsideRead, content, is_weak
from fineflow.adapters.analysis.values import Impure, Kind, Value, immutable
from fineflow.adapters.core.installers import module_of, of_package

_LARGEST = 1000  # characters and elements of a constant that is kept
Match = Callable[[Any, list[Any]], bool]
"""Returns True if an object is the like of one that was read before; notes it in the list of those met so far."""
Find = Callable[[list[Any]], Any]
"""Returns the like of an object that was given to a reading."""


T = TypeVar("T")


class Replays(Generic[T]):
    """What was found about the functions that were analysed last, by their code, and by kind of analysis.

    Any number of threads may use it.
    """

    MOST, EACH = 256, 16  # codes, and of each the functions whose surroundings differ

    def __init__(self) -> None:
        self._lock = RLock()  # reentrant: GC inside may collect an abandoned stream, whose end may need verdicts
        self._kept: OrderedDict[tuple[int, Any], tuple[weakref.ref[CodeType], list[tuple[Replay, T]]]] = OrderedDict()

    def known(self, func: Any, kind: Any, outside: Outside) -> T | None:
        """Returns what was found about a function that reads the same; it is read again, into ``outside``."""
        entry = entry_of(func)
        if entry is None:
            return None
        key = (id(entry.code), kind)
        with self._lock:
            reference, kept = self._kept.get(key, (None, []))
            if reference is None or reference() is not entry.code:
                return None
            self._kept.move_to_end(key)
            found = list(kept)
        for replay, value in found:
            if replay.on(entry, outside):
                return value
            outside.clear()
        return None

    def keep(self, func: Any, kind: Any, value: T, readings: Iterable[OutsideRead]) -> None:
        """Keeps what was found about a function, unless it read something that cannot be kept."""
        entry = entry_of(func)
        if entry is None:
            return
        try:
            replay = Replay(entry, readings)
        except Differs:
            return
        key = (id(entry.code), kind)
        with self._lock:
            reference, kept = self._kept.pop(key, (None, []))
            if reference is None or reference() is not entry.code:
                reference, kept = weakref.ref(entry.code), []
            self._kept[key] = reference, [(replay, value), *kept][: self.EACH]
            if len(self._kept) > self.MOST:
                self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)


class Differs(Exception):
    """A reading gives something else, or cannot be kept."""


class _Step(NamedTuple):
    read: Callable[..., Any]
    given: tuple[Find, ...]
    named: dict[str, Any]
    same: Match


class Replay:
    """The readings of one analysis. It refers to no function, class or object of the user's except weakly."""

    def __init__(self, entry: FunctionParts, readings: Iterable[OutsideRead]) -> None:
        """entry: of the analysed function. Raises Differs if a reading cannot be kept."""
        self._met: dict[int, int] = {}
        self._entry = [self._like(part) for part in entry.like] + [self._match(part) for part in entry.same]
        self._steps = [
            _Step(each.read, tuple(map(self._find, each.given)), each.named, self._found(each.found))
            for each in readings
        ]
        del self._met

    def on(self, entry: FunctionParts, outside: Outside) -> bool:
        """Reads the same of the surroundings of another function, into ``outside``. Returns True if nothing differs."""
        met: list[Any] = []
        parts = (*entry.like, *entry.same)
        if len(parts) != len(self._entry):
            return False
        if not all(same(part, met) for same, part in zip(self._entry, parts, strict=True)):
            return False
        try:
            for step in self._steps:
                found: Any
                try:
                    found = step.read(outside, *(find(met) for find in step.given), **step.named)
                except Impure as problem:
                    found = problem
                if not step.same(found, met):
                    return False
        except Differs:
            return False
        return True

    # --- what is kept of objects ----------------------------------------------------------------------------------

    def _find(self, obj: Any) -> Find:
        if id(obj) in self._met:
            return partial(_met, self._met[id(obj)])
        if immutable(obj):
            _small(obj)
            return partial(_constant, obj)
        reference = _weakly(obj)
        self._met[id(obj)] = len(self._met)
        return partial(_first, reference)

    def _found(self, found: Any) -> Match:
        if isinstance(found, Impure):
            return partial(_same_problem, found.reason)
        if not isinstance(found, Value):
            return partial(_same_content, _small(found))
        if found.kind in (Kind.CONST, Kind.OBJECT):
            like = self._like if found.kind is Kind.OBJECT else self._match
            return partial(_same_value, found.kind, like(found.data))
        if found.kind is Kind.BOUND:
            owner, name = found.data
            return partial(_same_bound, self._like(owner.data), name)
        return partial(_same_other, found)

    def _match(self, obj: Any) -> Match:
        """Returns how an object is recognised: it has to be the same one, if it is no function and no constant."""
        if id(obj) in self._met or _followed(obj):
            return self._like(obj)
        return partial(_same_content, _small(obj)) if immutable(obj) else partial(_same_object, _weakly(obj))

    def _like(self, obj: Any) -> Match:
        """Returns how an object is recognised in whose place another of its kind may be."""
        if id(obj) in self._met:
            return partial(_met_again, self._met[id(obj)])
        self._met[id(obj)] = len(self._met)
        if _followed(obj):
            return partial(_of_code, weakref.ref(obj.__code__), obj.__name__, obj.__module__)
        return _new


class FunctionParts(NamedTuple):
    """The parts of an analysed function: its code, objects of which another may take the place, and others."""

    code: CodeType
    like: tuple[Any, ...]
    same: tuple[Any, ...] = ()


def entry_of(func: Any) -> FunctionParts | None:
    """Returns the parts of a function, method or partial; None for what has no code of its own."""
    core = func.__func__ if type(func) is MethodType else func.func if type(func) is functools.partial else func
    if not _followed(core):
        return None
    if type(func) is functools.partial:
        names = (len(func.args), *func.keywords)
        return FunctionParts(core.__code__, (core, func), (names, *func.args, *func.keywords.values()))
    if type(func) is MethodType:
        return None if of_package(module_of(core)) else FunctionParts(core.__code__, (core, func.__self__))
    return FunctionParts(core.__code__, (core,))


def _followed(obj: Any) -> bool:
    """Returns True for functions that are known by their code, not by themselves."""
    return type(obj) is FunctionType and not tables.trusted(obj) and libraries.library_function(obj) is None


def _small(obj: Any) -> Any:
    """Returns an immutable value, with types. Raises Differs for one that is too large to be kept."""
    parts = [obj]
    for seen, part in enumerate(parts):  # grows meanwhile
        if seen > _LARGEST or (isinstance(part, str | bytes) and len(part) > _LARGEST):
            raise Differs
        if isinstance(part, tuple | frozenset):
            parts += islice(part, _LARGEST + 1)
    return content(obj)


def _weakly(obj: Any) -> weakref.ref[Any]:
    if not is_weak(obj):
        raise Differs
    return weakref.ref(obj)


# --- comparisons: functions of the module, which refer to nothing else -----------------------------------------------


def _met(number: int, met: list[Any]) -> Any:
    return met[number]


def _constant(obj: Any, met: list[Any]) -> Any:
    return obj


def _first(reference: weakref.ref[Any], met: list[Any]) -> Any:
    obj = reference()
    if obj is None or not _new(obj, met):
        raise Differs
    return obj


def _met_again(number: int, obj: Any, met: list[Any]) -> bool:
    return obj is met[number]


def _new(obj: Any, met: list[Any]) -> bool:
    if any(each is obj for each in met):
        return False
    met.append(obj)
    return True


def _of_code(code: weakref.ref[CodeType], name: str, module: Any, obj: Any, met: list[Any]) -> bool:
    same = _followed(obj) and obj.__code__ is code() and (obj.__name__, obj.__module__) == (name, module)
    return same and _new(obj, met)


def _same_object(reference: weakref.ref[Any], obj: Any, met: list[Any]) -> bool:
    return obj is not None and reference() is obj


def _same_content(kept: Any, obj: Any, met: list[Any]) -> bool:
    return immutable(obj) and bool(content(obj) == kept)


def _same_problem(reason: str, found: Any, met: list[Any]) -> bool:
    return isinstance(found, Impure) and found.reason == reason


def _same_value(kind: Kind, same: Match, found: Any, met: list[Any]) -> bool:
    return isinstance(found, Value) and found.kind is kind and same(found.data, met)


def _same_bound(same: Match, name: str, found: Any, met: list[Any]) -> bool:
    if not isinstance(found, Value) or found.kind is not Kind.BOUND:
        return False
    return bool(found.data[1] == name) and same(found.data[0].data, met)


def _same_other(kept: Value, found: Any, met: list[Any]) -> bool:
    return isinstance(found, Value) and type(found.data) is type(kept.data) and found == kept
