"""Loops that build a list, as the comprehension that makes the same: ``made.append(...)`` once for each item.

Each round depends on its own item alone: what it reads of earlier rounds would show in no comprehension.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence


def comprehension(body: Sequence[ast.stmt], given: str) -> ast.ListComp | None:
    """Returns what a function returns whose body is a loop over ``given`` that appends; None for any other body.

    Before the loop it may name constants and values under keys of its argument, and within it what it makes of the
    item. The latter stand beside the appended value, in a tuple: the comprehension says what is read, not what is made.
    """
    if len(body) < 3:
        return None
    *before, loop, last = body
    if not isinstance(loop, ast.For) or loop.orelse or not isinstance(last, ast.Return):
        return None
    found = [_assigned(each) for each in before]
    if any(each is None for each in found):
        return None
    names = dict(filter(None, found))
    out = last.value.id if isinstance(last.value, ast.Name) else ""
    made = names.pop(out, None)
    if len(names) + 1 != len(before) or not isinstance(made, ast.List) or made.elts or given in names:
        return None
    if not all(isinstance(value, ast.Constant) or _of(value, given) for value in names.values()):
        return None
    parts = _round(loop, out)
    if parts is None or not _stored(loop).isdisjoint({out, given, *names}) or out in _loaded([loop.iter]):
        return None
    known = _Known(names)
    elements = [known.visit(part) for part in parts]
    each = ast.comprehension(target=loop.target, iter=known.visit(loop.iter), ifs=[], is_async=0)
    return ast.ListComp(elt=ast.Tuple(elts=elements, ctx=ast.Load()), generators=[each])


def _round(loop: ast.For, out: str) -> list[ast.expr] | None:
    """Returns the expressions of one round; None unless it appends once, at its end, and depends on its item alone."""
    *steps, last = loop.body
    found = [_assigned(each) for each in steps]
    if any(each is None for each in found) or not _appends(last, out):
        return None
    names = [name for name, _ in filter(None, found)]
    parts = [value for _, value in filter(None, found)] + [last.value.args[0]]  # type: ignore[attr-defined]
    own = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    for number, part in enumerate(parts):
        earlier = set(names[number:]) - set(names[:number]) - own  # read before this round has set it
        if not _loaded([part]).isdisjoint({out, *earlier}):
            return None
    return parts


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Returns the name and the value of an assignment to one variable; None for any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return None
    return (target.id, value) if isinstance(target, ast.Name) else None


def _appends(statement: ast.stmt, out: str) -> bool:
    """Returns True for ``out.append(value)``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        return False
    func = call.func
    return isinstance(func, ast.Attribute) and func.attr == "append" and _loaded([func.value]) == {out}


def _of(value: ast.expr, given: str) -> bool:
    """Returns True for ``given["key"]``."""
    held = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.value
    return isinstance(held, ast.Name) and held.id == given


def _loaded(nodes: Sequence[ast.AST]) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def _stored(loop: ast.For) -> set[str]:
    return {each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}


class _Known(ast.NodeTransformer):
    """Puts what variables stand for in their place, in a copy of an expression."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._names.get(node.id, node)
