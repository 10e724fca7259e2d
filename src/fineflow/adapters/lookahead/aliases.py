"""What unknown values may be: one of the objects that a walk knows, or a part of one.

``stores[label]`` with a label that a model writes is one of the stores, and a document that a search returns may be the
store's own. A change through such a value may be a change of any of them, and an operator on it may run the code of
their classes. One set of candidates stands for all such values of a walk: what has been selected from, stored in
something unknown, or given to a component that may return it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from fineflow.adapters.analysis import analyse, tables
from fineflow.adapters.analysis.data_models import plain_enum
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.lookahead.reachable import attributes_of, reachable
from fineflow.adapters.lookahead.values import FOUND, HELD, INERT, MET, NULL, SCALARS, UNKNOWN, Stop, Unknown

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_RECORDS = frozenset({"__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__", "_fields"})
_Reached = tuple[dict[int, Any] | None, list[type]]
_NO_PARTS = SCALARS | {Unknown}
_OF_LISTS = frozenset({"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "[]"})
_HARMLESS = frozenset({"__init__", "__post_init__", "__init_subclass__", "__class_getitem__", "__repr__"})
_HARMLESS |= {"__annotate__", "__annotate_func__"}  # Python 3.14
_OPERATORS = frozenset(name for kind in (int, list, dict, str) for name, own in vars(kind).items() if callable(own))
_OPERATORS -= {"__new__", "__init__", "__getattribute__", "__getnewargs__", "__sizeof__", "__class_getitem__"}
_CALLED = (staticmethod, classmethod, functools.partial, functools.partialmethod, type(functools.lru_cache(len)))
# Methods of data that walks pass by on unknown values.
_OF_DATA = frozenset({*tables.READERS, *tables.MUTATORS, *tables.MATCH_METHODS})


class Aliases:
    """The objects that the unknown values of one walk may be, or be part of."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._candidates: dict[int, Any] = {}
        self._components: dict[int, Any] = {}  # whose results may be what they hold
        self._documents: set[int] = set()  # components whose documents have changed
        self._reached: dict[int, tuple[Any, _Reached]] = {}  # by objects that the walk has not made, which are kept
        self._mixed = False  # something has been stored in an unknown value
        self._changed = False  # in the branch that is being walked through: what becomes a candidate has changed, too
        self._changed_objects: dict[int, Any] = {}
        self._checked: dict[tuple[int, bool], bool] = {}  # candidates, and whether they have code of the user's

    def one_of(self, *values: Any) -> Any:
        """Returns the value that is one of these: unknown, unless they are the same."""
        first = values[0]
        if all(each is first for each in values):
            return first
        if not any(each is HELD or each is FOUND or not _has_no_parts(each) for each in values):
            return UNKNOWN
        self.add(*values)
        return HELD

    def part(self, value: Any) -> Any:
        """Returns an element or attribute of an unknown value, or of a container that may have any content."""
        if value is UNKNOWN or value is INERT:
            return HELD if self._mixed else UNKNOWN
        self.add(value)
        return HELD

    def add(self, *values: Any) -> None:
        """Notes that unknown values may be one of these, or part of one."""
        for each in values:
            if _has_no_parts(each):
                continue
            self._candidates[id(each)] = each
            if self._changed:
                self._change(each)

    def returned_by(self, component: Any) -> None:
        """Notes that unknown values may be part of what a component holds."""
        self._components[id(component)] = component

    def store(self, *values: Any) -> None:
        """Notes that values become part of something unknown."""
        held = [each for each in values if each is HELD or each is FOUND or not _has_no_parts(each)]
        self.add(*held)
        self._mixed = self._mixed or bool(held)

    def change(self, value: Any, how: str = "") -> None:
        """Notes a change of an unknown value. how: the method that changes it, "[]" for an item. Raises Stop."""
        if value is not HELD and (value is not FOUND or how in _OF_LISTS):
            return
        for each in self._candidates.values():
            self._change(each)
        for key in self._components.keys() - self._documents:
            self._change_documents(self._components[key])
        self._documents.update(self._components)
        self._changed = bool(self._walk.unsure)

    def settle(self) -> None:
        """Notes that the paths of a branch have met."""
        self._changed = self._changed and bool(self._walk.unsure)

    def _change(self, root: Any) -> None:
        found, classes = (None, []) if issubclass(type(root), type | ModuleType) else self._reach(root)
        if found is None or not all(map(_of_packages, classes)):
            raise Stop("changes something that is not known yet")
        for each in found.values():
            if type(each) in (list, dict, set):
                self._walk.changes.taint(each, moves=True)
            elif type(each) is not FunctionType:
                self._changed_objects[id(each)] = each
                if not self._walk.created(each):
                    self._walk.changes.change(each)

    def _change_documents(self, component: Any) -> None:
        """Notes a change of documents that a component keeps in memory and may have returned, if it keeps any."""
        found, _ = self._reach(component)
        held = [component] if found is None else [each for each in found.values() if _may_be_data(each)]
        if found is None or any(map(_is_document, held)):
            for each in held:
                self._walk.host.changes(each)

    def _reach(self, obj: Any) -> _Reached:
        """Returns what is ``reachable`` from an object, and the classes in it.

        Looked at once unless the walk has made it: walks change nothing else.
        """
        if (known := self._reached.get(id(obj))) is not None:
            return known[1]
        classes: list[type] = []
        found = reachable(obj, classes), classes
        if not self._walk.created(obj):
            self._reached[id(obj)] = obj, found
        return found

    def changed(self, obj: Any) -> bool:
        """Returns True for an object whose attributes may have any values."""
        return id(obj) in self._changed_objects

    def have_code(self, *, texts: bool = False) -> bool:
        """Returns True if operators and attributes of a value that is one of the candidates may run the user's code.

        texts: or what makes a text of it.
        """
        for each in list(self._candidates.values()):
            key = id(each), texts
            if key not in self._checked:
                found, _ = self._reach(each)
                self._checked[key] = found is None or any(has_code(part, texts=texts) for part in found.values())
            if self._checked[key]:
                return True
        return False


def has_code(obj: Any, *, texts: bool = False) -> bool:
    """Returns True for an object whose operators or attributes may run the user's code. texts: or its ``repr``."""
    kind = cast(Hashable, type(obj))
    return runs_code(kind) or (texts and isinstance(text_of(type(obj), inside=True), FunctionType))


def text_of(kind: Any, *, inside: bool) -> Any:
    """Returns the user's function that makes the text of an object; another value if there is none.

    inside: the object is in a container, or its ``repr`` is asked for.
    """
    own = kind.__repr__ if inside or kind.__str__ is object.__str__ else kind.__str__
    return None if of_package(getattr(own, "__module__", None) or "") else own


def special_of(walk: Walk, obj: Any, name: str) -> FunctionType | None:
    """Returns the user's function behind an operation on a known object, such as ``__len__``; None if there is none."""
    kind = type(obj)
    if kind in MET or of_package(kind.__module__) or walk.host.knows(obj):
        return None
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return found if isinstance(found, FunctionType) and not of_package(found.__module__ or "") else None


@functools.lru_cache(2048)
def runs_code(kind: Any) -> bool:
    """Returns True for classes of the user's with operators, properties or methods of data that run code."""
    return any(True for _ in _code_of(kind))


def changes_nothing(kind: Any) -> bool:
    """Returns True if what ``runs_code`` is about only computes."""
    return all(isinstance(own, FunctionType) and analyse(own).pure for own in _code_of(kind))


def _code_of(kind: Any) -> Iterator[Any]:
    """Yields the functions of the user's behind operators, properties and methods of data; other objects there are."""
    for base in () if plain_enum(kind) else kind.__mro__:
        if base.__module__.partition(".")[0] in sys.stdlib_module_names or of_package(base.__module__):
            continue
        for name, member in vars(base).items():
            if isinstance(member, FunctionType):
                special = name.startswith("__") and name.endswith("__") and name not in _HARMLESS
                if (special or name in _OF_DATA) and not _generated(base, member):
                    yield member
            elif isinstance(member, property):
                yield member.fget if member.fset is None else member
            elif (hasattr(type(member), "__set__") and not _is_slot(member)) or (
                name in _OPERATORS and isinstance(member, _CALLED)
            ):
                yield member


def compared(obj: Any) -> Iterable[Any]:
    """Returns what comparing an object looks at in it: of dataclasses, attrs, named tuples and pydantic models."""
    if not _is_record(cast(Hashable, type(obj))):
        return ()
    return tuple.__iter__(obj) if isinstance(obj, tuple) else attributes_of(obj).values()


@functools.lru_cache(2048)
def _is_record(kind: Any) -> bool:
    return any(name in vars(base) for base in kind.__mro__ for name in _RECORDS)


def _generated(kind: type, method: FunctionType) -> bool:
    """Returns True for methods that dataclasses, attrs and named tuples write."""
    file, module = method.__code__.co_filename, method.__globals__.get("__name__")
    own = file == "<string>" or file.startswith("<attrs generated") or module == "collections"
    return own and _is_record(kind)


def _may_be_data(obj: Any) -> bool:
    return type(obj) in (list, dict, set) or _is_document(obj)


def _is_document(obj: Any) -> bool:
    return "metadata" in (obj if type(obj) is dict else attributes_of(obj))


def _of_packages(value: Any) -> bool:
    return issubclass(type(value), type) and (
        value.__module__ in sys.stdlib_module_names or of_package(value.__module__)
    )


def _has_no_parts(value: Any) -> bool:
    return type(value) in _NO_PARTS or value is NULL or value is INERT or _of_packages(value)


def _is_slot(member: Any) -> bool:
    return type(member).__name__ in ("member_descriptor", "getset_descriptor", "_tuplegetter")
