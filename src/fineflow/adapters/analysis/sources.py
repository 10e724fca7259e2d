"""The source of functions, as syntax trees: only if it is what their bytecode was made of."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from threading import Lock
from types import CodeType

_parsing = Lock()  # ``ast.parse`` of Python 3.11 raises SystemError if two threads are in it (python/cpython#106905)


def definition(code: CodeType) -> ast.FunctionDef | None:
    """Returns the definition of a function; None if its source is not there, or not what was compiled."""
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return None
    try:
        text = "".join(lines)
        with _parsing:
            tree, whole = ast.parse(text), compile(text, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, SystemError):
        return None
    if all(each != code for each in _codes(whole)):
        return None
    at = code.co_firstlineno
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == code.co_name and n.lineno == at]
    return found[0] if len(found) == 1 else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
