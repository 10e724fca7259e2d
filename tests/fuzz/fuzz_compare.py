"""Runs a random program by stock and optimized, and says what differs.

Each side runs it several times on one object: twice, after a change of the world, and in a fresh world.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import linecache
import sys
import threading
import time
import types
import warnings
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import fuzz_world
from fuzz_world import AsyncSlow, Slow, World
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.adapters.inner_calls import calls_ahead
from fineflow.testing.langchain import FakeRetriever
from fineflow.testing.leaks import left

STATE = {"question": "Where is Paris?", "items": ["apple", "an egg", "ten eggs", "a"]}
RUNS = 4
WASTE: float | None = None  # of the optimized object
COST = 0.4  # seconds of processor time that the optimized runs of a program may take more than stock's


@dataclass
class Run:
    """What is seen of one call."""

    value: Any = None
    error: str = ""
    effects: list[str] = field(default_factory=list)
    state: Any = None
    asked: list[str] = field(default_factory=list)
    failed: bool = False  # a component, or a handler of the program, has met an exception
    left: str = ""
    noise: list[str] = field(default_factory=list)
    raced: bool = False  # it has failed beside other nodes of its graph: how far these got is open in stock, too


@dataclass
class Difference:
    """kind: what differs. run: the number of the call. detail: stock's beside fineflow's."""

    kind: str
    run: int
    detail: str


class Ahead:
    """Counts calls that ran ahead."""

    started = 0

    @classmethod
    def install(cls) -> None:
        for kind in (calls_ahead.GraphAhead, calls_ahead.MethodAhead):
            if getattr(kind.start, "counts", False):
                continue

            def start(self: Any, *args: Any, _own: Any = kind.start, **named: Any) -> bool:
                begun = bool(_own(self, *args, **named))
                cls.started += begun
                return begun

            start.counts = True  # type: ignore[attr-defined]
            kind.start = start  # type: ignore[assignment]


def compiled(source: str, name: str) -> types.CodeType:
    """Compiles a program so that tracebacks and ``inspect`` find its source."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec", dont_inherit=True)


def observed(code: types.CodeType, *, optimized: bool, turns: int = 1) -> list[Run]:
    """Runs a program some times, on one object."""
    fuzz_world.turns_now = turns
    module = types.ModuleType("program")
    sys.modules["program"] = module  # dataclasses and pydantic look for it
    names = module.__dict__
    exec(code, names)
    app: Any = names["app"]
    called = fineflow.optimize(app, strict=True, eager=True, across_nodes=True, waste=WASTE) if optimized else app
    if inspect.isfunction(app):
        called = RunnableLambda(called)
    runs = []
    for number in range(RUNS):
        if number == 2:
            names["change"]()
        if number == 3:  # the functions of ``app`` see the new objects, as these are their globals
            exec(code, names)
        runs.append(_run(called, names, optimized))
    return runs


def _run(app: Any, names: dict[str, Any], optimized: bool) -> Run:
    world: World = names["w"]
    run, asked = Run(), Counter(world.asked())
    world.effects.clear()
    world.failed = False
    state = {"question": STATE["question"], "items": list(STATE["items"])}
    noise: list[str] = []
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda each: noise.append(f"unraisable {each.exc_type.__name__}")
    threading.excepthook = lambda each: noise.append(f"thread {each.exc_type.__name__}")
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if inspect.iscoroutinefunction(names["program"]):
                value = asyncio.run(_acall(app, state, run))
            else:
                world.thread = threading.get_ident()
                value = app.invoke(state, {"callbacks": [Slow(world)]})
            run.value = seen(value, set())
    except Exception as error:
        run.error = f"{type(error).__name__}: {error}"
    finally:
        world.thread = None
        sys.unraisablehook, threading.excepthook = hooks
    noise += [str(each.message)[:80] for each in warned if "never awaited" in str(each.message)]
    if optimized:
        run.left = _left()
    run.noise = sorted(noise)
    beside = names.get("BESIDE", False)
    run.raced = beside and bool(run.error)
    run.effects = sorted(world.effects) if beside else list(world.effects)
    run.failed = world.failed or bool(run.error) or any(each.startswith("handled") for each in run.effects)
    run.asked = sorted((Counter(world.asked()) - asked).elements())
    run.state = snapshot(names)
    return run


async def _acall(app: Any, state: dict[str, Any], run: Run) -> Any:
    before = asyncio.all_tasks()
    try:
        return await app.ainvoke(state, {"callbacks": [AsyncSlow()]})
    finally:
        for _ in range(5):
            await asyncio.sleep(0)
        if tasks := asyncio.all_tasks() - before:
            await asyncio.wait([task for task in tasks if task.cancelling()] or tasks, timeout=0.05)
        names = (getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks() - before)
        run.noise += sorted(f"task {name}" for name in names)


def _left() -> str:
    deadline = time.monotonic() + 2.0
    while (found := left(objects=False)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return str(found) if found else ""


_SKIPPED = (types.ModuleType, World, Runnable, types.FunctionType, types.BuiltinFunctionType)
_PLAIN = (str, int, float, bool, bytes, type(None), complex)


def snapshot(names: dict[str, Any]) -> Any:
    """The state of all that a program has made at the level of its module."""
    path: set[int] = set()
    kept = {
        name: value
        for name, value in names.items()
        if not name.startswith("__") and (isinstance(value, FakeRetriever) or not isinstance(value, _SKIPPED))
    }
    return {name: seen(value, path) for name, value in sorted(kept.items())}


def seen(value: Any, path: set[int]) -> Any:
    """A comparable, printable form of a value."""
    if isinstance(value, _PLAIN):
        return value
    if id(value) in path:
        return "..."
    path = path | {id(value)}
    kind = type(value)
    if isinstance(value, InMemoryVectorStore):
        return ["store", *((each["text"], seen(each["metadata"], path)) for each in value.store.values())]
    if isinstance(value, FakeRetriever):
        return ["retriever", value.k, *(each.page_content for each in value.documents)]
    if isinstance(value, Document):
        return ["document", value.page_content, seen(value.metadata, path)]
    if isinstance(value, BaseException):
        return [kind.__name__, str(value)]
    if isinstance(value, dict):
        return [kind.__name__, *((seen(key, path), seen(each, path)) for key, each in value.items())]
    if isinstance(value, (list, tuple, deque)):
        return [kind.__name__, *(seen(each, path) for each in value)]
    if isinstance(value, (set, frozenset)):
        return [kind.__name__, *sorted((seen(each, path) for each in value), key=repr)]
    if isinstance(value, type):
        if value.__module__ != "program":
            return value.__qualname__
        return [
            value.__name__,
            *(
                (k, seen(v, path))
                for k, v in vars(value).items()
                if isinstance(v, (*_PLAIN, list, dict, set)) and not k.startswith("__")
            ),
        ]
    if kind.__module__ != "program":
        return kind.__qualname__
    held = dict(getattr(value, "__dict__", {}))
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                held[name] = object.__getattribute__(value, name)
            except AttributeError:
                pass
    return [kind.__name__, *((name, seen(each, path)) for name, each in sorted(held.items()))]


def compared(source: str, name: str = "<program>") -> tuple[list[Difference], int]:
    """Returns what differs, and how many calls ran ahead. Nothing differs where stock differs from itself."""
    Ahead.install()
    code = compiled(source, name)
    began = time.process_time()
    stock = observed(code, optimized=False)
    between = time.process_time()
    Ahead.started = 0
    mine = observed(code, optimized=True)
    ahead, took = Ahead.started, time.process_time() - between
    found = differences(stock, mine)
    if found:
        for turns in (0, 1, 6):
            again = observed(code, optimized=False, turns=turns)
            varying = {each.kind for each in differences(stock, again) + differences(again, stock)}
            if varying & {"value", "error", "effects", "state", "missing requests", "extra requests"}:
                return [Difference("dropped", 0, ", ".join(sorted(varying)))], ahead
            found = [each for each in found if each.kind not in varying]
    if took - (between - began) > COST:
        found.append(Difference("cost", 0, f"{took:.2f} s instead of {between - began:.2f} s of processor time"))
    return found, ahead


def differences(stock: list[Run], mine: list[Run]) -> list[Difference]:
    """Returns what differs between the runs of two sides, the first run that shows it for each kind."""
    found: dict[str, Difference] = {}

    def note(kind: str, number: int, one: Any, other: Any) -> None:
        found.setdefault(kind, Difference(kind, number, f"stock    {one!r}\nfineflow {other!r}"))

    for number, (one, other) in enumerate(zip(stock, mine, strict=True)):
        for name in ("error",) if one.raced else ("value", "error", "effects", "noise"):
            if getattr(one, name) != getattr(other, name):
                note(name, number, getattr(one, name), getattr(other, name))
        if one.raced and one.error == other.error and not other.left:
            break
        if one.state != other.state:
            names = [name for name in one.state if one.state[name] != other.state.get(name)]
            note("state", number, {n: one.state[n] for n in names}, {n: other.state.get(n) for n in names})
        if other.left:
            note("left", number, "", other.left)
        more, fewer = Counter(other.asked) - Counter(one.asked), Counter(one.asked) - Counter(other.asked)
        if fewer:
            note("missing requests", number, sorted(fewer.elements()), [])
        if more:
            may = one.failed and WASTE != 0
            note("extra behind a failure" if may else "extra requests", number, [], sorted(more.elements()))
        if found.keys() - {"extra behind a failure"}:
            break  # what comes later follows from it
    gc.collect(0)
    return list(found.values())
