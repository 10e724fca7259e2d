"""Functions that embed texts and then write one row for each vector, all in one transaction.

Such a function may get its vectors while its loop is running: it looks at each only when it writes the row, and if a
vector or a row fails, the transaction leaves nothing behind, as when all vectors are made before the first row. From
the source of the function, which must be that of its bytecode: between the call that embeds and the end of the loop
there may only be expressions that compute on plain data, and INSERTs.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from fineflow.adapters.analysis.sources import definition
from fineflow.adapters.analysis.transactions import undone
from fineflow.adapters.core.installers import if_imported

EMBEDS = "embed_documents"

_PURE = (len, str, repr, list, tuple, dict, range, zip, enumerate, float, int, bool, sorted, min, max)
_PURE_MODULES = {json: ("dumps",), struct: ("pack",), uuid: ("uuid4", "uuid5")}
_PURE_ARRAYS = ("array", "asarray", "float32", "float64")  # of numpy
_PURE_METHODS = frozenset(
    (
        "tobytes",
        "tolist",
        "get",
        "items",
        "keys",
        "values",
        "join",
        "strip",
        "hex",
        "copy",
        "replace",
        "lower",
        "encode",
    )
)
_PLAIN = (
    *(ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.IfExp, ast.Starred),
    *(ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.FormattedValue, ast.keyword, ast.Call),
    *(ast.operator, ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context),
)
_WRITES = ("INSERT ", "REPLACE ")


@dataclass(frozen=True, slots=True)
class _Transaction:
    """What a function enters around its loop: an attribute of a variable, and the method that is called on it."""

    variable: str
    attributes: tuple[str, ...]
    method: str


def writes_rows(frame: FrameType | None) -> bool:
    """Returns True if the function in ``frame``, which is embedding texts, may get their vectors one after the other.

    Reads the state of the connection that it is going to use. False if anything is not known.
    """
    found = None if frame is None else _transaction(frame.f_code)
    if frame is None or found is None:
        return False
    try:
        names = {name: _resolved(frame, name) for name in _called(frame.f_code)}
        if not all(_is_pure(*each) for each in names.items()):
            return False
        held = frame.f_locals[found.variable]
        for attribute in found.attributes:
            there = inspect.getattr_static(held, attribute)
            if hasattr(type(there), "__get__") and not inspect.ismemberdescriptor(there):
                return False  # a property may make another connection each time
            held = getattr(held, attribute)
        return undone(held, found.method)
    except Exception:  # user code that is not what it looks like: then it gets all vectors at once
        return False


def _resolved(frame: FrameType, name: str) -> Any:
    if name in frame.f_globals:
        return frame.f_globals[name]
    return getattr(builtins, name)


def _is_pure(name: str, value: Any) -> bool:
    if name == "text":
        return value is if_imported("sqlalchemy", "text")
    if inspect.ismodule(value):
        return value in _PURE_MODULES or value.__name__ == "numpy"
    allowed = (*_PURE, *(getattr(module, each) for module, names in _PURE_MODULES.items() for each in names))
    return any(value is each for each in allowed)


@lru_cache(maxsize=256)
def _transaction(code: CodeType) -> _Transaction | None:
    made = definition(code)
    return None if made is None else _Reader(made, code).transaction()


@lru_cache(maxsize=256)
def _called(code: CodeType) -> frozenset[str]:
    """Returns the global names that the part of the function between embedding and the end of its loop calls."""
    made = definition(code)
    return frozenset() if made is None else frozenset(_Reader(made, code).called())


class _Reader:
    """Reads the statements of one function."""

    def __init__(self, made: ast.FunctionDef, code: CodeType) -> None:
        self._made, self._locals = made, {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        self._handles: list[str] = []  # as source: what executes statements in the transaction
        self._lists: set[str] = set()  # local lists that the function has made itself

    def transaction(self) -> _Transaction | None:
        """Returns the transaction in which the function writes all rows; None if it does anything else."""
        parts = self._parts()
        if parts is None:
            return None
        vectors, between, block = parts
        stored = [n.id for n in ast.walk(self._made) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._lists = {name for name in _new_lists(self._made) if stored.count(name) == 1}
        entered = _entered(block.items[0].context_expr)
        if entered is None or not all(map(self._quiet, between)) or not self._handled(block.items):
            return None
        return entered if self._loops(block.body, vectors) and self._kept(entered, (*between, block)) else None

    def _kept(self, entered: _Transaction, statements: Sequence[ast.stmt]) -> bool:
        """Returns True if the variables that hold the connection and its cursors are assigned once, or not again."""
        nodes = [n for each in statements for n in ast.walk(each)]
        stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        return entered.variable not in stored and all(stored.count(name) <= 1 for name in self._handles)

    def called(self) -> Iterator[str]:
        """Yields the names that are called, and those whose attributes are called, unless they are local."""
        parts = self._parts()
        for statement in () if parts is None else (*parts[1], parts[2]):
            for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
                name = call.func.value if isinstance(call.func, ast.Attribute) else call.func
                if isinstance(name, ast.Name) and name.id not in self._locals:
                    yield name.id

    def _parts(self) -> tuple[str, Sequence[ast.stmt], ast.With] | None:
        """Returns the variable of the vectors, the statements after the call that embeds, and the ``with`` block."""
        body = self._made.body
        asked = [n for n in ast.walk(self._made) if isinstance(n, ast.Attribute) and n.attr == EMBEDS]
        at = next((i for i, each in enumerate(body) if _embeds(each)), None)
        if at is None or len(asked) != 1 or not self._made.args.args:
            return None
        statement: Any = body[at]
        target: Any = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        vectors = target.id
        end = next((i for i in range(at + 1, len(body)) if isinstance(body[i], ast.With)), None)
        if end is None or sum(isinstance(n, ast.Name) and n.id == vectors for n in ast.walk(self._made)) != 2:
            return None
        block = body[end]
        assert isinstance(block, ast.With)
        return vectors, body[at + 1 : end], block

    def _handled(self, items: Sequence[ast.withitem]) -> bool:
        """Notes what executes statements in the block. Returns False if it enters anything but cursors besides."""
        first, *others = items
        expression = first.context_expr
        if not isinstance(expression, ast.Call):
            self._handles.append(ast.unparse(expression))
        elif isinstance(expression.func, ast.Attribute) and expression.func.attr != "begin":
            self._handles.append(ast.unparse(expression.func.value))
        if first.optional_vars is not None:
            self._handles.append(ast.unparse(first.optional_vars))
        return all(self._cursor(each.context_expr, each.optional_vars) for each in others)

    def _cursor(self, made: ast.expr, name: ast.expr | None) -> bool:
        if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute) or made.func.attr != "cursor":
            return False
        if name is None or ast.unparse(made.func.value) not in self._handles:
            return False
        self._handles.append(ast.unparse(name))
        return True

    def _loops(self, body: Sequence[ast.stmt], vectors: str) -> bool:
        """Returns True if the block consists of the loop, and of what is quiet."""
        found = 0
        for statement in body:
            if isinstance(statement, ast.With):
                cursors = all(self._cursor(each.context_expr, each.optional_vars) for each in statement.items)
                return cursors and len(body) == 1 and self._loops(statement.body, vectors)
            if isinstance(statement, ast.For):
                found += 1
                if statement.orelse or not self._over(statement.iter, vectors) or not _plain_target(statement.target):
                    return False
                if not all(self._quiet(each) or self._inserts(each) for each in statement.body):
                    return False
            elif not self._quiet(statement) and not self._opens(statement):
                return False
        return found == 1

    def _over(self, iterated: ast.expr, vectors: str) -> bool:
        """Returns True if a loop takes one vector after the other: from the variable, ``zip`` or ``enumerate``."""
        if isinstance(iterated, ast.Name) and iterated.id == vectors:
            return True
        if not isinstance(iterated, ast.Call) or not isinstance(iterated.func, ast.Name):
            return False
        if iterated.func.id not in ("zip", "enumerate") or iterated.func.id in self._locals:
            return False
        over = [self._over(each, vectors) for each in iterated.args]
        others = [each for each, taken in zip(iterated.args, over, strict=True) if not taken]
        return sum(over) == 1 and all(map(self._is_plain, (*others, *(each.value for each in iterated.keywords))))

    def _opens(self, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        return isinstance(statement.targets[0], ast.Name) and self._cursor(statement.value, statement.targets[0])

    def _inserts(self, statement: ast.stmt) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or _attribute(call) != "execute" or not call.args:
            return False
        assert isinstance(call.func, ast.Attribute)
        return (
            ast.unparse(call.func.value) in self._handles
            and _one_insert(call.args[0])
            and all(map(self._is_plain, (*call.args[1:], *(each.value for each in call.keywords))))
        )

    def _quiet(self, statement: ast.stmt) -> bool:
        """Returns True if a statement computes on plain data, and changes only local variables."""
        if isinstance(statement, ast.Pass):
            return True
        if isinstance(statement, ast.If):
            return self._is_plain(statement.test) and all(map(self._quiet, (*statement.body, *statement.orelse)))
        if isinstance(statement, ast.Assign):
            return all(map(_plain_target, statement.targets)) and self._is_plain(statement.value)
        if isinstance(statement, ast.AnnAssign):
            return _plain_target(statement.target) and (statement.value is None or self._is_plain(statement.value))
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Constant):
            return True
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
            return False
        appended = call.func.value
        return isinstance(appended, ast.Name) and appended.id in self._lists and all(map(self._is_plain, call.args))

    def _is_plain(self, expression: ast.expr) -> bool:
        nodes = list(ast.walk(expression))
        calls = (n for n in nodes if isinstance(n, ast.Call))
        return all(isinstance(n, _PLAIN) for n in nodes) and all(map(self._computes, calls))

    def _computes(self, call: ast.Call) -> bool:
        """Returns True if a call has a chance to be pure; what global names stand for is checked at each run."""
        if isinstance(call.func, ast.Name):
            return call.func.id not in self._locals
        if not isinstance(call.func, ast.Attribute):
            return False
        module = call.func.value
        if isinstance(module, ast.Name) and module.id not in self._locals:
            return call.func.attr in (*_PURE_ARRAYS, *(each for names in _PURE_MODULES.values() for each in names))
        # Of plain values: of what the object itself holds, a method of this name may be anything.
        root = module
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        own = isinstance(root, ast.Name) and root.id == self._made.args.args[0].arg
        return call.func.attr in _PURE_METHODS and not own


def _new_lists(made: ast.FunctionDef) -> Iterator[str]:
    """Yields the variables that are assigned a list display."""
    for statement in ast.walk(made):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.List):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _embeds(statement: ast.stmt) -> bool:
    """Returns True for ``name = … .embed_documents(…)``."""
    if isinstance(statement, ast.Assign):
        targets: Sequence[ast.expr] = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return False
    call = statement.value
    named = len(targets) == 1 and isinstance(targets[0], ast.Name)
    return named and isinstance(call, ast.Call) and _attribute(call) == EMBEDS


def _attribute(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _entered(expression: ast.expr) -> _Transaction | None:
    method = ""
    if isinstance(expression, ast.Call):
        if expression.args or expression.keywords or not isinstance(expression.func, ast.Attribute):
            return None
        method, expression = expression.func.attr, expression.func.value
    attributes: list[str] = []
    while isinstance(expression, ast.Attribute):
        attributes.insert(0, expression.attr)
        expression = expression.value
    return _Transaction(expression.id, tuple(attributes), method) if isinstance(expression, ast.Name) else None


def _plain_target(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple):
        return all(map(_plain_target, target.elts))
    return isinstance(target, ast.Name)


def _one_insert(expression: ast.expr) -> bool:
    """Returns True for a constant, or an f-string, that begins with INSERT and holds no second statement.

    Also for ``text(…)`` of one, as SQLAlchemy wants it.
    """
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and len(expression.args) == 1:
        return expression.func.id == "text" and not expression.keywords and _one_insert(expression.args[0])
    parts = expression.values if isinstance(expression, ast.JoinedStr) else [expression]
    texts = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    first = bool(parts) and isinstance(parts[0], ast.Constant)
    return first and bool(texts) and texts[0].lstrip().upper().startswith(_WRITES) and not any(";" in t for t in texts)
