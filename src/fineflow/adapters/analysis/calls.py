"""Calls, attribute reads and subscripts: known functions by identity, methods of values by name."""

from __future__ import annotations

import collections
import functools
from enum import EnumMeta
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from fineflow.adapters.analysis import libraries, tables
from fineflow.adapters.analysis.methods import format_text, method, regex
from fineflow.adapters.analysis.outside import Key, defaults
from fineflow.adapters.analysis.state import Analysis, Closure, all_scalar, name_of
from fineflow.adapters.analysis.values import (
    ARG,
    ERROR,
    FRESH_DICT,
    LAZY,
    SCALAR,
    SHARED,
    Impure,
    Kind,
    Value,
    immutable,
    is_scalar,
    part,
)

Keywords = dict[str, Value]


class CallSite(NamedTuple):
    """Location of a call. place: key of the instruction; None for a call made by a trusted function."""

    analysis: Analysis
    place: Key | None


# --- attributes and subscripts --------------------------------------------------------------------------------------


def attribute(analysis: Analysis, value: Value, name: str) -> Value:
    """Returns ``value.name``: a known attribute, or a method that is judged when it is called."""
    if value.kind is Kind.OBJECT:
        return analysis.load_attribute(value.data, name)
    if value.kind is Kind.COMPONENT:
        return Value(Kind.BOUND, (value, name))
    if value.kind is Kind.CONST:
        obj = value.data
        if type(obj) is ModuleType:
            return analysis.load_module(obj, name)
        if type(obj) is EnumMeta and name in obj._member_map_:
            return analysis.known(obj._member_map_[name], f"{name_of(obj)}.{name}")
        if type(type(obj)) is EnumMeta and name in ("value", "name") and immutable(obj):
            return Value(Kind.CONST, getattr(obj, f"_{name}_"))
        if isinstance(obj, type):
            if (id(obj), name) in tables.CLASS_METHODS or libraries.class_method(obj, name):
                return Value(Kind.BOUND, (value, name))
            raise Impure(f"reads attribute .{name} of class {name_of(obj)}")
        if (row := libraries.instance(obj)) is not None and name in row.methods:
            return Value(Kind.BOUND, (value, name))
        if not immutable(obj):
            raise Impure(f"reads attribute .{name} of {name_of(obj)}")
    if value.kind is Kind.MATCH and name in tables.MATCH_METHODS:
        return Value(Kind.BOUND, (value, name))
    if name in tables.ATTRIBUTES and not is_scalar(value):
        analysis.use(value)
        return SCALAR if name in tables.TEXT_ATTRIBUTES else SHARED
    if name in tables.READERS or name in tables.MUTATORS or name in tables.PATTERN_METHODS:
        return Value(Kind.BOUND, (value, name))
    if value.kind in (Kind.ARG, Kind.SHARED) and not name.startswith("_"):
        analysis.use(value)
        return part(name)
    raise Impure(f"reads attribute .{name}, which may run code")


def subscript(analysis: Analysis, container: Value, key: Value, sliced: bool = False) -> Value:
    """Returns ``container[key]``; a constant string key of the argument counts as one key read."""
    if container.kind is Kind.ARG and key.kind is Kind.CONST and type(key.data) is str:
        analysis.keys[key.data] = None
        return SHARED
    container, key = analysis.use(container), analysis.use(key)
    if is_scalar(container) and (is_scalar(key) or sliced):
        return SCALAR
    return container if sliced and container.kind is Kind.FRESH else SHARED


# --- calls ----------------------------------------------------------------------------------------------------------


def call(site: CallSite, func: Value, args: list[Value], keywords: Keywords) -> Value:
    """Returns the value of a call. Raises Impure unless all of its possible effects are known."""
    if func.kind is Kind.BOUND:
        owner, name = func.data
        if owner.kind is Kind.COMPONENT:
            given = [*args, *keywords.values()]
            for value in given:
                site.analysis.use(value)
            return site.analysis.ask(owner.data, name, given)
        if owner.kind is Kind.OBJECT:
            func = site.analysis.load_method(owner.data, name)
            return _call_function(site.analysis, func.data, [owner, *args], keywords)
        if owner.kind is Kind.CONST and (rule := _of_library(owner.data, name)) is not None:
            return rule(site, args, keywords)
        if owner.kind is Kind.CONST and isinstance(owner.data, type):
            signature = tables.CLASS_METHODS[id(owner.data), name]
            return _trusted(site, f"{owner.data.__name__}.{name}", signature, args, keywords)
        return method(site, owner, name, args, keywords)
    if func.kind is Kind.FUNC:
        return _local(site, func.data, args, keywords)
    if func.kind is Kind.OBJECT:
        site.analysis.use(func)
    if func.kind is not Kind.CONST:
        raise Impure(f"calls {_describe(func)}")
    return _known(site, func.data, args, keywords)


def _of_library(owner: Any, name: str) -> libraries.Rule | None:
    """Returns the rule of a method of a library's class, or of a known object; None for any other."""
    if isinstance(owner, type):
        return libraries.class_method(owner, name)
    row = libraries.instance(owner)
    return None if row is None else row.methods.get(name)


def call_unpacked(site: CallSite, func: Value, named: bool) -> Value:
    """Calls ``func(*values)`` or ``func(**values)``: any number of unknown values."""
    analysis = site.analysis
    if func.kind is Kind.CONST:
        obj = func.data
        if type(obj) is FunctionType and not tables.trusted(obj):
            return _function(analysis, obj)
        entry = tables.FUNCTIONS.get(id(obj))
        # By position a function expects data unless it calls its first argument; by name only dict() takes anything.
        if entry is not None and not isinstance(entry[1].calls, int) and (not named or entry[1].keywords is None):
            return entry[1].result
        if analysis.makes(obj):
            return SHARED
    if func.kind is Kind.FUNC:
        return _local(site, func.data, [], {})
    if func.kind is Kind.BOUND and func.data[1] == "format":
        return format_text(func.data[0], [SHARED])
    raise Impure(f"calls {_describe(func)} with arguments that are not known one by one")


def _describe(func: Value) -> str:
    if func.kind is Kind.CONST:
        return name_of(func.data)
    if func.kind is Kind.SHARED and func.data:
        return f".{func.data}(), which may do anything"
    return f".{func.data[1]}()" if func.kind is Kind.BOUND else "a value that it was given"


def _known(site: CallSite, obj: Any, args: list[Value], keywords: Keywords) -> Value:
    analysis = site.analysis
    if id(obj) in tables.FUNCTIONS:
        return _trusted(site, name_of(obj), tables.FUNCTIONS[id(obj)][1], args, keywords)
    if id(obj) in tables.RE_FUNCTIONS:
        return regex(site, tables.RE_FUNCTIONS[id(obj)][1], args, keywords)
    special = _SPECIAL.get(id(obj)) or libraries.library_function(obj)
    if special is not None:
        return special(site, args, keywords)
    if type(obj) in tables.GETTERS or type(obj) is functools.partial:
        return _getter(site, obj, args, keywords)
    if type(obj) is FunctionType:
        return _call_function(analysis, obj, args, keywords)
    if isinstance(obj, type):
        if tables.is_error(obj) or analysis.makes(obj):
            for value in (*args, *keywords.values()):
                analysis.use(value)
            return ERROR if tables.is_error(obj) else SHARED
        if any(obj is made for made in (*tables.GETTERS, functools.partial)):
            return _made(site, obj, args, keywords)
    if type(obj) is BuiltinFunctionType and type(obj.__self__) is str:
        return method(site, Value(Kind.CONST, obj.__self__), obj.__name__, args, keywords)
    raise Impure(f"calls {name_of(obj)}")


def _trusted(site: CallSite, name: str, signature: tables.Signature, args: list[Value], keywords: Keywords) -> Value:
    analysis = site.analysis
    if signature.keywords is not None and not keywords.keys() <= signature.keywords:
        raise Impure(f"calls {name} with an argument {min(keywords.keys() - signature.keywords)}")
    rest = list(args)
    if isinstance(signature.calls, int) and rest:
        function = rest.pop(0)
        callback(site, function, signature.arity or len(rest))
    for value in rest:
        if not (signature.lazy and value.kind is Kind.LAZY):
            analysis.use(value)
    for keyword, value in keywords.items():
        if keyword == signature.calls:
            callback(site, value, signature.arity)
        else:
            analysis.use(value)
    scalar = signature.result is SHARED and signature.calls != 0 and all_scalar([*rest, *_data(keywords)])
    return SCALAR if scalar else signature.result


def _data(keywords: Keywords) -> list[Value]:
    return [value for name, value in keywords.items() if name != "key"]


def callback(site: CallSite, func: Value, arity: int) -> None:
    """Calls a function that was passed to a trusted one, which calls it with elements."""
    if func.kind is Kind.CONST and func.data is None:
        return
    if func.kind not in (Kind.CONST, Kind.FUNC, Kind.BOUND):
        raise Impure("calls a value that it was given")
    site.analysis.use(call(CallSite(site.analysis, None), func, [SHARED] * arity, {}))


def _local(site: CallSite, closure: Closure, args: list[Value], keywords: Keywords) -> Value:
    """Calls a function that the analysed one defined. Its parameters may be anything but iterators or the argument."""
    from fineflow.adapters.analysis.frame import Frame

    analysis, code = site.analysis, closure.code
    hidden = code.co_varnames[:1] == (".0",)  # the iterator of a comprehension
    for value in (*args, *keywords.values()):
        if not (hidden and value.kind is Kind.LAZY):
            analysis.use(value)
    key = (id(code), closure.path, tuple(cell.data for cell in closure.cells))
    if key not in analysis.bodies:
        # Result of a recursive call: data, because nothing else may be returned, or a generator.
        analysis.bodies[key] = LAZY if code.co_flags & 0x20 else SHARED
        outer = dict(zip(code.co_freevars, closure.cells, strict=True))
        frame = Frame(analysis, code, closure.owner, (*closure.path, id(code)), outer)
        analysis.bodies[key] = frame.run(_parameters(code))
    return analysis.bodies[key]


def _parameters(code: CodeType) -> dict[str, Value]:
    rest = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **kwargs come last
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + rest]
    return {name: LAZY if name == ".0" else SHARED for name in names}


def _call_function(analysis: Analysis, func: FunctionType, args: list[Value], keywords: Keywords) -> Value:
    code, values = func.__code__, [_passed(analysis, value) for value in args]
    given = dict(zip(code.co_varnames[: code.co_argcount], values, strict=False))
    return _function(analysis, func, given | {name: _passed(analysis, v) for name, v in keywords.items()})


def _passed(analysis: Analysis, value: Value) -> Value:
    """Returns an argument as the called function sees it: a known constant, or arbitrary data."""
    if value.kind in (Kind.OBJECT, Kind.COMPONENT):
        return value
    if value.kind is Kind.CONST and libraries.instance(value.data) is not None:
        return value
    if analysis.up_to_a_call and (value is ARG or (value.kind is Kind.BOUND and value.data[0].kind is Kind.COMPONENT)):
        return value
    return value if is_scalar(analysis.use(value)) else SHARED


def _function(analysis: Analysis, func: FunctionType, given: Keywords | None = None) -> Value:
    """Calls a plain function from outside: analyses it in turn.

    given: arguments by name, the other parameters have their defaults; None: they may be any data.
    """
    from fineflow.adapters.analysis.frame import Frame

    promise = analysis.promised(func)
    if promise is not None:
        for value in (given or {}).values():
            analysis.use(value)
        if promise[0]:
            return SHARED
        raise Impure(f"calls {func.__name__}, declared {promise[1]}")
    key = ("function", id(func), *((name, value.kind, id(value.data)) for name, value in (given or {}).items()))
    key = (*key, given is None)
    if key not in analysis.bodies:
        analysis.pin_function(func)
        parameters = _parameters(func.__code__)
        named = func.__code__.co_varnames[: func.__code__.co_argcount + func.__code__.co_kwonlyargcount]
        parameters |= {name: value for name, value in (given or {}).items() if name in named}
        for name, _ in defaults(func):
            if given is None or name not in given:
                value = analysis.default(func, name)
                parameters[name] = value if given is not None else analysis.meet(SHARED, value)
        analysis.bodies[key] = SHARED
        try:
            found = Frame(analysis, func.__code__, func, key).run(parameters)
        except Impure as problem:
            raise Impure(f"calls {func.__name__}, which {problem.reason}", problem.where) from None
        if found is LAZY:
            raise Impure(f"calls {func.__name__}, which is a generator")
        analysis.bodies[key] = found
    return analysis.bodies[key]


def _made(site: CallSite, cls: Any, args: list[Value], keywords: Keywords) -> Value:
    """Makes ``itemgetter("a")``, ``partial(f, 1)``: made from known objects, hence known itself."""
    first = 1 if cls is functools.partial else 0
    values = [*args, *keywords.values()]
    known = all(v.kind is Kind.CONST for v in values) and all(map(is_scalar, values[first:]))
    if site.place is None or not known:
        raise Impure(f"calls {name_of(cls)} with values that are not constant")
    count, names = len(args), tuple(keywords)

    def make(*parts: Any) -> Any:
        return cls(*parts[:count], **dict(zip(names, parts[count:], strict=True)))

    return site.analysis.fold((*site.place, names), values, make)


def _getter(site: CallSite, obj: Any, args: list[Value], keywords: Keywords) -> Value:
    """Calls ``itemgetter``, ``attrgetter``, ``methodcaller`` and ``partial`` objects."""
    analysis = site.analysis
    if type(obj) is functools.partial:
        bound = [_constant(value) for value in obj.args]
        named = {name: _constant(value) for name, value in obj.keywords.items()}
        return call(site, analysis.known(obj.func, name_of(obj.func)), [*bound, *args], named | keywords)
    if len(args) != 1 or keywords:
        raise Impure(f"calls {name_of(type(obj))} with other than one argument")
    made, parts = obj.__reduce__()
    if type(obj) is tables.ITEMGETTER:
        found = [subscript(analysis, args[0], _constant(part)) for part in parts]
    elif type(obj) is tables.ATTRGETTER:
        found = []
        for path in parts:
            value = args[0]
            for name in path.split("."):
                value = attribute(analysis, value, name)
            found.append(value)
    else:
        named = {}
        if type(made) is functools.partial:  # the __reduce__ form of a methodcaller with keywords
            parts, named = (*made.args, *parts), {k: _constant(v) for k, v in made.keywords.items()}
        return call(site, attribute(analysis, args[0], parts[0]), [_constant(part) for part in parts[1:]], named)
    used = [analysis.use(value) for value in found]
    return used[0] if len(used) == 1 else SHARED


def _constant(value: Any) -> Value:
    if not immutable(value):
        raise Impure(f"holds a {type(value).__name__}, which can change")
    return Value(Kind.CONST, value)


# --- builtins with special rules ------------------------------------------------------------------------------------


def _isinstance(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
    if len(args) == 2 and not keywords and args[1].kind is Kind.CONST:
        classes = args[1].data if type(args[1].data) is tuple else (args[1].data,)
        if all(type(cls) is type or tables.is_model(cls) or libraries.plain_check(cls) for cls in classes):
            site.analysis.use(args[0])
            return SCALAR
    raise Impure("calls isinstance with a class that may run code")


def _getattr(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
    if len(args) < 2 or args[1].kind is not Kind.CONST or type(args[1].data) is not str:
        raise Impure("reads an attribute whose name is not constant")
    if args[1].data not in tables.ATTRIBUTES and (args[0].kind is Kind.CONST or args[1].data.startswith("_")):
        raise Impure(f"reads attribute .{args[1].data}, which may run code")
    for value in (*args, *keywords.values()):
        site.analysis.use(value)
    return SHARED


def _iter(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
    if len(args) != 1 or keywords:
        raise Impure("calls iter with a function")
    if args[0].kind is not Kind.LAZY:
        site.analysis.use(args[0])
    return LAZY


def _next(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
    if not args or args[0].kind is not Kind.LAZY:
        raise Impure("advances an iterator that it did not create")
    for value in (*args[1:], *keywords.values()):
        site.analysis.use(value)
    return SHARED


def _defaultdict(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
    if len(args) != 1 or keywords or args[0].kind is not Kind.CONST or args[0].data not in tables.FACTORIES:
        raise Impure("calls defaultdict with other than a builtin type")
    return FRESH_DICT


_SPECIAL = {
    id(isinstance): _isinstance,
    id(getattr): _getattr,
    id(hasattr): _getattr,
    id(iter): _iter,
    id(next): _next,
    id(collections.defaultdict): _defaultdict,
}
