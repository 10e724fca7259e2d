"""Subclasses that count, as users write them: of each part of an app in turn, with one method overridden."""

from __future__ import annotations

import asyncio
import inspect
import random
from asyncio.events import _get_running_loop
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import fineflow

SAMPLE = 2  # methods of each app, for each way to call it


def parts_of(obj: Any, kinds: tuple[type, ...], packages: tuple[str, ...]) -> list[Any]:
    """Returns the objects of these kinds that an app is made of, if their classes are the packages' own."""
    found: dict[int, Any] = {}
    todo = [obj]
    while todo:
        each = todo.pop()
        if isinstance(each, list | tuple | dict):
            todo += each.values() if isinstance(each, dict) else each
        elif isinstance(each, kinds) and id(each) not in found:
            found[id(each)] = each
            todo += vars(each).values()
    return [each for each in found.values() if type(each).__module__.startswith(packages)]


def methods_of(kind: Any, packages: tuple[str, ...]) -> list[str]:
    found = ((name, inspect.getattr_static(kind, name)) for name in dir(kind) if not name.startswith(("__", "model_")))
    methods = [(name, inspect.unwrap(each)) for name, each in found if callable(each) and not isinstance(each, type)]
    own = [(name, each) for name, each in methods if str(getattr(each, "__module__", "")).startswith(packages)]
    return [name for name, each in own if not (inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each))]


def counting(kind: Any, name: str) -> Any:
    """Returns a subclass that counts the calls of a method."""

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return getattr(super(made, self), name)(*args, **kwargs)

    async def acount(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return await getattr(super(made, self), name)(*args, **kwargs)

    made = _overriding(kind, name, count, acount)
    return made


_noted: list[bool] = []
_calls = ContextVar("calls", default=0)


def _note() -> None:
    _noted.append(_get_running_loop() is not None)
    _calls.set(_calls.get() + 1)


def noting(kind: Any, name: str) -> Any:
    """Returns a subclass one of whose methods notes whether it runs on an event loop, and counts in its context."""

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        _note()
        return getattr(super(made, self), name)(*args, **kwargs)

    async def acount(self: Any, *args: Any, **kwargs: Any) -> Any:
        _note()
        return await getattr(super(made, self), name)(*args, **kwargs)

    made = _overriding(kind, name, count, acount)
    return made


def _overriding(kind: Any, name: str, count: Any, acount: Any) -> Any:
    method = inspect.unwrap(inspect.getattr_static(kind, name))
    mine: Any = acount if inspect.iscoroutinefunction(method) else count
    mine.__signature__ = inspect.signature(method)  # LangChain looks at it
    own = {name: mine, "__module__": __name__, "calls": 0, "__annotations__": {"calls": int}}
    made = type(kind)(f"My{kind.__name__}", (kind,), own)
    return made


def assert_same_counts(
    make: Callable[[], Any],
    entry: str,
    given: Any,
    shown: Callable[[Any], Any],
    kinds: tuple[type, ...],
    packages: tuple[str, ...],
    subclass: Callable[[Any, str], Any] = counting,
    **options: Any,
) -> None:
    """Overrides methods of parts of an app, one at a time, until stock has called some: values and counts are equal.

    shown: what counts of a value. subclass: makes the class with the method; ``noting`` compares where it runs, too.
    """

    async def result(given: Any) -> tuple[Any, int]:
        return await given, _calls.get()

    def ran(at: int, method: str, *, optimized: bool) -> tuple[Any, ...]:
        app = make()
        part = parts_of(app, kinds, packages)[at]
        kind = type(part)
        object.__setattr__(part, "__class__", subclass(kind, method))
        vars(part)["calls"] = 0
        called = getattr(fineflow.optimize(app, strict=True, **options) if optimized else app, entry)
        _noted.clear()
        found, told = asyncio.run(result(called(given))) if entry.startswith("a") else (called(given), 0)
        object.__setattr__(part, "__class__", kind)  # it may be a default of the package
        return vars(part).pop("calls") or len(_noted), shown(found), told, _noted.copy()

    parts: Sequence[Any] = parts_of(make(), kinds, packages)
    pairs = [(at, method) for at, part in enumerate(parts) for method in methods_of(type(part), packages)]
    random.Random(entry).shuffle(pairs)
    counted = 0
    for at, method in pairs:
        stock = ran(at, method, optimized=False)
        if stock[0]:
            assert ran(at, method, optimized=True) == stock, f"{type(parts[at]).__name__}.{method}"
            counted += 1
        if counted == SAMPLE:
            return
    assert counted
