"""The source of functions, as syntax trees: only if it is what their bytecode was made of."""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Iterator
from threading import Lock
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

from fineflow.adapters.analysis.loops import comprehension
from fineflow.adapters.python.parts import codes

_parsing = Lock()  # ``ast.parse`` of Python 3.11 raises SystemError if two threads are in it (python/cpython#106905)


class _Module(NamedTuple):
    """A module as it was compiled: its lines, the nodes of its functions, and their bytecode."""

    name: str
    lines: list[str]
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef]
    lambdas: list[ast.Lambda]
    codes: list[CodeType]


_last: list[_Module] = []  # the one asked for last: functions of an app are mostly asked for one after the other


def definition(code: CodeType) -> ast.FunctionDef | None:
    """Returns the definition of a function; None if its source is not there, or not what was compiled."""
    found = written(code)
    return found if isinstance(found, ast.FunctionDef) else None


def written(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Returns the definition of a function or of a coroutine function; None as in ``definition``."""
    at, module = code.co_firstlineno, _module(code)
    if module is None:
        return None
    found = [node for node in module.functions if node.name == code.co_name and node.lineno == at]
    return found[0] if len(found) == 1 else None


def returned(code: CodeType) -> tuple[ast.arguments, ast.expr] | None:
    """Returns the parameters of a function, and the expression that is all it returns; None as in ``definition``.

    The function may be a ``lambda``, or a loop that builds a list (``loops``).
    """
    if code.co_name == "<lambda>":
        module = _module(code)
        spans = list(_spans(code))
        found = [] if module is None else [node for node in module.lambdas if _holds(node.body, spans)]
        one = min(found, key=_extent, default=None)  # those around it hold its instructions, too
        return None if one is None else (one.args, one.body)
    made = definition(code)
    if made is None:
        return None
    body = made.body[1:] if ast.get_docstring(made, clean=False) is not None else made.body
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    if value is None and (given := [*made.args.posonlyargs, *made.args.args]):
        value = comprehension(copy.deepcopy(body), given[0].arg)
    return None if value is None else (made.args, value)


def without_waiting(func: Any) -> FunctionType | None:
    """Returns a function that calls what a coroutine function awaits: ``invoke`` for ``ainvoke``. It is never called.

    None as in ``definition``, or if it does anything asynchronous besides awaiting.
    """
    tree = written(func.__code__) if type(func) is FunctionType else None
    if tree is None:
        return None
    names, cells = func.__code__.co_freevars, func.__closure__ or ()
    inner = ast.FunctionDef("inner", tree.args, [_Waits().visit(copy.deepcopy(each)) for each in tree.body], [])
    given = ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
    outer = ast.FunctionDef("outer", given, [inner], [])
    for each in (inner, outer):
        each.__dict__.setdefault("type_params", [])  # from Python 3.12 on
    try:
        made = compile(ast.fix_missing_locations(ast.Module([outer], [])), func.__code__.co_filename, "exec")
    except (SyntaxError, ValueError):  # it iterates over something asynchronous, or awaits in a comprehension
        return None
    code = _inside(_inside(made, "outer"), "inner")
    held = dict(zip(names, cells, strict=True))
    closure = tuple(held[name] for name in code.co_freevars)
    return FunctionType(code, func.__globals__, func.__name__, func.__defaults__, closure)


class _Waits(ast.NodeTransformer):
    def visit_Await(self, node: ast.Await) -> ast.AST:
        value = self.visit(node.value)
        called = value.func if isinstance(value, ast.Call) else None
        if isinstance(called, ast.Attribute):
            called.attr = called.attr.removeprefix("a")
        return cast(ast.AST, value)


def _inside(code: CodeType, name: str) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)


_Place = tuple[int, int]
"""Line and column."""


def _spans(code: CodeType) -> Iterator[tuple[_Place, _Place]]:
    """Yields where the instructions of a function begin and end in its source."""
    for line, last, column, end in code.co_positions():
        if line is not None and last is not None and column is not None and end:  # the first ones are at no place
            yield (line, column), (last, end)


def _holds(node: ast.expr, spans: list[tuple[_Place, _Place]]) -> bool:
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return bool(spans) and all(begin <= first and last <= end for first, last in spans)


def _extent(node: ast.Lambda) -> _Place:
    return (node.end_lineno or 0) - node.lineno, (node.end_col_offset or 0) - node.col_offset


def _module(code: CodeType) -> _Module | None:
    """Returns the module of a function; None if its source is not there, or another one."""
    name, lines = code.co_filename, linecache.getlines(code.co_filename)
    if not lines:
        return None
    with _parsing:
        module = next((each for each in _last if each.name == name and each.lines is lines), None)
        if module is None:
            try:
                text = "".join(lines)
                tree, whole = ast.parse(text), compile(text, name, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, SystemError):
                return None
            nodes = list(ast.walk(tree))
            functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            lambdas = [node for node in nodes if isinstance(node, ast.Lambda)]
            module = _Module(name, lines, functions, lambdas, list(codes(whole)))
            _last[:] = [module]
    return module if any(each == code for each in module.codes) else None
