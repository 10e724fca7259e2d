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

from fineflow.adapters.analysis.sources import definition


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
    tree = definition(code)
    made = _comprehension(tree) if tree is not None else None
    if tree is None or made is None or tree.args.vararg or tree.args.kwarg:
        return None, False
    given = (*tree.args.posonlyargs, *tree.args.args)[0].arg
    lists, zipped = _iterated(made.generators[0].iter)
    if zipped and "zip" not in code.co_names:
        return None, True
    keys = [_key(each, given) for each in lists]
    if not keys or (None in keys and len(lists) > 1):
        return None, zipped
    used = keys if None not in keys else []
    if any(each is None for each in keys) and not _is(lists[0], given):
        return None, zipped
    if not _leaves_alone(made.elt, given, used) or not _leaves_alone(made.generators[0].target, given, used):
        return None, zipped
    return Itemwise(tuple(key for key in keys if key is not None) or None), zipped


def _comprehension(tree: ast.FunctionDef) -> ast.ListComp | None:
    """Returns the list comprehension that is all that a function returns."""
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    if len(body) != 1 or not isinstance(body[0], ast.Return) or not isinstance(body[0].value, ast.ListComp):
        return None
    (one, *more) = body[0].value.generators
    return None if more or one.ifs or one.is_async else body[0].value


def _iterated(given: ast.expr) -> tuple[list[ast.expr], bool]:
    """Returns the lists that are iterated, and whether by ``zip``."""
    if not (isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and given.func.id == "zip"):
        return [given], False
    return list(given.args), True


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _key(node: ast.AST, given: str) -> str | None:
    """Returns the key in ``given["key"]``; None for anything else."""
    if isinstance(node, ast.Subscript) and _is(node.value, given) and isinstance(node.slice, ast.Constant):
        return node.slice.value if isinstance(node.slice.value, str) else None
    return None


def _leaves_alone(node: ast.AST, given: str, lists: list[str | None]) -> bool:
    """Returns True if an expression uses of the argument nothing but other keys than those of the lists."""
    if isinstance(node, ast.NamedExpr) or _is(node, given):
        return False
    if (key := _key(node, given)) is not None:
        return key not in lists and bool(lists)
    return all(_leaves_alone(each, given, lists) for each in ast.iter_child_nodes(node))
