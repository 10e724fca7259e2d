"""Functions and objects of libraries that user functions often call: serialization, prompts, loggers, clocks.

Recognised by identity, through ``sys.modules``, so nothing is imported. Printing, logging and reading the clock are
*unordered*: nothing in a pipeline depends on them, but only stock may do them, once and in its own time.
"""

from __future__ import annotations

import abc
import builtins
import datetime
import logging
import os
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fineflow.adapters.analysis.tables import is_plain
from fineflow.adapters.analysis.values import NONE, SCALAR, SHARED, Impure, Kind, Value
from fineflow.adapters.core.installers import if_imported

if TYPE_CHECKING:
    from fineflow.adapters.analysis.calls import CallSite, Keywords

Rule = Callable[["CallSite", list[Value], "Keywords"], Value]


def _uses(site: CallSite, args: list[Value], keywords: Keywords) -> None:
    for value in (*args, *keywords.values()):
        site.analysis.use(value)


def _pure(result: Value, allowed: str | None = "", count: int | None = None) -> Rule:
    """Returns the rule of a function that only computes.

    allowed: its keywords; None for any. count: of positional arguments.
    """
    names = None if allowed is None else frozenset(allowed.split())

    def rule(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
        if (names is not None and not keywords.keys() <= names) or (count is not None and len(args) != count):
            raise Impure("calls a library function with arguments that are not known to be harmless")
        _uses(site, args, keywords)
        return result

    return rule


def _unordered(reason: str, result: Value, *refused: str) -> Rule:
    def rule(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
        if found := keywords.keys() & set(refused):
            raise Impure(f"{reason} with an argument {min(found)}")
        _uses(site, args, keywords)
        site.analysis.unordered[reason] = None
        return result

    return rule


# --- LangChain's serialization and prompts --------------------------------------------------------------------------

_SELECTIONS = ("core", "messages")  # values of ``allowed_objects`` by which ``loads`` makes data and prompts alone


def _loads(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
    """Makes objects of classes of langchain-core. It warns once per process that it is in beta: that is stock's."""
    allowed = keywords.get("allowed_objects")
    known = allowed is None or (allowed.kind is Kind.CONST and allowed.data in _SELECTIONS)
    if len(args) != 1 or not known or not keywords.keys() <= {"allowed_objects"}:
        raise Impure("calls loads with arguments by which it may make any object")
    _uses(site, args, keywords)
    if not site.analysis.state(_warned):
        site.analysis.unordered["calls loads, which has not given its warning yet"] = None
    return SHARED


def _warned() -> bool:
    func = if_imported("langchain_core.load.load", "loads")
    names = getattr(getattr(func, "__code__", None), "co_freevars", ())
    if "warned" not in names:
        return True  # another version, without the warning
    return bool(func.__closure__[names.index("warned")].cell_contents)


def _format_document(site: CallSite, args: list[Value], keywords: Keywords) -> Value:
    prompt = args[1] if len(args) == 2 and not keywords else None
    found = instance(prompt.data) if prompt is not None and prompt.kind is Kind.CONST else None
    if found is None or "format" not in found.methods:
        raise Impure("calls format_document with a prompt that is not known")
    site.analysis.use(args[0])
    return SCALAR


def _prompt(prompt: Any) -> Any:
    """Returns what the formatting of a prompt template depends on."""
    parts = dict(vars(prompt))
    if parts.get("template_format") != "f-string" or not is_plain(parts.get("partial_variables")):
        raise Impure("formats a prompt with code of its own")
    return {name: parts.get(name) for name in ("template", "template_format", "input_variables", "partial_variables")}


# --- tables ---------------------------------------------------------------------------------------------------------


class Instance(NamedTuple):
    """Objects of exactly one class, with the rules of its methods. content: returns what these read, as plain data."""

    module: str
    name: str
    methods: dict[str, Rule]
    content: Callable[[Any], Any] | None = None


_LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
_LOGS = _unordered("logs", NONE)
_INSTANCES = (
    *(Instance("logging", name, dict.fromkeys((*_LEVELS, "log"), _LOGS)) for name in ("Logger", "RootLogger")),
    Instance("loguru._logger", "Logger", dict.fromkeys((*_LEVELS, "trace", "success", "log"), _LOGS)),
    Instance("langchain_core.prompts.prompt", "PromptTemplate", {"format": _pure(SCALAR, None, count=0)}, _prompt),
)
_PREFIXES = "human_prefix ai_prefix system_prefix function_prefix tool_prefix message_separator format"
_FUNCTIONS: dict[str, tuple[tuple[str, Rule], ...]] = {
    "dumps": (("langchain_core.load.dump", _pure(SCALAR, "pretty indent sort_keys ensure_ascii separators")),),
    "dumpd": (("langchain_core.load.dump", _pure(SHARED, count=1)),),
    "loads": (("langchain_core.load.load", _loads),),
    "format_document": (("langchain_core.prompts.base", _format_document),),
    "get_buffer_string": (("langchain_core.messages.utils", _pure(SCALAR, _PREFIXES)),),
    "literal_eval": (("ast", _pure(SHARED, count=1)),),
    "dedent": (("textwrap", _pure(SCALAR, count=1)),),
    "fill": (("textwrap", _pure(SCALAR, "width")),),
    "shorten": (("textwrap", _pure(SCALAR, "width placeholder")),),
    "escape": (("html", _pure(SCALAR, "quote")),),
    "unescape": (("html", _pure(SCALAR, count=1)),),
}
_MODELS = "pydantic._internal._model_construction"
_CLOCK, _DRAWN = _unordered("reads the clock", SHARED), _unordered("draws random numbers", SHARED)
_BY_ID: dict[int, tuple[Any, Rule]] = {
    id(func): (func, rule)
    for func, rule in (
        (builtins.print, _unordered("prints", NONE, "file")),
        *((getattr(logging, name), _LOGS) for name in (*_LEVELS, "log")),
        *((getattr(time, name), _CLOCK) for name in ("time", "perf_counter", "monotonic", "strftime", "time_ns")),
        (os.getenv, _unordered("reads the environment", SHARED)),
        *((getattr(uuid, name), _DRAWN) for name in ("uuid1", "uuid4")),
    )
}
_CLASS_METHODS: dict[tuple[int, str], Rule] = {
    (id(datetime.datetime), "now"): _CLOCK,
    (id(datetime.datetime), "today"): _CLOCK,
    (id(datetime.datetime), "utcnow"): _CLOCK,
    (id(datetime.date), "today"): _CLOCK,
}


def library_function(obj: Any) -> Rule | None:
    """Returns the rule of a library's function; None for any other object."""
    if id(obj) in _BY_ID:
        return _BY_ID[id(obj)][1]
    name = getattr(obj, "__name__", None)
    known = _FUNCTIONS.get(name, ()) if type(name) is str else ()
    return next((rule for module, rule in known if if_imported(module, str(name)) is obj), None)


def class_method(cls: type, name: str) -> Rule | None:
    """Returns the rule of a library's method that is reached through its class, such as ``datetime.now``."""
    return _CLASS_METHODS.get((id(cls), name))


def instance(obj: Any) -> Instance | None:
    """Returns the row of an object of a known class, such as a logger; None for any other object."""
    kind = type(obj)
    rows = (row for row in _INSTANCES if row.name == kind.__name__ and if_imported(row.module, row.name) is kind)
    return next(rows, None)


def plain_check(cls: Any) -> bool:
    """Returns True if ``isinstance(data, cls)`` runs no user code: cls is abstract, or a pydantic model."""
    if type(cls) is not abc.ABCMeta and type(cls) is not if_imported(_MODELS, "ModelMetaclass"):
        return False
    defined = next(base for base in cls.__mro__ if "__subclasshook__" in vars(base))
    return defined.__module__ in ("builtins", "collections.abc", "typing")
