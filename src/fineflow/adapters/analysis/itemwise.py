"""Functions that make a list item by item: called with lists of one item each, they make that item alone.

From their source: one list comprehension without conditions, over a list or over several by ``zip``, that uses these
lists for nothing else.
"""

from __future__ import annotations

import ast
import builtins
from functools import lru_cache
from opcode import opmap
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from fineflow.adapters.analysis.sources import returned


class Itemwise(NamedTuple):
    """keys: of the lists in the function's argument; None if the argument is the list."""

    keys: tuple[str, ...] | None


def itemwise(func: Any) -> Itemwise | None:
    """Returns how a pure function makes its list item by item; None unless it is known to."""
    if type(func) is not FunctionType or func.__code__.co_argcount != 1 or func.__code__.co_kwonlyargcount:
        return None
    if not _comprehends(func.__code__):  # sources are read for few functions: that takes milliseconds
        return None
    found, zipped = _read(func.__code__)
    if zipped and (func.__globals__.get("zip", zip) is not zip or builtins.zip is not zip):
        return None
    return found


def _comprehends(code: CodeType) -> bool:
    """Returns True if a function may hold a list comprehension, as far as its bytecode shows."""
    inner = any(isinstance(each, CodeType) and each.co_name == "<listcomp>" for each in code.co_consts)
    return inner or opmap["LIST_APPEND"] in code.co_code[::2]  # from Python 3.12 on it has no code of its own


@lru_cache(maxsize=512)
def _read(code: CodeType) -> tuple[Itemwise | None, bool]:
    """Returns what the source says, and whether it calls ``zip``."""
    found = returned(code)
    made = _comprehension(found[1]) if found is not None else None
    if found is None or made is None or found[0].vararg or found[0].kwarg:
        return None, False
    given = (*found[0].posonlyargs, *found[0].args)[0].arg
    lists, zipped = iterated(made.generators[0].iter)
    if zipped and "zip" not in code.co_names:
        return None, True
    keys = [key_of(each, given) for each in lists]
    if not keys or (None in keys and len(lists) > 1):
        return None, zipped
    used = keys if None not in keys else []
    if any(each is None for each in keys) and not is_name(lists[0], given):
        return None, zipped
    if not leaves_alone(made.elt, given, used) or not leaves_alone(made.generators[0].target, given, used):
        return None, zipped
    return Itemwise(tuple(key for key in keys if key is not None) or None), zipped


def _comprehension(expr: ast.expr) -> ast.ListComp | None:
    """Returns an expression that is a list comprehension without conditions, over one iterable."""
    if not isinstance(expr, ast.ListComp):
        return None
    (one, *more) = expr.generators
    return None if more or one.ifs or one.is_async else expr


def iterated(given: ast.expr) -> tuple[list[ast.expr], bool]:
    """Returns the lists that are iterated, and whether by ``zip``."""
    if not (isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and given.func.id == "zip"):
        return [given], False
    return list(given.args), True


def is_name(node: ast.AST, name: str) -> bool:
    """Returns True for the variable of that name."""
    return isinstance(node, ast.Name) and node.id == name


def key_of(node: ast.AST, given: str) -> str | None:
    """Returns the key in ``given["key"]``; None for anything else."""
    if isinstance(node, ast.Subscript) and is_name(node.value, given) and isinstance(node.slice, ast.Constant):
        return node.slice.value if isinstance(node.slice.value, str) else None
    return None


def leaves_alone(node: ast.AST, given: str, lists: list[str | None]) -> bool:
    """Returns True if an expression uses of the argument nothing but other keys than those of the lists."""
    if isinstance(node, ast.NamedExpr) or is_name(node, given):
        return False
    if (key := key_of(node, given)) is not None:
        return key not in lists and bool(lists)
    return all(leaves_alone(each, given, lists) for each in ast.iter_child_nodes(node))
