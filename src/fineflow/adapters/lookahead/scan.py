"""Which components a function calls, as far as its code and what it refers to show without running it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from fineflow.adapters.core.installers import of_application, of_package
from fineflow.adapters.lookahead.kept_results import KEEPS
from fineflow.adapters.lookahead.objects import first_value
from fineflow.adapters.lookahead.reachable import attributes_of
from fineflow.adapters.lookahead.values import NULL
from fineflow.adapters.python.bytecode import Instruction
from fineflow.adapters.python.graph import graph, only_yields
from fineflow.adapters.python.parts import class_of, closure, codes, inherited
from fineflow.declare import undeclared

_GENERATORS = 0x20 | 0x200  # flags of code objects
_DEPTH = 6  # functions that call functions
_FUNCTIONS = 300  # a method counts once for each object
_MOST = 20  # elements of a container
_OBJECTS = 100  # of the user's classes, those classes, and containers
_MAKING = ("__new__", "__init__", "__post_init__")  # what runs where an object of a class is made
_REPEAT = frozenset({"map", "starmap", "filter", "sorted", "min", "max", "partial"})  # may call several times


@dataclass
class Found:
    """Components that a function refers to, by the name under which it does; also functions declared to read.

    calls: of methods of components, and of these functions.
    """

    components: dict[str, Any] = field(default_factory=dict)
    calls: int = 0  # one in a loop counts twice

    @property
    def several(self) -> bool:
        return bool(self.components) and self.calls > 1


def scan(
    func: Any,
    is_component: Callable[[Any], bool],
    methods: frozenset[str],
    many: frozenset[str] = frozenset(),
    *,
    streams: bool = False,
) -> Found:
    """Returns what a function, and the user's functions that it calls, refer to. Never raises.

    methods: of components; none: functions that are declared to read are no components, either. many: those of them
    that may make several requests. streams: also of a generator function.
    """
    made = _Scan(is_component, methods, many)
    made.streams = streams
    try:
        made.visit(func, 0, repeated=False)
        made.visit_handed()
    except Exception:  # an object that does not let itself be looked at
        return Found()
    return made.found


class _Scan:
    streams = False

    def __init__(self, is_component: Callable[[Any], bool], methods: frozenset[str], many: frozenset[str]) -> None:
        self.found = Found()
        self._is_component, self._methods, self._many = is_component, methods, many
        self._seen: set[tuple[int, int, bool]] = set()  # a code object, what it is a method of, and if it is repeated
        # Of the user's classes, which may be handed to other functions; and those classes, for objects that are made.
        self._objects: dict[int, Any] = {}
        self._containers: dict[tuple[int, bool], Any] = {}  # by id, and if they are read repeatedly
        self._read_of_others: dict[str, bool] = {}  # attributes of what is not known, and if they are read repeatedly

    def visit(self, func: Any, depth: int, *, repeated: bool) -> None:
        """Reads a function. repeated: it is called in a loop."""
        owner, bound = None, dict[str, Any]()
        while isinstance(func, functools.partial):
            for name, value in (*((type(value).__name__, value) for value in func.args), *func.keywords.items()):
                self._refer(name, value, depth, repeated)
            bound, func = {**func.keywords, **bound}, func.func
        if not isinstance(func, FunctionType | MethodType | type | KEEPS) and not of_package(
            type(func).__module__ or ""
        ):
            func = _attribute(func, "__call__")  # a callable object
        if isinstance(func, MethodType):
            owner, func = func.__self__, func.__func__
        func = undeclared(_computing(func))
        if not isinstance(func, FunctionType) or depth > _DEPTH:
            return
        streams = self.streams if depth == 0 else only_yields(func.__code__)
        if func.__code__.co_flags & _GENERATORS and not streams:
            return
        key = (id(func.__code__), id(owner), repeated)
        if key in self._seen and not repeated:  # it is called from two places, which is as good as a loop
            key, repeated = (*key[:2], True), True
        if key in self._seen or len(self._seen) >= _FUNCTIONS:
            return
        self._seen.add(key)
        for value in (*(func.__defaults__ or ()), *(func.__kwdefaults__ or {}).values()):
            self._refer(type(value).__name__, value, depth, repeated)
        held = closure(func)
        first = func.__code__.co_varnames[:1] if owner is not None else ()
        own = {**bound, **dict.fromkeys(first, owner)}
        for code in codes(func.__code__):
            again = repeated or code is not func.__code__
            self._read(code, func.__globals__, held, own, depth, again)

    def visit_handed(self) -> None:
        """Reads what functions may call of objects that they are given, make, or take out of containers.

        ``def ask(app): app.chain.invoke(...)``, ``Agent().run(query)``, ``[each.run(query) for each in self.agents]``.
        """
        done = set[tuple[int, str, bool]]()
        while new := [(k, *r) for k in self._objects for r in self._read_of_others.items() if (k, *r) not in done]:
            done.update(new)
            for key, name, repeated in new:
                self._refer(name, _attribute(self._objects[key], name), 1, repeated)

    def _read(
        self, code: CodeType, names: Any, held: Mapping[str, Any], own: Mapping[str, Any], depth: int, repeated: bool
    ) -> None:
        loops, value, module, handed = _loops(code), None, None, False
        instructions = graph(code).instructions
        for number, ins in enumerate(instructions):
            name = str(ins.value)
            handed = name in _REPEAT or (handed and not ins.name.startswith("CALL"))
            again = repeated or handed or any(number in loop for loop in loops)
            if ins.name in ("LOAD_ATTR", "LOAD_METHOD"):
                self.found.calls += (1 + (again or name in self._many)) * (name in self._methods)
                if value is None:
                    self._read_of_others[name] = again or name in self._read_of_others
                value = None if value is None else _attribute(value, name)
            elif ins.name == "LOAD_SUPER_ATTR":
                cls, obj = (_loaded(each, names, held, own) for each in instructions[number - 2 : number])
                func = inherited(cls, obj, name)
                value = MethodType(func, obj) if isinstance(func, FunctionType) else None
            elif ins.name == "IMPORT_NAME":
                value, module = None, sys.modules.get(name)
            elif ins.name == "IMPORT_FROM":
                value = None if module is None else _attribute(module, name)
            else:
                value = _loaded(ins, names, held, own)
            if value is not None:
                following = instructions[number + 1].name if number + 1 < len(instructions) else ""
                if following not in ("LOAD_ATTR", "LOAD_METHOD"):
                    called = "__call__" in self._methods and self._is_component(value) and callable(value)
                    self.found.calls += (1 + again) * (called or self._declared(value) is not None)
                self._refer(name, value, depth, again)

    def _refer(self, name: str, value: Any, depth: int, repeated: bool) -> None:
        if value is None:
            return
        if self._is_component(value):
            self.found.components[name] = value
        elif (declared := self._declared(value)) is not None:
            self.found.components[name] = declared
        elif type(value) in (dict, list, tuple, functools.partial):
            self._choose(value, depth, repeated)
        elif isinstance(value, FunctionType | MethodType) or type(value) is KEEPS:
            if _of_application(value):
                self.visit(value, depth + 1, repeated=repeated)
        elif not isinstance(value, ModuleType) and _of_application(value if isinstance(value, type) else type(value)):
            self._meet(value, depth, repeated)

    def _meet(self, value: Any, depth: int, repeated: bool) -> None:
        """Reads an object of the user's class as it is called, or a class of the user's as objects of it are made."""
        if id(value) not in self._objects and len(self._objects) < _OBJECTS:
            self._objects[id(value)] = value
        made = isinstance(value, type)  # any number of times, and each may be called
        for name in ("__call__", *(_MAKING if made else ())):
            func = _attribute(value, name)
            if isinstance(func, FunctionType | MethodType):
                self._refer(name, func, depth, repeated or (made and name == "__call__"))

    def _declared(self, value: Any) -> FunctionType | None:
        """Returns the function in a wrapper of ``fineflow.effects``, whose calls may begin early; None for others."""
        while isinstance(value, functools.partial):
            value = value.func
        func = value.__func__ if type(value) is MethodType else value
        own = undeclared(func)
        return None if own is func or not self._methods else own

    def _choose(self, value: Any, depth: int, repeated: bool) -> None:
        """Reads what the function may call of what is in a container: ``self.strategies[kind].retrieve(query)``."""
        if (id(value), repeated) not in self._containers and len(self._containers) < _OBJECTS:
            self._containers[id(value), repeated] = value
            if type(value) is functools.partial:
                parts = [value.func, *value.args, *value.keywords.values()]
            else:
                parts = list(value.values() if type(value) is dict else value)
            for part in parts[:_MOST]:
                self._refer(type(part).__name__, part, depth, repeated)


def _loaded(ins: Instruction, names: Any, held: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """Returns the variable that an instruction loads; None for other instructions, and where it is not known."""
    name = str(ins.value)
    if ins.name == "LOAD_GLOBAL":
        return names.get(name)
    if ins.name not in ("LOAD_DEREF", "LOAD_FAST"):
        return None
    return own[name] if name in own else held.get(name)


def _of_application(obj: Any) -> bool:
    """Returns True for a function or class of the application."""
    module = getattr(obj, "__module__", None)
    return module is None or (isinstance(module, str) and of_application(module))


def _computing(func: Any) -> Any:
    """Returns the function that computes the results that a cache keeps; others as they are."""
    return func.__wrapped__ if type(func) is KEEPS else func


def _loops(code: CodeType) -> list[range]:
    """Returns the numbers of the instructions that each loop repeats."""
    made = graph(code)
    jumps = enumerate(made.targets)
    return [range(target, number) for number, target in jumps if 0 <= target < number]


def _attribute(obj: Any, name: str) -> Any:
    """Returns an attribute of a module or of the user's object, without running code; None if there is none.

    A function of the class is bound to the object, and so is the one that computes a property. A class stands for the
    objects that are made of it.
    """
    if not isinstance(obj, ModuleType) and of_package(type(obj).__module__ or ""):
        return None
    own = attributes_of(obj)  # none of a class
    if name in own:
        return own[name]
    value: Any = next((vars(kind)[name] for kind in class_of(obj).__mro__ if name in vars(kind)), None)
    if isinstance(value, staticmethod):
        return value.__func__
    if isinstance(value, classmethod):
        return MethodType(value.__func__, class_of(obj))
    value = value.fget if type(value) is property else value
    value = value.func if type(value) is functools.cached_property else value
    if isinstance(value, FunctionType) or type(value) is KEEPS:
        return MethodType(value, obj)
    if isinstance(value, MemberDescriptorType):
        value = first_value(obj, name)
    return None if value is NULL or hasattr(type(value), "__get__") else value
