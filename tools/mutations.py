"""Small faults for ``mutants.py``: what can be changed in a source, each change by itself.

Left alone are texts (docstrings, f-strings, what ``raise`` and ``assert`` say), annotations, decorators, ``__repr__``,
``if TYPE_CHECKING``, and what makes no difference that a test could see (``zip(strict=True)``, ``field(repr=False)``).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

SHOWN = 40  # characters of an expression in the name of a mutation

_Put = Callable[[Any], None]  # puts another node in the place of one
_Change = tuple[int, str, str, Callable[[], None]]  # line, what it was, what it becomes, and what makes it so

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_TEXTS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"},
    **{ast.And: "and", ast.Or: "or", ast.Add: "+", ast.Sub: "-"},
}
_NEGATED_ALREADY = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # their swap is the negation
_LEFT_OUT = frozenset({"annotation", "returns", "decorator_list"})


@dataclass(frozen=True)
class Mutation:
    """One change. number: its place among those of the source; change: readable and unique within it."""

    number: int
    line: int
    change: str


@dataclass(frozen=True)
class _Site:
    """Where a mutation is made: the innermost statement is ``within[place]``."""

    change: _Change
    within: list[ast.stmt]
    place: int


def mutations(source: str) -> list[Mutation]:
    """Returns what can be changed in a source, in the order of the syntax tree."""
    seen: Counter[tuple[int, str]] = Counter()
    made = []
    for number, site in enumerate(_sites(ast.parse(source))):
        line, was, becomes, _ = site.change
        change = f"{was!r} -> {becomes!r}"
        seen[line, change] += 1
        again = seen[line, change]
        made.append(Mutation(number, line, f"{change} (no. {again})" if again > 1 else change))
    return made


def mutated(source: str, number: int) -> tuple[ast.Module, str, str]:
    """Returns the tree of a source with a change made, and the line that differs, before and after, as unparsed."""
    tree = ast.parse(source)
    site = list(_sites(tree))[number]
    before = ast.unparse(site.within[site.place]).splitlines()
    site.change[3]()
    after = ast.unparse(ast.fix_missing_locations(site.within[site.place])).splitlines()
    lines = next((pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]), (before[0], after[0]))
    return ast.fix_missing_locations(tree), lines[0].strip(), lines[1].strip()


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for place, statement in enumerate(tree.body):
        yield from _below(statement, partial(tree.body.__setitem__, place), tree.body, place)


def _below(node: ast.AST, put: _Put, within: list[ast.stmt], place: int) -> Iterator[_Site]:
    """The sites of a node and of all that it holds."""
    if _left_alone(node):
        return
    for change in _changes(node, put):
        yield _Site(change, within, place)
    for name, value in ast.iter_fields(node):
        if name in _LEFT_OUT or (name == "slice" and _is_first_or_last(value)) or _of_zip(node, name):
            continue
        if isinstance(value, ast.AST):
            yield from _below(value, partial(setattr, node, name), within, place)
        elif isinstance(value, list):
            for position, item in enumerate(value):
                around = (value, position) if isinstance(item, ast.stmt) else (within, place)
                if isinstance(item, ast.AST):
                    yield from _below(item, partial(value.__setitem__, position), *around)


def _left_alone(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Assert():
            return True
        case ast.FunctionDef(name="__repr__") | ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.keyword(arg="repr"):
            return True
    return False


def _of_zip(node: ast.AST, field: str) -> bool:
    match node:
        case ast.Call(func=ast.Name("zip")):
            return field == "keywords"
    return False


def _is_first_or_last(index: Any) -> bool:
    match index:
        case ast.Constant(value=0 | 1) | ast.UnaryOp(ast.USub(), ast.Constant(value=1)):
            return True
    return False


def _changes(node: ast.AST, put: _Put) -> Iterator[_Change]:
    """The changes to a node itself."""
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                other = _COMPARISONS[type(operator)]
                swap = partial(operators.__setitem__, place, other())
                yield node.lineno, _TEXTS[type(operator)], _TEXTS[other], swap
        case ast.BoolOp(op=ast.And() | ast.Or() as joined):
            yield _swapped(node, joined, ast.Or if isinstance(joined, ast.And) else ast.And)
        case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Sub() as sign):
            if not _is_display(left) and not _is_display(right):
                yield _swapped(node, sign, ast.Sub if isinstance(sign, ast.Add) else ast.Add)
        case ast.AugAssign(value=value, op=ast.Add() | ast.Sub() as sign) if not _is_display(value):
            yield _swapped(node, sign, ast.Sub if isinstance(sign, ast.Add) else ast.Add)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node.lineno, _shown(node), _shown(operand), partial(put, operand)
        case ast.Constant(value=bool() as truth):
            yield node.lineno, str(truth), str(not truth), partial(put, ast.Constant(not truth))
        case ast.Constant(value=int() as number):
            yield node.lineno, str(number), str(number + 1), partial(put, ast.Constant(number + 1))
        case ast.Return(value=ast.expr() as value) if not _says_no(value):
            nothing = ast.Return(ast.Constant(None))
            yield node.lineno, _shown(node), "return None", partial(put, nothing)
        case ast.Continue():
            yield node.lineno, "continue", "break", partial(put, ast.Break())
        case ast.Break():
            yield node.lineno, "break", "continue", partial(put, ast.Continue())
        case ast.Expr(value=ast.Call() | ast.Await(ast.Call())):
            yield node.lineno, _shown(node), "pass", partial(put, ast.Pass())
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from _negated(test, partial(setattr, node, "test"))
        case ast.comprehension(ifs=tests):
            for place, test in enumerate(tests):
                yield from _negated(test, partial(tests.__setitem__, place))


def _swapped(node: ast.expr | ast.stmt, operator: ast.AST, other: type[ast.AST]) -> _Change:
    return node.lineno, _TEXTS[type(operator)], _TEXTS[other], partial(setattr, node, "op", other())


def _negated(test: ast.expr, put: _Put) -> Iterator[_Change]:
    """Negates a condition, unless another mutation is the same."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return
        case ast.Compare(ops=[operator]) if isinstance(operator, _NEGATED_ALREADY):
            return
    negated = ast.UnaryOp(ast.Not(), test)
    yield test.lineno, f"if {_shown(test)}", f"if {_shown(negated)}", partial(put, negated)


def _is_display(node: ast.expr) -> bool:
    """Whether ``-`` could only fail: a text, a list or a tuple that is written out."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _says_no(node: ast.expr) -> bool:
    """Whether ``return None`` would be nearly the same, or the same as the swap of True and False."""
    return isinstance(node, ast.Constant) and (not node.value or isinstance(node.value, bool))


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
