"""Functions that make a list of a text, recognised exactly: their items can be consumed while the text is generated.

A function is recognised if its bytecode equals that of one of a closed list of expressions, such as
``lambda x: x.split("\\n")`` or ``[line.strip() for line in x.split("\\n") if line.strip()]``. The running interpreter
compiles the expressions, and instructions are compared one by one. So source formatting does not matter, the source
need not be available, and a merely similar function never matches.
"""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from fineflow.adapters.python.functions import codes
from fineflow.adapters.text.items import Each, Split, SplitLines, Splitter

TEXT, CONTENT = "text", "content"

_SEPARATOR = "\x00separator\x00"  # placeholder for any text in the expressions below

# receiver -> source of the list, and True if white space around the whole text is stripped first
_RECEIVERS: dict[str, tuple[str, bool]] = {
    "x": (TEXT, False),
    "x.strip()": (TEXT, True),
    "x.content": (CONTENT, False),
    "x.content.strip()": (CONTENT, True),
}
_LISTS = (f"split({_SEPARATOR!r})", "split()", "splitlines()")
# expression -> filter of the items, and mapping of the items
_ITEMS: dict[str, tuple[Callable[[str], Any] | None, Callable[[str], str] | None]] = {
    "{0}": (None, None),
    "[i for i in {0}]": (None, None),
    "[i for i in {0} if i]": (bool, None),
    "[i for i in {0} if i.strip()]": (str.strip, None),
    "[i.strip() for i in {0}]": (None, str.strip),
    "[i.strip() for i in {0} if i]": (bool, str.strip),
    "[i.strip() for i in {0} if i.strip()]": (str.strip, str.strip),
    "list(filter(None, {0}))": (bool, None),
}
_FORMS = ("lambda x: {items}", "def f(x):\n    y = {list}\n    return {items}")
_BUILTINS = {"list": list, "filter": filter}
_OTHERWISE = (  # flags of functions that take more arguments, or return a generator or coroutine
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


class ListIdiom(NamedTuple):
    """Behaviour of a recognised function.

    of: "text" or "content", the argument itself or that attribute of it. items: display name of the items.
    """

    of: str
    items: str
    splitter: Callable[[], Splitter[str]]


def list_idiom(func: Any) -> ListIdiom | None:
    """Returns the idiom by which the function makes a list of a text; None unless it is exactly a known one."""
    if func is str.splitlines:
        return ListIdiom(TEXT, "lines", SplitLines)
    if func is str.split:
        return ListIdiom(TEXT, "words", lambda: Split(None))
    code = _code_of(func)
    if code is None:
        return None
    names = frozenset(name for each in codes(code) for name in each.co_names)
    if any(func.__globals__.get(name, known) is not known for name, known in _BUILTINS.items() if name in names):
        return None
    if any(getattr(builtins, name) is not known for name, known in _BUILTINS.items() if name in names):
        return None
    shape, texts = _shape(code)
    for known, idiom in _known(names):
        if known == shape and all(texts):  # an empty separator makes split raise
            return idiom(texts[0] if texts else "")
    return None


def attribute_idiom(func: Any) -> str:
    """Returns the attribute that a function like ``lambda x: x.name`` returns; "" for other functions."""
    code = _code_of(func)
    if code is None or len(code.co_names) != 1:
        return ""
    name = code.co_names[0]
    return name if name.isidentifier() and _shape(code) == _shape(_compiled(f"lambda x: x.{name}")) else ""


def _code_of(func: Any) -> CodeType | None:
    """Returns the code of a plain function of exactly one parameter, else None."""
    if type(func) is not FunctionType or func.__defaults__ or func.__closure__:
        return None
    code = func.__code__
    one = code.co_argcount == 1 and not code.co_kwonlyargcount and not code.co_flags & _OTHERWISE
    return code if one else None


_Shape = tuple[Any, ...]


@lru_cache(maxsize=64)
def _known(names: frozenset[str]) -> tuple[tuple[_Shape, Callable[[str], ListIdiom]], ...]:
    """Returns the shapes that use exactly these names, each with a function from separator to idiom."""
    found = []
    for receiver, (of, stripped) in _RECEIVERS.items():
        for made in _LISTS:
            for items, (keep, change) in _ITEMS.items():
                if names != _used(receiver, made, items):
                    continue
                for form in _FORMS:
                    written = "y" if "def" in form else f"{receiver}.{made}"
                    text = form.format(list=f"{receiver}.{made}", items=items.format(written))
                    found.append((_shape(_compiled(text))[0], _making(of, made, stripped, keep, change)))
    return tuple(found)


def _used(*texts: str) -> set[str]:
    known = ("content", "strip", "splitlines", "list", "filter")
    names = {name for name in known if any(f"{name}(" in text or f".{name}" in text for text in texts)}
    return names | ({"split"} if any(text.startswith("split(") for text in texts) else set())


def _making(of: str, made: str, stripped: bool, keep: Any, change: Any) -> Callable[[str], ListIdiom]:
    def idiom(separator: str) -> ListIdiom:
        def splitter() -> Splitter[str]:
            inner: Splitter[str]
            if made == "splitlines()":
                inner = SplitLines(strip=stripped)
            else:
                inner = Split(None if made == "split()" else separator, strip=stripped)
            return Each(inner, keep, change) if keep or change else inner

        units = {"split()": "words", "splitlines()": "lines"}
        return ListIdiom(of, units.get(made) or ("lines" if separator == "\n" else "parts"), splitter)

    return idiom


def _compiled(source: str) -> CodeType:
    outer = compile(source, "<idiom>", "exec")
    return next(constant for constant in outer.co_consts if isinstance(constant, CodeType))


def _shape(code: CodeType) -> tuple[_Shape, tuple[str, ...]]:
    """Returns the instructions without names of variables, and the texts among the constants, in order."""
    rows: list[Any] = [code.co_nlocals, code.co_exceptiontable]
    texts: list[str] = []
    for i in dis.get_instructions(code):
        if isinstance(i.argval, CodeType):
            inner, more = _shape(i.argval)
            rows.append((i.opname, inner))
            texts += more
        elif i.opcode in dis.hasconst:
            is_text = type(i.argval) is str
            rows.append((i.opname, type(i.argval), None if is_text else i.argval))
            texts += [i.argval] if is_text else []
        elif i.opcode in dis.hasname:
            rows.append((i.opname, i.arg, i.argval))
        else:
            rows.append((i.opname, i.arg))
    return tuple(rows), tuple(texts)
