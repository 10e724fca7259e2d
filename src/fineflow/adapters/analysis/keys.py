"""Keys that a function reads of its argument, for functions that are not pure but whose effects are declared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

from fineflow.adapters.python.bytecode import Instruction, decode

# These let a function access its argument without naming it.
_FRAMES = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack"})


def keys_read(func: Any, parameter: str = "") -> frozenset[str] | None:
    """Returns the keys that ``func`` may read of a parameter, if it does nothing else with it; None: anything.

    parameter: its name; default: the first one (of a bound method the first after ``self``). Looks at the instructions
    alone: each use must be ``argument["key"]`` or ``argument.get("key", ...)``, with a constant key.
    """
    skipped = 1 if isinstance(func, MethodType) else 0
    func = getattr(func, "__func__", func)
    if type(func) is not FunctionType:
        return None
    code = func.__code__
    names = code.co_varnames[skipped : code.co_argcount + (code.co_kwonlyargcount if parameter else 0)]
    name = parameter or next(iter(names), "")
    return _keys(code, name) if name in names else None


@lru_cache(maxsize=1024)
def _keys(code: CodeType, name: str) -> frozenset[str] | None:
    if name in code.co_cellvars or not _FRAMES.isdisjoint(code.co_names):
        return None
    found: set[str] = set()
    instructions = decode(code)
    for i, each in enumerate(instructions):
        if "_FAST" not in each.name or each.value != name:
            continue
        key = _key(instructions[i : i + 5]) if each.name == "LOAD_FAST" else None
        if key is None:
            return None
        found.add(key)
    return frozenset(found)


def _key(use: Sequence[Instruction]) -> str | None:
    """Returns the constant key of the subscript or ``.get`` call that begins by loading the argument."""
    names = [each.name for each in use]
    if names[1:3] == ["LOAD_CONST", "BINARY_SUBSCR"]:
        key = use[1].value
    elif names[1:3] == ["LOAD_METHOD", "LOAD_CONST"] and use[1].value == "get":
        called = use[4 if names[3:4] == ["LOAD_CONST"] else 3 :][:1]
        key = use[2].value if [(each.name, each.value) for each in called] == [("CALL", ())] else None
    else:
        return None
    return key if isinstance(key, str) else None
