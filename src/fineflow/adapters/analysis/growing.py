"""Functions whose value for the first members of a list is the beginning of their value for all of them.

From their source: a comprehension over a list, or over several by ``zip``, that uses these lists for nothing else, also
with conditions; such a list, or the argument itself, joined to a text; or a dict that holds one of these.
"""

from __future__ import annotations

import ast
import builtins
import dis
from functools import lru_cache
from types import BuiltinMethodType, CodeType, FunctionType
from typing import Any, NamedTuple

from fineflow.adapters.analysis.itemwise import is_name, iterated, key_of, leaves_alone, numbered
from fineflow.adapters.analysis.sources import returned
from fineflow.adapters.python.functions import codes

_ITERATORS = {"zip": zip, "enumerate": enumerate}
_FOR = dis.opmap["FOR_ITER"]


class Growing(NamedTuple):
    """keys: of the lists in the function's argument; None if the argument is the list. made: the key of what grows in
    the dict that it returns; None if it returns just that.
    """

    keys: tuple[str, ...] | None
    made: str | None = None


def growing(func: Any) -> Growing | None:
    """Returns how the value of a pure function grows with its lists; None unless it is known to."""
    if type(func) is BuiltinMethodType:
        return Growing(None) if type(func.__self__) is str and func.__name__ == "join" else None
    if type(func) is not FunctionType or func.__code__.co_argcount != 1 or func.__code__.co_kwonlyargcount:
        return None
    code, names = func.__code__, func.__globals__
    read = {name for each in codes(code) for name in each.co_names}
    for name, known in _ITERATORS.items():
        if name in read and (names.get(name, known) is not known or getattr(builtins, name) is not known):
            return None
    return _read(code) if _goes_through(code) else None


def _goes_through(code: CodeType) -> bool:
    """Returns False for a function without a loop or a join: for most, no source is read."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return "join" in code.co_names or _FOR in code.co_code[::2] or any(map(_goes_through, inner))


@lru_cache(maxsize=512)
def _read(code: CodeType) -> Growing | None:
    found = returned(code)
    if found is None or found[0].vararg or found[0].kwarg:
        return None
    given, expr = (*found[0].posonlyargs, *found[0].args)[0].arg, found[1]
    if not isinstance(expr, ast.Dict):
        return _grows(expr, given)
    for name, value in zip(expr.keys, expr.values, strict=True):
        grown = _grows(value, given) if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
        if grown is not None:
            others = (each for each in (*expr.keys, *expr.values) if each is not None and each is not value)
            alone = None not in expr.keys and all(leaves_alone(each, given, list(grown.keys or ())) for each in others)
            return Growing(grown.keys, name.value) if alone else None  # type: ignore[union-attr]
    return None


def _grows(expr: ast.expr, given: str) -> Growing | None:
    """Returns how the value of an expression grows with the lists in the argument ``given``."""
    if isinstance(expr, ast.ListComp):
        return _comprehended(expr, given)
    if isinstance(expr, ast.Call) and len(expr.args) == 1 and not expr.keywords and _joins(expr.func):
        (texts,) = expr.args
        if isinstance(texts, ast.ListComp | ast.GeneratorExp):
            return _comprehended(texts, given)
        return _lists([texts], given)
    return None


def _joins(func: ast.expr) -> bool:
    """Returns True for ``"...".join``."""
    return isinstance(func, ast.Attribute) and func.attr == "join" and isinstance(func.value, ast.Constant)


def _comprehended(expr: ast.ListComp | ast.GeneratorExp, given: str) -> Growing | None:
    (one, *more) = expr.generators
    if more or one.is_async:
        return None
    counted = numbered(one.iter)
    found = _lists(iterated(one.iter if counted is None else counted)[0], given)
    if found is None:
        return None
    parts = (expr.elt, one.target, *one.ifs)
    return found if all(leaves_alone(each, given, list(found.keys or ())) for each in parts) else None


def _lists(exprs: list[ast.expr], given: str) -> Growing | None:
    """Returns what the lists in these expressions are: the argument itself, or values under keys of it."""
    if len(exprs) == 1 and is_name(exprs[0], given):
        return Growing(None)
    keys = [key_of(each, given) for each in exprs]
    return Growing(tuple(key for key in keys if key is not None)) if keys and None not in keys else None
