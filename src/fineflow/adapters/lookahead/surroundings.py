"""What functions read of the process around them: its environment, context variables, files, and what stock injects.

It is read as a global is: a walk takes what is there now. If that changes before stock reads it, stock's calls have
other arguments and claim nothing. What may not be changed unseen ends a walk that changes it.
"""

from __future__ import annotations

import datetime
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.lookahead.values import INERT, NOW, PATHS, TODAY, UNKNOWN, Stop

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk

READABLE = frozenset({type(os.environ), MappingProxyType})
"""Mappings that are read like a dict, and that a walk changes never."""

_VERSION: Any = type(sys.version_info)
_CONFIG = "child_runnable_config"  # LangChain's context variable
_DIRECTIVE = re.compile(r"%[-#]?(.?)", re.DOTALL)
_OF_DAYS = frozenset("YyGmBbhdejaAuwUWVx%")  # directives of ``strftime``
_BYTES = 1 << 20  # of a file that a walk reads
_READING = frozenset({"r", "rt", "rb"})
_READS = {"read_text": "r", "read_bytes": "rb"}  # methods of paths, and the mode in which they open
_LOOKS = frozenset({"exists", "is_file", "is_dir"})
_OF_PATHS = frozenset({"joinpath", "with_suffix", "with_name", "with_stem", "as_posix", "is_absolute"})


class Injected(NamedTuple):
    """An argument that stock fills in. shown: returns what a walk gets in its place."""

    shown: Callable[[Walk, Any], Any]
    value: Any


class TextFile(NamedTuple):
    """A file that the function has opened for reading. lines: what it holds; None if that is not known."""

    lines: tuple[str, ...] | tuple[bytes, ...] | None


def as_data(value: Any) -> Any:
    """Returns a dict or tuple with the content of a mapping or tuple of Python's own; other values unchanged."""
    kind = type(value)
    if kind in READABLE:
        return dict(value)
    return tuple(value) if kind is _VERSION else value


def moment(kind: Any, name: str, args: list[Any]) -> Any:
    """Returns what a class method of ``datetime`` does that tells the time."""
    if args or kind not in (datetime.datetime, datetime.date) or name == "utcnow":
        return UNKNOWN
    return TODAY if kind is datetime.date else NOW


def of_moment(moment: Any, name: str, args: list[Any]) -> Any:
    """Calls a method of the current time or date: what is the same all day is known."""
    if name == "strftime" and args and type(args[0]) is str:
        return as_date(moment, args[0])
    if name == "isoformat" and not args:
        return as_date(moment, "")
    return TODAY if name == "date" else UNKNOWN


def as_date(moment: Any, form: Any) -> Any:
    """Returns the text of the current time or date in a form, as of ``strftime``; UNKNOWN if it changes in a day."""
    if type(form) is not str or not _OF_DAYS.issuperset(_DIRECTIVE.findall(form)) or (moment is NOW and not form):
        return UNKNOWN
    return format(datetime.date.today(), form)


def part_of_date(moment: Any, name: str) -> int | None:
    """Returns the year, month or day of the current time or date; None for anything else."""
    known = (moment is NOW or moment is TODAY) and name in ("year", "month", "day")
    return getattr(datetime.date.today(), name) if known else None


def variable(walk: Walk, var: ContextVar[Any], args: list[Any]) -> Any:
    """Returns the value of a context variable where the function runs. Raises Stop if it has none."""
    if not walk.in_context:
        return walk.aliases.one_of(UNKNOWN, *args)
    try:
        value = var.get(*args)
    except LookupError:
        raise Stop("may raise an exception") from None
    return config_as_data(walk, value) if var.name == _CONFIG and type(value) is dict else value


def is_config_reader(func: Any) -> bool:
    """Returns True for LangChain's ``ensure_config``."""
    known = getattr(func, "__name__", "") == "ensure_config" and type(func) is FunctionType
    return known and func is if_imported("langchain_core.runnables.config", "ensure_config")


def own_config(walk: Walk, args: list[Any], named: Mapping[str, Any]) -> Any:
    """Returns what ``ensure_config`` makes of the config that stock has passed to the function, or of none."""
    given = next(iter((*args, *named.values())), None)
    if given is not None:
        return given if walk.is_fixed(given) else UNKNOWN
    found = getattr(sys.modules["langchain_core.runnables.config"], f"var_{_CONFIG}", None)
    value = variable(walk, found, [{}]) if isinstance(found, ContextVar) else UNKNOWN
    return config_as_data(walk, {}) if value is None else value


def opened(walk: Walk, args: list[Any], named: Mapping[str, Any]) -> TextFile:
    """Returns the file of ``open(...)``. Raises Stop unless it is opened for reading, and is a plain file."""
    given = dict(zip(("file", "mode"), args, strict=False)) | dict(named)
    mode, path = given.get("mode", "r"), cast(Any, given.get("file"))
    if len(args) > 2 or mode not in _READING or not given.keys() <= {"file", "mode", "encoding", "errors", "newline"}:
        raise Stop("opens a file for more than reading it")
    if not walk.known(path):
        raise Stop("opens a file whose name is not known yet")
    if type(path) not in (str, *PATHS) or not all(map(walk.plain, given.values())):
        raise Stop("opens a file by something else than its name")
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise Stop("opens something else than a file")
    if not 0 < found.st_size <= _BYTES:  # empty ones may be the kernel's, which wait for something
        return TextFile(None)
    more = {name: value for name, value in given.items() if name != "file"}
    with open(path, **more) as file:
        lines = tuple(file)
    walk.spend(len(lines))
    return TextFile(lines)


def of_file(walk: Walk, file: TextFile, name: str, args: list[Any]) -> Any:
    """Calls a method of a file that has been read from its beginning: reads all of it, once."""
    if name == "close":
        return None
    if name not in ("read", "readlines") or args:
        raise Stop(f"calls .{name}() of a file")
    if file.lines is None:
        return UNKNOWN
    if name == "readlines":
        return walk.own(list(file.lines))
    return (file.lines[0][:0] if file.lines else "").join(file.lines)  # type: ignore[arg-type]


def made_path(walk: Walk, args: list[Any], named: Mapping[str, Any]) -> Any:
    """Returns ``Path(...)``, which is a value like a text. Raises Stop for what is no name of a file."""
    return _of_names(walk, Path, args, named, "makes a path of something else than names")


def _of_names(walk: Walk, function: Callable[..., Any], args: list[Any], named: Mapping[str, Any], why: str) -> Any:
    """Calls a function of names of files and of paths. Raises Stop, with the reason, for other arguments."""
    if not all(map(walk.known, args)):
        walk.touch(*args)
        return UNKNOWN
    if named or not all(type(each) in (str, *PATHS) for each in args):
        raise Stop(why)
    return function(*args)


def of_path(walk: Walk, path: Path, name: str, args: list[Any], named: Mapping[str, Any]) -> Any:
    """Calls a method of a path: one that reads the file, or one that makes another path or a text of it."""
    if name == "open":
        return opened(walk, [path, *args], named)
    if name in _READS:
        given = dict(zip(("encoding", "errors"), args, strict=False)) | dict(named)
        if name == "read_bytes" and given:
            raise Stop(f"calls .{name}() of a path with arguments")
        file = opened(walk, [path, _READS[name]], given)
        return of_file(walk, file, "read", [])
    if name in _LOOKS and not args and not named:
        return UNKNOWN
    if name not in _OF_PATHS:
        raise Stop(f"calls .{name}() of a path")
    return _of_names(walk, getattr(path, name), args, named, f"calls .{name}() of a path")


def config_as_data(walk: Walk, config: Any) -> Any:
    """Returns a config of LangChain with the configurable values that are plain data; the rest is unknown.

    The function may not change it: what stock runs under it would not see that in time.
    """
    if type(config) is not dict:
        return UNKNOWN
    configurable = config.get("configurable")
    values = configurable if type(configurable) is dict else {}
    made = walk.fixed({name: _plainly(walk, value) for name, value in values.items()})
    return walk.fixed({**dict.fromkeys(config, UNKNOWN), "configurable": made})


def _plainly(walk: Walk, value: Any) -> Any:
    if type(value).__module__ == "langgraph.runtime":
        return runtime_as_data(walk, value)
    return value if is_plain(value) else UNKNOWN


def runtime_as_data(walk: Walk, runtime: Any) -> Any:
    """Returns an object with the context and the store of LangGraph's ``Runtime``; what writes is silent."""
    fields = getattr(type(runtime), "__dataclass_fields__", None)
    if fields is None:
        return UNKNOWN
    shown = {"context": runtime.context, "store": runtime.store, "stream_writer": INERT, "heartbeat": INERT}
    made = walk.create(type(runtime))
    for name in fields:
        object.__setattr__(made, name, shown.get(name, UNKNOWN))
    return made


def as_it_is(walk: Walk, value: Any) -> Any:
    """Returns an argument that stock fills in with something that functions may use as they find it."""
    return value
