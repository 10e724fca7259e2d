"""Which components a function calls, as far as its code and what it refers to show without running it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from fineflow.adapters.analysis.bytecode import Instruction
from fineflow.adapters.core.recognition import of_package
from fineflow.adapters.lookahead.code import decoded

_GENERATORS = 0x20 | 0x200  # flags of code objects
_MOST = 20  # elements of a container that may hold components
_DEPTH = 4  # functions that call functions


@dataclass
class Found:
    """Components that a function refers to, by the name under which it does. several: it may call more than once."""

    components: dict[str, Any] = field(default_factory=dict)
    calls: int = 0  # one in a loop counts twice

    @property
    def several(self) -> bool:
        return bool(self.components) and self.calls > 1


def scan(func: Any, is_component: Callable[[Any], bool], methods: frozenset[str]) -> Found:
    """Returns what a function, and the user's functions that it calls, refer to. Never raises."""
    found, seen = Found(), set[int]()

    def visit(func: Any, depth: int, repeated: bool) -> None:
        owner = None
        while isinstance(func, functools.partial):
            for name, value in (*((type(value).__name__, value) for value in func.args), *func.keywords.items()):
                refer(name, value, depth, repeated)
            func = func.func
        if not isinstance(func, FunctionType | MethodType | type) and not of_package(type(func).__module__ or ""):
            func = _attribute(func, "__call__")  # a callable object
        if isinstance(func, MethodType):
            owner, func = func.__self__, func.__func__
        if (
            not isinstance(func, FunctionType)
            or func.__code__.co_flags & _GENERATORS
            or depth > _DEPTH
            or id(func.__code__) in seen
        ):
            return
        for value in (*(func.__defaults__ or ()), *(func.__kwdefaults__ or {}).values()):
            refer(type(value).__name__, value, depth, repeated)
        cells = dict(zip(func.__code__.co_freevars, func.__closure__ or (), strict=True))
        for code in _codes(func.__code__):
            seen.add(id(code))
            read(code, func, cells, owner, depth, repeated or code is not func.__code__)

    def read(code: CodeType, func: Any, cells: dict[str, Any], owner: Any, depth: int, repeated: bool) -> None:
        instructions, loops = decoded(code).instructions, _loops(code)
        for number, ins in enumerate(instructions):
            again = repeated or any(number in loop for loop in loops)
            if ins.name in ("LOAD_ATTR", "LOAD_METHOD"):
                found.calls += (1 + again) * (ins.value in methods)
                if owner is not None:
                    refer(str(ins.value), _attribute(owner, str(ins.value)), depth, again)
            elif ins.name in ("LOAD_GLOBAL", "LOAD_NAME"):
                refer(ins.value, func.__globals__.get(ins.value), depth, again, instructions[number + 1])
            elif ins.name in ("LOAD_DEREF", "LOAD_FAST") and ins.value in cells:
                refer(ins.value, _content(cells[ins.value]), depth, again, instructions[number + 1])

    def refer(name: str, value: Any, depth: int, repeated: bool, following: Instruction | None = None) -> None:
        if is_component(value):
            found.components[name] = value
        elif type(value) in (list, tuple, dict):
            for part in islice(value.values() if type(value) is dict else value, _MOST):
                if is_component(part):
                    found.components[name] = part
        elif isinstance(value, FunctionType | MethodType):
            if not of_package(getattr(value, "__module__", None) or ""):
                visit(value, depth + 1, repeated)
        elif following and following.name in ("LOAD_ATTR", "LOAD_METHOD"):  # of a module, or of the user's object
            name = str(following.value)
            if isinstance(value, ModuleType) or not of_package(type(value).__module__ or ""):
                refer(name, _attribute(value, name), depth, repeated)

    try:
        visit(func, 0, False)
    except Exception:  # an object that does not let itself be looked at
        return Found()
    return found


def _loops(code: CodeType) -> list[range]:
    """Returns the numbers of the instructions that each loop repeats."""
    made = decoded(code)
    jumps = enumerate(made.targets)
    return [range(target, number) for number, target in jumps if 0 <= target < number]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _attribute(obj: Any, name: str) -> Any:
    """Returns an attribute without running code; a function of the class bound to the object; None if there is none."""
    own = getattr(obj, "__dict__", {})
    if name in own:
        return own[name]
    value = next((vars(kind)[name] for kind in type(obj).__mro__ if name in vars(kind)), None)
    return MethodType(value, obj) if isinstance(value, FunctionType) else None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
