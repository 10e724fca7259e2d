"""Functions that make a list item by item: called with lists of one item each, they make that item alone.

From their source: one list comprehension without conditions, or a loop that does the same, over a list or over several
by ``zip``, also with their numbers by ``enumerate``, that uses these lists for nothing else.
"""

from __future__ import annotations

import ast
import builtins
from functools import lru_cache
from opcode import opmap
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from fineflow.adapters.analysis.sources import returned

_ITERATORS: dict[str, Any] = {"zip": zip, "enumerate": enumerate}


class Itemwise(NamedTuple):
    """keys: of the lists in the function's argument; None if the argument is the list. numbered: by ``enumerate``."""

    keys: tuple[str, ...] | None
    numbered: bool = False

    def at(self, func: FunctionType, place: int) -> FunctionType:
        """Returns a function that makes what ``func`` makes of the item at this place, of lists of that item alone."""
        if not self.numbered:
            return func

        def shifted(items: Any, start: int = 0) -> Any:
            return enumerate(items, start + place)

        made = FunctionType(
            func.__code__,
            {**func.__globals__, "enumerate": shifted},
            func.__name__,
            func.__defaults__,
            func.__closure__,
        )
        return made


def itemwise(func: Any) -> Itemwise | None:
    """Returns how a pure function makes its list item by item; None unless it is known to."""
    if type(func) is not FunctionType or func.__code__.co_argcount != 1 or func.__code__.co_kwonlyargcount:
        return None
    if not _comprehends(func.__code__):  # sources are read for few functions: that takes milliseconds
        return None
    found = _read(func.__code__)
    for name, known in _ITERATORS.items():
        if name in func.__code__.co_names and not (
            func.__globals__.get(name, known) is getattr(builtins, name) is known
        ):
            return None
    return found


def _comprehends(code: CodeType) -> bool:
    """Returns True if a function may hold a list comprehension, as far as its bytecode shows."""
    inner = any(isinstance(each, CodeType) and each.co_name == "<listcomp>" for each in code.co_consts)
    loop = "append" in code.co_names and opmap["FOR_ITER"] in code.co_code[::2]
    return inner or loop or opmap["LIST_APPEND"] in code.co_code[::2]  # from Python 3.12 on it has no code of its own


@lru_cache(maxsize=512)
def _read(code: CodeType) -> Itemwise | None:
    """Returns what the source says, if ``zip`` and ``enumerate`` are Python's."""
    found = returned(code)
    made = _comprehension(found[1]) if found is not None else None
    if found is None or made is None or found[0].vararg or found[0].kwarg:
        return None
    given = (*found[0].posonlyargs, *found[0].args)[0].arg
    counted = numbered(made.generators[0].iter)
    lists, zipped = iterated(made.generators[0].iter if counted is None else counted)
    if (zipped and "zip" not in code.co_names) or (counted is not None and not _counts_once(made, code)):
        return None
    keys = [key_of(each, given) for each in lists]
    if not keys or (None in keys and len(lists) > 1):
        return None
    used = keys if None not in keys else []
    if any(each is None for each in keys) and not is_name(lists[0], given):
        return None
    parts: list[ast.expr] = [made.elt, made.generators[0].target]
    if counted is not None:
        parts += numbering(made.generators[0].iter)
    if not all(leaves_alone(each, given, used) for each in parts):
        return None
    return Itemwise(tuple(key for key in keys if key is not None) or None, counted is not None)


def _counts_once(made: ast.ListComp, code: CodeType) -> bool:
    """Returns True if ``enumerate`` is a global of the function, named once in its whole code."""
    named = [each for each in ast.walk(made) if is_name(each, "enumerate")]
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return len(named) == 1 and "enumerate" in code.co_names and not any("enumerate" in each.co_names for each in inner)


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


def numbered(given: ast.expr) -> ast.expr | None:
    """Returns what ``enumerate`` numbers; None for any other expression."""
    if isinstance(given, ast.Call) and is_name(given.func, "enumerate") and given.args:
        return given.args[0]
    return None


def numbering(given: ast.expr) -> list[ast.expr]:
    """Returns the other arguments of ``enumerate``."""
    assert isinstance(given, ast.Call)
    return [*given.args[1:], *(each.value for each in given.keywords)]


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
