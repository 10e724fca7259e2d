"""``fineflow check``: calls a user's object as it is and optimized, through every entry point, and compares.

Both are called twice. Parts in which two stock calls differ (a sampled answer, the id of a response, a time) cannot be
compared; the report says so, and compares the rest.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import fineflow
from fineflow.demo.inputs import one_line
from fineflow.errors import UsageError
from fineflow.ir.text import WIDTH, wrap

CALL = "__call__"
_ANSWERS = frozenset({"value", "chunks", "runs", "content", "text", "spans"})  # what a model's answer is found in

See = Callable[[Callable[[Any], Any], str, Any], Any]
"""Observes one call through an entry point, with an input. The first argument wraps the object before the call."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of one entry point with one input. different: one text for each part that differs. unsteady: parts, or
    keys in them, in which stock differs from itself. seconds: of the second call of stock and of the optimized object,
    recording included.
    """

    entry: str
    input: Any
    different: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()
    error: str = ""
    seconds: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Target:
    """Object to check. make: returns the object, or a new one for each call if the user named a function. entries:
    methods it can be called by. see, differences: from the helper for its framework in ``fineflow.testing``.
    """

    make: Callable[[], Any]
    entries: tuple[str, ...]
    see: See
    differences: Callable[[Any, Any], list[str]]
    json_input: bool = field(default=False)


def find(name: str) -> Target:
    """Returns the target that ``module:name`` names. Raises UsageError if it is missing or cannot be optimized."""
    make, obj = named(name)
    if type(obj) is FunctionType:
        return _function(obj)
    runnables = sys.modules.get("langchain_core.runnables")
    if runnables is not None and isinstance(obj, runnables.Runnable):
        return _chain(make)
    if "llama_index.core" in sys.modules and (made := _index(make, obj)) is not None:
        return made
    kind = f"the class {obj.__name__}" if isinstance(obj, type) else f"of class {type(obj).__name__}"
    raise UsageError(
        f"{name} is {kind}; expected a LangChain Runnable, a query engine, retriever or chat engine of "
        f"LlamaIndex, or a function without arguments that makes one{_otherwise(obj)}"
    )


def named(name: str) -> tuple[Callable[[], Any], Any]:
    """Returns what makes the object that ``module:name`` names, and one. Raises UsageError if it is missing."""
    module, _, path = name.partition(":")
    if not path or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{name!r} is not like module:name, such as my_app.rag:engine")
    if module.endswith(".py") and Path(module).is_file():
        raise UsageError(f"{name!r} names a file; write {module.removesuffix('.py')}:{path}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
        if _needed(found) and type(found := getattr(found, "__wrapped__", found)) is FunctionType:
            return lambda: found, found
        make: Callable[[], Any] = found if inspect.isroutine(found) else lambda: found
        obj = make()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise UsageError(
                f"{name}: there is no module {missing!r} in {Path.cwd()}, nor an installed one; "
                "expected module:name, such as my_app.rag:engine for what my_app/rag.py calls engine"
            ) from error
        raise UsageError(f"{name}: {type(error).__name__}: {one_line(error)}{_where(error)}") from error
    return make, obj


def _where(error: BaseException) -> str:
    """Returns the line of the user's module, or below it, that raised; "" if it was none."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")]
    last = frames[-1] if frames else None
    here = last is None or last.filename == __file__ or isinstance(error, SyntaxError)
    return "" if last is None or here else f" (at {last.filename}:{last.lineno})"


def _needed(found: Any) -> list[str]:
    """Returns the parameters without which a function cannot be called: then it is itself what is checked."""
    if not inspect.isfunction(found):
        return []
    parameters = inspect.signature(found).parameters.values()
    return [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def called(obj: Any, entry: str, given: Any) -> Any:
    """Calls an object by a method, a function by ``__call__``: with its arguments by name, if all are in the input."""
    names = set(_needed(obj)) if entry == CALL else set[str]()
    return obj(**given) if names and isinstance(given, dict) and given.keys() >= names else getattr(obj, entry)(given)


def awaits(obj: Any, entry: str) -> bool:
    """Returns True if calls by a method are awaited, or yield pieces asynchronously."""
    return entry.startswith("a") or inspect.iscoroutinefunction(obj) or inspect.isasyncgenfunction(obj)


def _function(func: Any) -> Target:
    """Returns the target of a function."""
    from fineflow.testing import differential

    def see(change: Callable[[Any], Any], entry: str, given: Any) -> Any:
        runs = change(func)

        async def arun(value: Any) -> Any:
            made = called(runs, CALL, value)
            return [each async for each in made] if inspect.isasyncgen(made) else await made

        def run(value: Any) -> Any:
            made = called(runs, CALL, value)
            return list(made) if inspect.isgenerator(made) else made

        later = awaits(func, CALL)
        step = differential.as_step(arun if later else run, func.__name__)
        return differential.observe(step, "ainvoke" if later else "invoke", given)

    return Target(lambda: func, (CALL,), see, differential.differences, json_input=True)


def _otherwise(obj: Any) -> str:
    """Returns a hint for objects that ingest documents: they need a fresh object per call, hence another helper."""
    if "llama_index.core" not in sys.modules:
        return ""
    from llama_index.core.indices.base import BaseIndex
    from llama_index.core.ingestion import IngestionPipeline

    taking = isinstance(obj, (BaseIndex, IngestionPipeline)) or (isinstance(obj, type) and issubclass(obj, BaseIndex))
    return (
        "; to check document ingestion, use fineflow.testing.llamaindex.ingestion_differential in a test"
        if taking
        else ""
    )


def _chain(make: Callable[[], Any]) -> Target:
    from fineflow.testing import differential

    def see(change: Callable[[Any], Any], entry: str, given: Any) -> Any:
        return differential.observe(change(make()), entry, [given, given] if "batch" in entry else given)

    return Target(make, differential.ALL, see, differential.differences, json_input=True)


def _index(make: Callable[[], Any], obj: Any) -> Target | None:
    from llama_index.core.chat_engine.types import BaseChatEngine

    from fineflow.testing.llamaindex import chat_differential, differential, recording

    chats = isinstance(obj, BaseChatEngine)
    entries = chat_differential.CHAT if chats else differential.entries_of(obj)
    watch: Callable[[Any, str, Any], Any] = _talk if chats else differential.observe_index

    def see(change: Callable[[Any], Any], entry: str, given: Any) -> Any:
        with recording.listening(make()) as (made, listen):
            return watch(lambda manager: change(listen(made, manager)), entry, given)

    return Target(make, entries, see, recording.differences) if entries else None


def _talk(make: Callable[[Any], Any], entry: str, message: str) -> Any:
    from fineflow.testing.llamaindex import chat_differential

    def fresh(manager: Any) -> Any:
        made = make(manager)
        made.reset()  # an object shared by all calls would remember the previous one
        return made

    return chat_differential.observe_chat(fresh, entry, [message])


def check(target: Target, inputs: Sequence[str], entries: Sequence[str] = ()) -> list[Checked]:
    """Calls the target through these entry points (default: all), with each of the inputs.

    Raises UsageError for an unknown entry point and for malformed inputs.
    """
    if unknown := [entry for entry in entries if entry not in target.entries]:
        raise UsageError(f"--entry {unknown[0]}: expected one of {', '.join(target.entries)}")
    given = [parsed(text) if target.json_input else text for text in inputs]
    return [_checked(target, entry, each) for each in given for entry in entries or target.entries]


def _checked(target: Target, entry: str, given: Any) -> Checked:
    optimized, varying = _Optimized(), set[str]()
    try:
        first = target.see(lambda obj: obj, entry, given)
        target.see(optimized, entry, given)  # warm-up: the timed calls find everything imported
        stock, took = _timed(lambda: target.see(lambda obj: obj, entry, given))
        seen, ours = _timed(lambda: target.see(optimized, entry, given))
    except (fineflow.PlanningError, TimeoutError) as failure:
        return Checked(entry, given, (f"{type(failure).__name__}: {failure}",))
    error, keys = str(seen.error or ""), set[str]()
    if target.differences(stock, seen):
        _steady([first, stock, seen], "", keys)
        first, stock, seen = _steady([first, stock, seen], "", keys)  # again: what varies anywhere may do so everywhere
        varying = {_name(text) for text in target.differences(first, stock)}
    different = tuple(target.differences(stock, seen))
    unsteady = (*sorted(keys), *(name for name in map(_name, different) if name in varying))
    different = tuple(text for text in different if _name(text) not in varying)
    return Checked(entry, given, different, unsteady, error, (took, ours))


def _steady(calls: list[Any], key: str, found: set[str]) -> list[Any]:
    """Returns two calls of stock, and ours, without the texts and numbers in which those of stock differ.

    found: gets the keys of these. Where stock differs in more, such as the length of a list, all stay as they are.
    """
    first, stock, seen = calls
    alike = type(seen) is type(stock)
    if (first == stock and not found) or type(first) is not type(stock):
        return calls
    if isinstance(stock, str | int | float):
        if first == stock and (key not in found or key in _ANSWERS):
            return calls
        found.add(key)
        return ["…", "…", "…" if alike else seen]
    if is_dataclass(stock):
        made = [copy.copy(each) for each in calls]
        rows = [dict(vars(each)) if type(each) is type(stock) else {} for each in made]
        for each, row in zip(made, _steady(rows, key, found), strict=True):
            for name, value in row.items():
                setattr(each, name, value)
        return made
    if isinstance(stock, dict) and first.keys() == stock.keys():
        rows = [{**first}, {**stock}, {**seen} if alike else {}]
        for name in stock:
            values = _steady([first[name], stock[name], rows[2].get(name)], str(name), found)
            for row, value in zip(rows, values, strict=True):
                if name in row:
                    row[name] = value
        return [*rows[:2], rows[2] if alike else seen]
    if isinstance(stock, list) and len(first) == len(stock):
        matching = seen if alike and len(seen) == len(stock) else [None] * len(stock)
        columns = [_steady(list(each), key, found) for each in zip(first, stock, matching, strict=True)]
        lists = [[column[i] for column in columns] for i in range(3)]
        return [*lists[:2], lists[2] if matching is seen else seen]
    return calls


class _Optimized:
    """Optimizes an object, and reuses the result while the object stays the same."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, obj: Any) -> Any:
        if self._last[0] is not obj:
            self._last = obj, fineflow.optimize(obj, strict=True)
        return self._last[1]


def _name(difference: str) -> str:
    return difference.partition(" differs")[0]


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    seen = call()
    return seen, time.perf_counter() - start


def parsed(text: str) -> Any:
    """Returns a dict or list if the text is one in JSON, else the text."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--input {text!r} looks like JSON but does not parse: {one_line(error)}") from None


def report(found: Sequence[Checked]) -> str:
    """Formats one line per call, followed by its differences."""
    lines = []
    for each in found:
        stock, ours = (1000 * seconds for seconds in each.seconds)
        state = "DIFFERENT" if each.different else "raises alike" if each.error else "equal"
        lines.append(f"  {each.entry:16} {state:13} {stock:>8,.0f} ms {ours:>8,.0f} ms   {_shown(each.input)}")
        if each.error and not each.different:
            lines.append(f"      {each.error}")
        if each.unsteady:
            lines.append(f"      two calls of stock differ in {', '.join(each.unsteady)}: not compared")
        lines += [f"      {line}" for text in each.different for line in text.splitlines()]
    heading = f"  {'entry point':16} {'':13} {'stock':>11} {'fineflow':>11}   input"
    return "\n".join([heading, *lines])


def _shown(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def to_json(name: str, found: Sequence[Checked]) -> str:
    """Returns the result as JSON, see ``Checked`` for the keys."""
    equal = not any(each.different for each in found)
    return json.dumps(
        {"object": name, "equal": equal, "calls": [asdict(each) for each in found]}, indent=1, default=repr
    )


def run(
    name: str, inputs: Sequence[str], entries: Sequence[str] = (), *, as_json: bool = False, width: int = WIDTH
) -> int:
    """Checks the object named ``module:name`` and prints the report. Returns 0 if all is equal, 1 if not.

    width: in columns. Raises UsageError for mistakes that the user can correct.
    """
    target = find(name)
    found = check(target, inputs, entries)
    different = sum(bool(each.different) for each in found)
    if as_json:
        print(to_json(name, found))
        return 1 if different else 0
    summary = fineflow.explain(target.make()).summary
    lines = [line for sentence in summary for line in wrap("", [sentence], "    ", width)]
    print("\n".join(lines), report(found), sep="\n\n")
    calls = "1 call" if len(found) == 1 else f"{len(found)} calls"
    unsteady = sorted({name for each in found for name in each.unsteady})
    left = f" but for what two calls of stock differ in: {', '.join(unsteady)}" if unsteady else ""
    said = f"{calls} compared, {different} different" if different else f"{calls}, all equal"
    print("", *wrap("", [f"{said}{left}"], "    ", width), sep="\n")
    if not _ANSWERS.isdisjoint(unsteady):
        print("To compare the rest, have models answer alike, or name a function that makes a new object per call.")
    return 1 if different else 0
