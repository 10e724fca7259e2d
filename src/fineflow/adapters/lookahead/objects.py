"""Attributes of objects, and objects of the user's classes that the function makes."""

from __future__ import annotations

import datetime
import inspect
from contextvars import ContextVar
from enum import EnumMeta
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from fineflow.adapters.analysis import is_plain, tables
from fineflow.adapters.analysis.data_models import plain_enum
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.lookahead import harmless
from fineflow.adapters.lookahead.aliases import has_code
from fineflow.adapters.lookahead.kept_results import KEEPS
from fineflow.adapters.lookahead.reachable import attributes_of
from fineflow.adapters.lookahead.surroundings import READABLE, TextFile, part_of_date
from fineflow.adapters.lookahead.values import (
    INERT,
    NULL,
    PATHS,
    UNKNOWN,
    Coroutine,
    Digest,
    Lazy,
    Local,
    Method,
    Partial,
    Progress,
    Stop,
    TaskGroup,
    unknown,
)
from fineflow.adapters.python.parts import ABSENT, class_of, inherited

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

_DATA = frozenset({str, bytes, int, float, bool, list, tuple, dict, set, frozenset, type(None)})
_OF_PYTHON = READABLE | {ContextVar}
_OF_PATHS = frozenset({"name", "parent", "parts", "stem", "suffix"})  # without a look at files
_FIELDS = {"model_fields": "__pydantic_fields__"}  # of classes: descriptors, and what they return
# Methods of messages, models and run managers that only read.
OF_RESULTS = frozenset({"dict", "get_child", "json", "model_dump", "model_dump_json", "to_messages", "to_string"})
OF_RESULTS |= {"get_content", "get_text", "raise_for_status"}  # the last one fails as the request would


def as_text(value: Any) -> Any:
    """Returns plain text for an instance of a package's text class that behaves as such; other values unchanged."""
    kind = type(value)
    if kind is str or not isinstance(value, str) or not of_package(kind.__module__):
        return value
    same = all(getattr(kind, name) is getattr(str, name) for name in ("__str__", "__format__", "__eq__", "__hash__"))
    return str.__str__(value) if same else value


def attribute(walk: Walk, obj: Any, name: str, *, method: bool) -> Any:
    """Returns ``obj.name``, without running code. method: it is about to be called. Raises Stop."""
    if unknown(obj) or obj is INERT or isinstance(obj, Progress):
        if (found := part_of_date(obj, name)) is not None:
            return found
        walk.touch(obj)
        walk.tries.raises(AttributeError, seldom=True)
        if method:
            return Method(obj if unknown(obj) else INERT, name)
        return walk.aliases.part(INERT if isinstance(obj, Progress) else obj)
    if walk.host.knows(obj):
        return _of_component(walk, obj, name)
    if isinstance(obj, TextFile | Coroutine | TaskGroup | Digest):
        return Method(obj, name)
    if type(obj) in PATHS and name in _OF_PATHS:
        return getattr(obj, name)
    if type(obj) in _DATA or type(obj) in _OF_PYTHON or type(obj) in PATHS or isinstance(obj, harmless.PATTERNS):
        if not hasattr(type(obj), name):
            raise Stop("may raise an exception")
        return Method(obj, name)
    if type(obj) is ModuleType:
        value = walk.changes.assigned(vars(obj), name, vars(obj).get(name, NULL))
        if value is NULL:
            raise Stop(f"reads {name} of module {obj.__name__}, which it does not have yet")
        return value
    if isinstance(type(obj), EnumMeta) and (found := _of_member(obj, name)) is not NULL:
        return found
    if isinstance(obj, EnumMeta):
        return vars(obj)["_member_map_"].get(name, Method(obj, name))
    if isinstance(obj, type):
        return _of_class(obj, name)
    if harmless.logs(obj, name):
        return Method(INERT, name)
    if name in tables.ATTRIBUTES and is_plain(obj):
        return _of_data(walk, obj, name)
    if name in OF_RESULTS and is_plain(obj):
        return Method(obj, name)
    if isinstance(obj, Local | Method | Partial | Lazy | FunctionType | MethodType):
        if name == "__name__" and isinstance(obj, FunctionType | MethodType):
            return obj.__name__
        raise Stop(f"reads {name} of a function")
    return _of_instance(walk, obj, name)


def _of_data(walk: Walk, obj: Any, name: str) -> Any:
    """Returns a field of a document or message, or what it computes of its fields, as the function finds it."""
    if not (walk.changes.of_others or walk.changes.assigned_to):
        return walk.changes.given(as_text(getattr(obj, name)))
    own = first_value(obj, name)
    if walk.aliases.changed(obj) or (own is NULL and walk.changes_part(obj)):
        return walk.aliases.one_of(UNKNOWN, obj)
    return walk.changes.given(as_text(getattr(obj, name) if own is NULL else walk.changes.assigned(obj, name, own)))


def _of_member(obj: Any, name: str) -> Any:
    """Returns what a member of an enumeration without code has as such, or as the text that it is; NULL otherwise."""
    if not plain_enum(type(obj)):
        return NULL
    if name in ("value", "name"):
        return getattr(obj, f"_{name}_")
    text = isinstance(obj, str) and hasattr(str, name)
    return Method(cast(Any, obj)._value_, name) if text else NULL


def _of_component(walk: Walk, obj: Any, name: str) -> Any:
    return Method(obj, name) if walk.host.judges(obj, name) else _of_instance(walk, obj, name)


def _of_class(kind: Any, name: str) -> Any:
    if has_code(kind):
        raise Stop(f"reads {name} of {type.__repr__(kind)}, whose metaclass may run code")
    if name == "__name__":
        return kind.__name__
    if name in _FIELDS and of_package(type(kind).__module__) and hasattr(kind, _FIELDS[name]):
        return getattr(kind, _FIELDS[name])
    found = inspect.getattr_static(kind, name, None)
    if hasattr(type(found), "__get__") and not of_package(type(found).__module__) and not _is_builtin(type(found)):
        raise Stop(f"reads {name} of {kind.__name__}, which may run code")
    plain = type(found) in _DATA or type(found) is datetime.timezone
    return found if plain and found is not None else Method(kind, name)


def _is_builtin(kind: type) -> bool:
    return kind.__module__ in ("builtins", "functools", "types")


def _of_instance(walk: Walk, obj: Any, name: str) -> Any:
    kind = type(obj)
    own_look_up: Any = kind.__getattribute__
    if own_look_up is not object.__getattribute__:
        raise Stop(f"reads an attribute of a {kind.__name__}, which may run code")
    if name == "__class__":
        return kind
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, property) and isinstance(found.fget, FunctionType):
        return walk.call(found.fget, [obj], {})
    slot = isinstance(found, MemberDescriptorType)
    if found is not None and hasattr(type(found), "__set__") and not slot:
        raise Stop(f"reads {name} of a {kind.__name__}, which may run code")
    own = walk.changes.assigned(obj, name, first_value(obj, name))
    if walk.aliases.changed(obj) and not (own is NULL and isinstance(found, FunctionType)):
        return walk.aliases.one_of(UNKNOWN, obj)
    if own is not NULL:
        return own
    if slot:
        raise Stop(f"reads {name} of a {kind.__name__}, which it does not have yet")
    if isinstance(found, FunctionType) or type(found) is KEEPS:
        return MethodType(found, obj)
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return MethodType(found.__func__, kind)
    if found is None or hasattr(type(found), "__get__"):
        raise Stop(f"reads {name} of a {kind.__name__}, which may run code")
    return found


def inherited_attribute(walk: Walk, cls: Any, obj: Any, name: str) -> Any:
    """Returns ``super(cls, obj).name``, without running code. Raises Stop."""
    if unknown(obj) or unknown(cls) or obj is INERT:
        raise Stop("calls super() of something that is not known yet")
    if walk.host.knows(obj) and walk.host.judges(obj, name):
        raise Stop(f"calls {name} of a base class of a component")
    found = inherited(cls, obj, name)
    if found is vars(object)["__init__"]:  # does nothing
        return INERT
    if isinstance(found, FunctionType):
        return MethodType(found, obj)
    if isinstance(found, property) and isinstance(found.fget, FunctionType):
        return walk.call(found.fget, [obj], {})
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return MethodType(found.__func__, class_of(obj))
    if found is ABSENT or hasattr(type(found), "__get__"):
        raise Stop(f"reads {name} of super(), which may run code")
    return found


def first_value(obj: Any, name: str) -> Any:
    """Returns what an object has under this name, without running code: an attribute or slot; NULL for nothing."""
    found = inspect.getattr_static(type(obj), name, None)
    if isinstance(found, MemberDescriptorType):
        try:
            return found.__get__(obj, type(obj))
        except AttributeError:
            return NULL
    return attributes_of(obj).get(name, NULL)


def set_attribute(walk: Walk, obj: Any, name: str, value: Any) -> None:
    """Does ``obj.name = value``: to objects of the walk's own; for others it is only noted. Raises Stop."""
    if unknown(obj) or obj is INERT:
        walk.touch(obj)
        walk.aliases.store(value)
        walk.aliases.change(obj)
        return
    kind = type(obj)
    if walk.host.knows(obj) or isinstance(obj, type | ModuleType | FunctionType | MethodType):
        raise Stop(f"changes a {kind.__name__}")
    setter: Any = kind.__setattr__
    found = inspect.getattr_static(kind, name, None)
    hidden = found is not None and hasattr(type(found), "__set__") and not isinstance(found, MemberDescriptorType)
    if hidden or not (setter is object.__setattr__ or of_package(getattr(setter, "__module__", None) or "")):
        raise Stop(f"sets {name} of a {kind.__name__}, which may run code")
    if walk.created(obj):
        if walk.tries.ignores(obj):
            return
        before = first_value(obj, name)
        walk.tries.assigns(obj, name, before)
        object.__setattr__(obj, name, value if walk.certain(obj) else walk.aliases.one_of(value, before))
        return
    walk.changes.change(obj)
    walk.changes.assign(obj, name, value, first_value(obj, name))


def made_of_data(walk: Walk, kind: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Returns an instance of a class of data (``harmless.factories``), of values that may be unknown."""
    walk.touch(*args, *named.values())
    for each in harmless.factories(kind) or ():
        with walk.perhaps():
            walk.aliases.store(walk.call(each, [], {}))
    walk.tries.raises(ValueError, TypeError)
    return walk.aliases.one_of(UNKNOWN, *args, *named.values())


def make(walk: Walk, kind: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Returns ``kind(*args, **named)`` for a class. Raises Stop unless making it changes nothing."""
    if has_code(kind):
        raise Stop(f"makes a {type.__repr__(kind)}, whose metaclass may run code")
    if harmless.is_bar(kind):
        return Progress(args[0] if args else named["iterable"]) if args or "iterable" in named else INERT
    if getattr(kind, "__total__", None) is not None and issubclass(kind, dict) and not args:  # a TypedDict
        return walk.own(dict(named))
    if harmless.makes_plainly(kind) and all(map(walk.plain, (*args, *named.values()))):
        return walk.changes.result(
            kind(*map(walk.copied, args), **{name: walk.copied(each) for name, each in named.items()})
        )
    if harmless.factories(kind) is not None:
        return made_of_data(walk, kind, args, named)
    setup = inspect.getattr_static(kind, "__init__", None)
    own_class = not of_package(kind.__module__) or harmless.is_splitter(kind)
    plain: Any = kind.__new__ is object.__new__ and kind.__setattr__ is object.__setattr__
    plain = plain and kind.__getattribute__ is object.__getattribute__
    if not (own_class and plain and type(kind).__call__ is type.__call__):
        return walk.host.made(kind, "", args, named)
    if hasattr(kind, "__del__"):
        raise Stop(f"makes a {kind.__name__}, which runs code when it goes")
    made = walk.create(kind)
    if walk.host.knows(made):
        raise Stop(f"makes a {kind.__name__}")
    if isinstance(setup, FunctionType):
        walk.call(setup, [made, *args], named)
    return made
