"""Trusted names: builtins, functions of a few standard modules, methods and attributes.

Builtins and module functions are recognised by identity, as of the import of this module; a shadowed or patched one is
unknown. Methods and attributes of *values* can only be recognised by name: a user's class may give ``.get`` or
``.page_content`` another meaning, and its operators, iteration, ``str()`` and truth may run any code. They are trusted
to behave as on plain data; ``is_plain`` checks if a given argument is plain data.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import itertools
import json
import math
import operator
import re
from dataclasses import dataclass
from enum import EnumMeta
from types import BuiltinFunctionType, FunctionType
from typing import Any

from fineflow.adapters.analysis.data_models import reads_as_data
from fineflow.adapters.analysis.values import (
    FRESH_ANY,
    FRESH_DICT,
    FRESH_LIST,
    FRESH_SET,
    LAZY,
    SCALAR,
    SHARED,
    Value,
    immutable,
)
from fineflow.adapters.core.installers import if_imported, of_package


@dataclass(frozen=True, slots=True)
class Signature:
    """Behaviour of a trusted function.

    result: value that it returns. lazy: True if it consumes iterators. calls: position or keyword of a function
    parameter. arity: number of values passed to that function (0: one per remaining argument). keywords: accepted
    names, None for any.
    """

    result: Value
    lazy: bool = False
    calls: int | str | None = None
    arity: int = 1
    keywords: frozenset[str] | None = frozenset()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Attributes of documents and messages. Any other may be a property that runs code.
ATTRIBUTES = _words(
    "page_content metadata content text type id name additional_kwargs response_metadata tool_calls usage_metadata"
)
# str by the definition of LangChain's Document, which validates it.
TEXT_ATTRIBUTES = _words("page_content")

_TO_TEXT = _words(
    "strip lstrip rstrip lower upper title capitalize casefold swapcase replace removeprefix removesuffix zfill ljust "
    "rjust center expandtabs translate partition rpartition startswith endswith find rfind index rindex count isdigit "
    "isalpha isalnum isspace isupper islower istitle isnumeric isdecimal isidentifier isascii isprintable"
)
_TO_LIST = _words("split rsplit splitlines")
_READ = _words(
    "get keys values items copy most_common strftime isoformat "
    "union intersection difference symmetric_difference issubset issuperset isdisjoint"
)
# Only on text that is certainly a builtin; elsewhere these names belong to threads, tokenizers, templates.
TEXT_ONLY = _words("join encode decode format")

# Methods of values that do not change them, and their results on builtin data that contains only such data.
READERS: dict[str, Value] = (
    dict.fromkeys(_TO_TEXT, SCALAR)
    | dict.fromkeys(_TO_LIST, FRESH_LIST)
    | dict.fromkeys(_READ, SHARED)
    | {
        "model_dump": FRESH_DICT,
        "model_dump_json": SCALAR,
        "join": SCALAR,
        "encode": SCALAR,
        "decode": SCALAR,
        "format": SCALAR,
    }
)
READER_KEYWORDS = _words("sep maxsplit keepends encoding errors tabsize")

# Methods that change their object: allowed on containers that the call created. True: they return (part of) its data.
MUTATORS: dict[str, bool] = dict.fromkeys(
    _words(
        "append extend insert remove clear sort reverse add discard update difference_update intersection_update "
        "symmetric_difference_update"
    ),
    False,
) | dict.fromkeys(_words("pop popitem setdefault"), True)

PATTERN_METHODS = _words("match search fullmatch split findall sub subn")
MATCH_METHODS = _words("group groups groupdict start end span expand")

_TRUSTED = frozenset({*READERS, *MUTATORS, *PATTERN_METHODS, *MATCH_METHODS, *ATTRIBUTES})

# By id, with the object itself to keep the id from being reused.
RE_FUNCTIONS: dict[int, tuple[Any, str]] = {
    id(getattr(re, name)): (getattr(re, name), name) for name in PATTERN_METHODS
}

FUNCTIONS: dict[int, tuple[Any, Signature]] = {}


def _trust(module: Any, names: str, signature: Signature) -> None:
    for name in names.split():
        function = vars(module).get(name)  # names of a later Python are absent
        if isinstance(function, BuiltinFunctionType | FunctionType | type):
            FUNCTIONS[id(function)] = (function, signature)


_trust(
    builtins,
    "str repr ascii format int float complex bool bytes chr ord hex oct bin len",
    Signature(SCALAR, keywords=_words("base")),
)
_trust(builtins, "abs round divmod pow range slice", Signature(SHARED, keywords=_words("ndigits")))
_trust(builtins, "sum", Signature(SHARED, lazy=True, keywords=_words("start")))
_trust(builtins, "tuple frozenset", Signature(SHARED, lazy=True))
_trust(builtins, "any all", Signature(SCALAR, lazy=True))
_trust(builtins, "zip enumerate reversed", Signature(LAZY, lazy=True, keywords=_words("strict start")))
_trust(builtins, "list", Signature(FRESH_LIST, lazy=True))
_trust(builtins, "set", Signature(FRESH_SET, lazy=True))
_trust(builtins, "dict", Signature(FRESH_DICT, lazy=True, keywords=None))
_trust(builtins, "sorted", Signature(FRESH_LIST, lazy=True, calls="key", keywords=_words("key reverse")))
_trust(builtins, "min max", Signature(SHARED, lazy=True, calls="key", keywords=_words("key default")))
_trust(builtins, "map", Signature(LAZY, lazy=True, calls=0, arity=0))
_trust(builtins, "filter", Signature(LAZY, lazy=True, calls=0))
_trust(functools, "reduce", Signature(SHARED, lazy=True, calls=0, arity=2))
_trust(
    itertools,
    "chain islice zip_longest product combinations permutations pairwise",
    Signature(LAZY, lazy=True, keywords=_words("repeat fillvalue")),
)
_trust(itertools, "takewhile dropwhile filterfalse", Signature(LAZY, lazy=True, calls=0))
_trust(
    operator,
    "add sub mul truediv floordiv mod neg pos not_ truth eq ne lt le gt ge and_ or_ xor concat contains "
    "countOf indexOf getitem",
    Signature(SHARED),
)
_trust(math, "ceil floor trunc gcd lcm comb perm factorial", Signature(SHARED))
_trust(
    math,
    "sqrt log log2 log10 log1p exp expm1 pow fabs fmod hypot isclose isfinite isinf isnan sin cos tan tanh "
    "atan atan2 degrees radians copysign fsum dist",
    Signature(SCALAR, keywords=_words("rel_tol abs_tol")),
)
_trust(
    json,
    "dumps",
    Signature(
        SCALAR,
        calls="default",
        keywords=_words("default indent ensure_ascii sort_keys separators skipkeys allow_nan check_circular"),
    ),
)
_trust(json, "loads", Signature(FRESH_ANY))
_trust(copy, "copy deepcopy", Signature(FRESH_ANY))
_trust(collections, "Counter OrderedDict", Signature(FRESH_DICT, lazy=True, keywords=None))
_trust(re, "escape", Signature(SCALAR))
FACTORIES = frozenset({int, float, str, list, dict, set})

# Methods accessed through their class: ``str.lower``, ``dict.fromkeys``.
CLASS_METHODS: dict[tuple[int, str], Signature] = {
    **{(id(str), name): Signature(SHARED) for name in _TO_TEXT | _TO_LIST},
    (id(str), "maketrans"): Signature(SHARED),
    (id(dict), "fromkeys"): Signature(FRESH_DICT, lazy=True),
    (id(itertools.chain), "from_iterable"): Signature(LAZY, lazy=True),
}

ITEMGETTER, ATTRGETTER = operator.itemgetter, operator.attrgetter
GETTERS = (ITEMGETTER, ATTRGETTER, operator.methodcaller)
_BUILTIN = [e for e in vars(builtins).values() if isinstance(e, type) and issubclass(e, Exception)]
_ERRORS = {id(e): e for e in (*_BUILTIN, json.JSONDecodeError, re.error)}
_MODELS = (
    ("langchain_core.documents.base", "Document"),
    ("langchain_core.messages.human", "HumanMessage"),
    ("langchain_core.messages.system", "SystemMessage"),
    ("langchain_core.messages.ai", "AIMessage"),
)


def trusted(func: Any) -> bool:
    """Returns True if a function is known by identity, so that its code is not analysed."""
    return id(func) in FUNCTIONS or id(func) in RE_FUNCTIONS


def is_error(cls: Any) -> bool:
    """Returns True for exceptions of Python's own and of packages, which only hold what they are made of.

    Functions must not raise KeyboardInterrupt and the like early.
    """
    return id(cls) in _ERRORS or (isinstance(cls, type) and issubclass(cls, Exception) and of_package(cls.__module__))


def is_model(cls: Any) -> bool:
    """Returns True for LangChain's value classes, whose constructors only validate."""
    return any(if_imported(module, name) is cls for module, name in _MODELS)


_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_DATA = (
    *("langchain_core.documents.", "langchain_core.messages."),
    *("llama_index.core.schema", "llama_index.core.base.llms.types", "llama_index.core.base.response.schema"),
)
_EXTRA, _PRIVATE = "__pydantic_extra__", "__pydantic_private__"


def is_plain(value: Any, limit: int = 10_000) -> bool:
    """Returns True for plain data: builtin scalars and containers, and data of the frameworks, of exact types.

    The latter are documents, nodes, messages and responses; the user's pydantic models count that only hold data. For
    such arguments all assumptions about names hold. Looks at no more than ``limit`` parts; larger values count as not
    plain.
    """
    parts = [value]
    while parts:
        limit -= 1
        if limit < 0:
            return False
        held = parts_of(parts.pop())
        if held is None:
            return False
        others = [each for each in held if type(each) not in _SCALARS]
        limit -= len(held) - len(others)
        parts += others
    return limit >= 0


def parts_of(part: Any) -> list[Any] | tuple[()] | None:
    """Returns what an object of plain data directly holds; None for any other object."""
    kind = type(part)
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return list(part)
    if kind is dict:
        return [*part, *part.values()]
    if kind.__module__.startswith(_DATA):
        if if_imported(kind.__module__, kind.__name__) is not kind:
            return None  # a class that only claims to be from there
        if isinstance(kind, EnumMeta):
            return ()
        return [*(vars(part).values() if hasattr(part, "__dict__") else ()), getattr(part, _EXTRA, None)]
    if immutable(part):
        return ()
    if reads_as_data(kind, _TRUSTED):
        return [*vars(part).values(), getattr(part, _EXTRA, None), getattr(part, _PRIVATE, None)]
    return None
