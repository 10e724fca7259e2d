"""Keys that a function reads of its argument, and those of the dict that it returns, as far as its code shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

from fineflow.adapters.analysis.sources import written
from fineflow.adapters.python.bytecode import Instruction, decode
from fineflow.declare import undeclared

# These let a function access its argument without naming it.
_FRAMES = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack"})


def keys_read(func: Any, parameter: str = "") -> frozenset[str] | None:
    """Returns the keys that ``func`` may read of a parameter, if it does nothing else with it; None: anything.

    parameter: its name; default: the first one (of a bound method the first after ``self``). Looks at the instructions
    alone: each use must be ``argument["key"]`` or ``argument.get("key", ...)``, with a constant key.
    """
    skipped = 1 if isinstance(func, MethodType) else 0
    func = undeclared(getattr(func, "__func__", func))
    if type(func) is not FunctionType:
        return None
    code = func.__code__
    names = code.co_varnames[skipped : code.co_argcount + (code.co_kwonlyargcount if parameter else 0)]
    name = parameter or next(iter(names), "")
    return _keys(code, name) if name in names else None


@lru_cache(maxsize=1024)
def _keys(code: CodeType, name: str) -> frozenset[str] | None:
    if name in code.co_cellvars or not _FRAMES.isdisjoint(code.co_names):
        return None
    found: set[str] = set()
    instructions = decode(code)
    for i, each in enumerate(instructions):
        if "_FAST" not in each.name or each.value != name:
            continue
        key = _key(instructions[i : i + 5]) if each.name == "LOAD_FAST" else None
        if key is None:
            return None
        found.add(key)
    return frozenset(found)


def _key(use: Sequence[Instruction]) -> str | None:
    """Returns the constant key of the subscript or ``.get`` call that begins by loading the argument."""
    names = [each.name for each in use]
    if names[1:3] == ["LOAD_CONST", "BINARY_SUBSCR"]:
        key = use[1].value
    elif names[1:3] == ["LOAD_METHOD", "LOAD_CONST"] and use[1].value == "get":
        called = use[4 if names[3:4] == ["LOAD_CONST"] else 3 :][:1]
        key = use[2].value if [(each.name, each.value) for each in called] == [("CALL", ())] else None
    else:
        return None
    return key if isinstance(key, str) else None


def keys_returned(func: Any) -> frozenset[str] | None:
    """Returns the keys of the dict that a function returns, as its source says; None: any."""
    func = undeclared(getattr(func, "__func__", func))
    tree = written(func.__code__) if type(func) is FunctionType else None
    if tree is None:
        return None
    found = [_shown(each.value, tree) for each in _own(tree) if isinstance(each, ast.Return)]
    return None if None in found else frozenset(key for keys in found for key in keys or ())


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a function, but not of those in it."""
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own(each)


def _shown(value: ast.expr | None, function: ast.AST) -> set[str] | None:
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return set()
    if isinstance(value, ast.Dict):
        keys = [each.value if isinstance(each, ast.Constant) else None for each in value.keys]
        return {str(each) for each in keys} if None not in keys else None
    if isinstance(value, ast.IfExp):
        both = [_shown(value.body, function), _shown(value.orelse, function)]
        return None if None in both else {key for keys in both for key in keys or ()}
    if isinstance(value, ast.Name):
        return _keys_of(value.id, function)
    return None


def _keys_of(name: str, function: ast.AST) -> set[str] | None:
    """Returns the keys of a dict in a variable that is made once, and gets items; None if more is done with it."""
    found, known = set[str](), False
    for each in _own(function):
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id == name:
            keys = _shown(each.value, function) if isinstance(each.value, ast.Dict) and not known else None
            if keys is None:
                return None
            found, known = keys, True
        elif isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name) and each.value.id == name:
            if not isinstance(each.slice, ast.Constant):
                return None
            found.add(str(each.slice.value))
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == name:
            return None
    return found if known else None
