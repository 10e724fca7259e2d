"""Functions of the standard library and of common packages that change nothing that a component could notice.

Stock calls them; a walk only needs to get past them. Some it computes, as they are pure.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import dataclasses
import datetime
import html
import logging
import os
import pprint
import random
import re
import statistics
import sys
import textwrap
import time
import traceback
import unicodedata
import urllib.parse
import uuid
import warnings
from collections.abc import Iterator
from enum import Enum, EnumMeta
from types import FunctionType, MethodType
from typing import Any, get_args

from fineflow.adapters.analysis.data_models import plain_model
from fineflow.adapters.core.installers import if_imported, of_package
from fineflow.adapters.lookahead.aliases import changes_nothing
from fineflow.adapters.lookahead.values import INERT, SWALLOWS, UNKNOWN

_FACTORIES = (None, list, dict, set, str, int, float, bool)
_LEVELS = "debug info warning warn error exception critical log trace success"
LOG_METHODS = frozenset({*_LEVELS.split(), "isEnabledFor", "bind", "opt"})

# Attributes of classes of which pydantic makes instances itself.
_OF_DATA = (
    *("__pydantic_decorators__", "__get_pydantic_core_schema__", "__get_validators__"),
    *("_missing_", "_fields", "__post_init__"),
)
_CHECKS = ("validators", "field_validators", "root_validators", "model_validators", "field_serializers")


def _by_id(values: dict[Any, list[Any]]) -> dict[int, tuple[Any, Any]]:
    return {id(func): (func, value) for value, functions in values.items() for func in functions}


def _named(module: Any, names: str) -> list[Any]:
    return [getattr(module, name) for name in names.split()]


# By id, with the function itself to keep the id from being reused, and the value of a call.
_FUNCTIONS = _by_id(
    {
        None: [print, pprint.pprint, pprint.pp, *_named(traceback, "print_exc print_stack"), warnings.warn],
        UNKNOWN: [
            *_named(time, "time time_ns perf_counter perf_counter_ns monotonic strftime ctime localtime gmtime"),
            *_named(uuid, "uuid1 uuid3 uuid4 uuid5"),
            *_named(random, "random randint uniform choice choices sample randrange"),
            *_named(traceback, "format_exc"),
            *_named(dataclasses, "asdict astuple"),
            *(hash, id, callable, os.path.exists, os.getcwd),
        ],
        INERT: [
            *_named(collections, "defaultdict Counter deque OrderedDict"),
            *_named(asyncio, "timeout timeout_at"),
            logging.getLogger,
        ],
        SWALLOWS: [contextlib.suppress],
    }
)
_METHODS = frozenset(
    (id(kind), name)
    for kind, names in (
        (datetime.datetime, "now utcnow today strptime fromisoformat fromtimestamp"),
        (datetime.date, "today fromisoformat"),
    )
    for name in names.split()
)
ERRORS = dict.fromkeys(("strptime", "fromisoformat", "fromtimestamp"), (ValueError,))
"""Of these methods, for some values."""

PURE = frozenset(
    id(each)
    for each in (
        *_named(textwrap, "dedent fill indent shorten wrap"),
        *_named(html, "escape unescape"),
        *_named(urllib.parse, "quote quote_plus unquote urljoin"),
        *_named(os.path, "basename dirname join splitext"),
        *_named(statistics, "mean fmean median mode stdev pstdev"),
        *_named(base64, "b64encode b64decode"),
        *(unicodedata.normalize, datetime.timedelta),
    )
)

# Of packages that may be imported later, or never: module, name, value of a call.
_ELSEWHERE: tuple[tuple[str, str, Any], ...] = (
    ("langchain_core.callbacks.usage", "get_usage_metadata_callback", INERT),
    ("langchain_community.callbacks.manager", "get_openai_callback", INERT),
    ("langchain_core.tracers.context", "collect_runs", INERT),
    ("langchain_core.tracers.context", "tracing_v2_enabled", INERT),
    ("langgraph.config", "get_stream_writer", INERT),  # what stock writes appears when stock writes it
    ("rich", "print", None),
    ("rich.pretty", "pprint", None),
    ("icecream", "ic", UNKNOWN),
)
_MESSAGES = ("tool.ToolMessage", "chat.ChatMessage", "function.FunctionMessage", "modifier.RemoveMessage")
_NAMES = frozenset(name for _, name, _ in _ELSEWHERE)
_SPLITTERS = frozenset({"langchain_text_splitters.base", "langchain_text_splitters.character"})
_SPLITS = frozenset({"split_text", "create_documents", "split_documents", "transform_documents"})
PATTERNS = (re.Pattern, re.Match)
_BARS = ("tqdm.std", "tqdm.asyncio", "tqdm.notebook", "tqdm.auto", "tqdm.rich")


def value_of_call(func: Any) -> tuple[bool, Any]:
    """Returns True and the value of a call, perhaps UNKNOWN or INERT; False for a function that is not known."""
    found = _FUNCTIONS.get(id(func))
    if found is not None:
        return True, found[1]
    called = getattr(func, "__name__", "")
    if type(called) is not str or called not in _NAMES:
        return False, None
    for module, name, value in _ELSEWHERE:
        if called == name and if_imported(module, name) is func:
            return True, value
    return False, None


def of_class(kind: Any, name: str) -> bool:
    """Returns True if ``kind.name(...)`` changes nothing and its value is not worth knowing."""
    if name == "get_noop_manager":  # of callbacks
        return bool(getattr(kind, "__module__", "") == "langchain_core.callbacks.manager")
    return (id(kind), name) in _METHODS or (is_bar(kind) and name == "write")


def splits(func: MethodType) -> bool:
    """Returns True for a method of ``RecursiveCharacterTextSplitter`` that only computes, without code of the user's.

    Others warn of parts that are too long: a walk through their code leaves that out.
    """
    kind = type(func.__self__)
    known = func.__name__ in _SPLITS and func.__func__.__module__ in _SPLITTERS
    known = known and is_splitter(kind) and kind.__name__ == "RecursiveCharacterTextSplitter"
    length = getattr(func.__self__, "_length_function", len)
    return known and (length is len or (isinstance(length, FunctionType) and of_package(length.__module__)))


def is_splitter(kind: Any) -> bool:
    """Returns True for the classes of text splitters that keep nothing of what they split."""
    return kind.__module__ in _SPLITTERS


def is_message(kind: Any) -> bool:
    """Returns True for messages of LangChain whose making looks at nothing but the text of what they are made of."""
    module = getattr(kind, "__module__", "")
    known = f"{module.rpartition('.')[2]}.{getattr(kind, '__name__', '')}" in _MESSAGES
    return known and module.startswith("langchain_core.messages.") and if_imported(module, kind.__name__) is kind


def is_bar(kind: Any) -> bool:
    """Returns True for the classes of progress bars."""
    return isinstance(kind, type) and kind.__module__ in _BARS


def logs(obj: Any, name: str) -> bool:
    """Returns True if ``obj.name(...)`` writes a message for people."""
    if isinstance(obj, logging.Logger | logging.LoggerAdapter):
        return name in LOG_METHODS
    if obj is sys.stdout or obj is sys.stderr:
        return name in ("write", "flush")
    module = type(obj).__module__.partition(".")[0]
    if module in ("loguru", "structlog"):
        return name in LOG_METHODS
    return type(obj).__module__ == "rich.console" and name in ("print", "log", "rule")


def makes_plainly(kind: Any) -> bool:
    """Returns True for a pydantic model whose making runs no code of the user's, and depends on its values alone."""
    if not plain_model(kind):
        return False
    return all(field.default_factory in _FACTORIES for field in kind.__pydantic_fields__.values())


def factories(kind: Any, around: tuple[Any, ...] = ()) -> list[FunctionType] | None:
    """Returns the user's functions that make defaults of a class of data, and of the classes of its fields.

    None if making an instance may run other code of the user's, and for classes that are no enumerations, named tuples
    or pydantic models. around: the classes in whose fields it is.
    """
    if not changes_nothing(kind):
        return None
    if isinstance(kind, EnumMeta):
        return None if any("_missing_" in vars(each) for each in kind.__mro__ if each is not Enum) else []
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_field_defaults"):
        made = getattr(kind.__new__, "__code__", None)
        generated = made is not None and made.co_filename.startswith("<")
        return [] if generated and kind.__init__ is object.__init__ else None
    decorators = getattr(kind, "__pydantic_decorators__", None)
    if decorators is None or any(getattr(decorators, name, None) for name in _CHECKS) or kind.__pydantic_post_init__:
        return None
    fields = kind.__pydantic_fields__.values()
    if kind.__pydantic_custom_init__ or any(hasattr(each, "func") for field in fields for each in field.metadata):
        return None  # a validator in an annotation
    makers = [each.default_factory for each in (*fields, *kind.__private_attributes__.values())]
    found = [each for each in makers if isinstance(each, FunctionType) and not of_package(each.__module__)]
    inner = [each for field in fields for each in _classes(field.annotation)]
    inner += [each for each in makers if isinstance(each, type)]
    for each in {id(each): each for each in inner if each is not kind and each not in around}.values():
        if of_package(each.__module__) or each.__module__ in sys.stdlib_module_names:
            continue
        if not any(hasattr(each, name) for name in _OF_DATA):  # pydantic only looks whether it is an instance
            continue
        more = factories(each, (*around, kind))
        if more is None:
            return None
        found += more
    return found


def _classes(annotation: Any) -> Iterator[Any]:
    """Yields the classes in an annotation."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for each in get_args(annotation):
        yield from _classes(each)
