"""Methods of values, recognised by name, and the functions and methods of ``re``."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

from fineflow.adapters.analysis import tables
from fineflow.adapters.analysis.state import all_scalar
from fineflow.adapters.analysis.values import (
    FRESH_ANY,
    FRESH_DICT,
    FRESH_LIST,
    MATCH,
    NONE,
    SCALAR,
    SHARED,
    Impure,
    Kind,
    Value,
    is_scalar,
)

if TYPE_CHECKING:
    from fineflow.adapters.analysis.calls import CallSite, Keywords

_TAKES_ITERATOR = frozenset({"extend", "update", "difference_update", "intersection_update"})


def method(site: CallSite, owner: Value, name: str, args: list[Value], keywords: Keywords) -> Value:
    """Calls ``owner.name(...)``."""
    analysis = site.analysis
    if owner.kind is Kind.CONST and type(owner.data) is re.Pattern:
        return regex(site, name, args, keywords, bound=True)
    if owner.kind is Kind.FRESH and name in tables.MUTATORS:
        return _mutate(site, name, args, keywords)
    if owner.kind is Kind.MATCH and name in tables.MATCH_METHODS:
        for value in (*args, *keywords.values()):
            analysis.use(value)
        return FRESH_DICT if name == "groupdict" else SCALAR
    if owner.kind is Kind.ARG and name == "get" and len(args) in (1, 2) and not keywords:
        key = args[0]
        if key.kind is Kind.CONST and type(key.data) is str:
            analysis.keys[key.data] = None
            for default in args[1:]:
                analysis.use(default)
            return SHARED
    if name not in tables.READERS:
        known = name in tables.MUTATORS
        raise Impure(
            f"calls .{name}() on a value that it did not create" if known else f"calls unknown method .{name}()"
        )
    return _read(site, owner, name, args, keywords)


def _mutate(site: CallSite, name: str, args: list[Value], keywords: Keywords) -> Value:
    """Changes a container that the call created."""
    for value in args:
        if not (name in _TAKES_ITERATOR and value.kind is Kind.LAZY):
            site.analysis.use(value)
    for keyword, value in keywords.items():
        if name == "sort" and keyword == "key":
            from fineflow.adapters.analysis.calls import callback

            callback(site, value, 1)
        else:
            site.analysis.use(value)
    return SHARED if tables.MUTATORS[name] else NONE


def _read(site: CallSite, owner: Value, name: str, args: list[Value], keywords: Keywords) -> Value:
    analysis, text = site.analysis, is_scalar(owner)
    if name in tables.TEXT_ONLY and not text:
        raise Impure(f"calls .{name}() on a value that may not be text")
    if name == "replace" and not text and len(args) < 2:
        raise Impure("calls .replace() as paths have it")
    if name == "format":
        for value in (*args, *keywords.values()):
            analysis.use(value)
        return format_text(owner, [*args, *keywords.values()])
    if not keywords.keys() <= tables.READER_KEYWORDS:
        raise Impure(f"calls .{name}() with arguments that text does not take")
    for value in args:
        if not (name == "join" and value.kind is Kind.LAZY):
            analysis.use(value)
    for value in keywords.values():
        analysis.use(value)
    if name == "join":
        analysis.notes["joins strings"] = None
    if text:
        return tables.READERS[name]
    analysis.use(owner)
    if name == "model_dump":
        return FRESH_DICT
    if name == "copy":  # of data it is a new container
        return owner if owner.kind is Kind.FRESH else FRESH_ANY
    return SHARED


def format_text(template: Value, values: list[Value]) -> Value:
    """Calls ``template.format(...)``: fields such as ``{0.name}`` read attributes, which may run code."""
    if template.kind is Kind.CONST and type(template.data) is str:
        if any(map(_reads_attribute, (template.data,))) and not all_scalar(values):
            raise Impure("formats with a template that reads attributes")
    elif not (is_scalar(template) and all_scalar(values)):
        raise Impure("formats with a template that is not constant")
    return SCALAR


def _reads_attribute(template: str) -> bool:
    for _, field, spec, _ in string.Formatter().parse(template):
        if (field and "." in field) or (spec and "{" in spec and _reads_attribute(spec)):
            return True
    return False


def regex(site: CallSite, name: str, args: list[Value], keywords: Keywords, bound: bool = False) -> Value:
    """Calls a function of ``re`` with a constant pattern, or (``bound``) a method of a compiled one."""
    from fineflow.adapters.analysis.calls import callback

    analysis, rest = site.analysis, list(args)
    if name not in tables.PATTERN_METHODS:
        raise Impure(f"calls unknown method .{name}()")
    if not bound:
        if not rest or rest[0].kind is not Kind.CONST or type(rest[0].data) not in (str, bytes, re.Pattern):
            raise Impure(f"calls re.{name} with a pattern that is not constant")
        del rest[0]
        # Positional flags come after the text; if other numbers come before them, flags must be keywords.
        if len(rest) > (2 if name in ("match", "search", "fullmatch", "findall", "sub", "subn") else 1):
            raise Impure(f"calls re.{name} with count or flags by position")
        if len(rest) == 2 and name not in ("sub", "subn"):
            _check_flags(rest.pop())
    for keyword, value in keywords.items():
        if keyword == "flags":
            _check_flags(value)
        elif keyword in ("count", "maxsplit", "pos", "endpos"):
            analysis.use(value)
        else:
            raise Impure(f"calls re.{name} with an argument {keyword}")
    if name in ("sub", "subn") and rest and not is_scalar(rest[0]):
        callback(site, rest.pop(0), 1)
    for value in rest:
        analysis.use(value)
    if name in ("match", "search", "fullmatch"):
        return MATCH
    return FRESH_LIST if name in ("split", "findall") else SCALAR if name == "sub" else SHARED


def _check_flags(value: Value) -> None:
    if value.kind is not Kind.CONST or not isinstance(value.data, int) or value.data & re.DEBUG:
        raise Impure("calls a function of re with flags that are not constant, or that print")
