"""Coroutine functions as the functions that they would be if nothing had to wait, for an analysis of these."""

from __future__ import annotations

import ast
import copy
from types import CodeType, FunctionType
from typing import Any, cast

from fineflow.adapters.analysis.sources import written


def without_waiting(func: Any) -> FunctionType | None:
    """Returns a function that calls what a coroutine function awaits: ``invoke`` for ``ainvoke``. It is never called.

    None if its source is not there (``sources``), or if it does anything asynchronous besides awaiting.
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
