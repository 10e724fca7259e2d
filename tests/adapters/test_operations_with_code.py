"""Every operation that may run code of the user's on a known object: a walk runs none of it, and trusts nothing behind.

The operations are run, too: where Python runs a special method, the call behind it is not sure.
"""

from __future__ import annotations

import ast
import base64
import bisect
import collections
import contextlib
import copy
import csv
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import heapq
import html
import io
import itertools
import json
import logging
import math
import operator
import os
import pprint
import random
import re
import statistics
import string
import struct
import textwrap
import threading
import time
import types
import urllib.parse
import uuid
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import RemoveMessage, ToolMessage
from pydantic import BaseModel
from walk_host import Host, llm

MODULES = (
    *(
        ast,
        base64,
        bisect,
        collections,
        contextlib,
        copy,
        csv,
        dataclasses,
        datetime,
        decimal,
        enum,
        fractions,
        functools,
        hashlib,
    ),
    *(heapq, html, io, itertools, json, logging, math, operator, os, pprint, random, re, statistics, string, struct),
    *(textwrap, threading, time, types, uuid, warnings, weakref),
)
RAN: list[str] = []
_RETURNED: dict[str, Any] = {
    **{"len": 0, "hash": 1, "bool": True, "str": "s", "repr": "r", "format": "f", "index": 0, "int": 1, "float": 1.0},
    **{"fspath": "/x", "bytes": b"", "length_hint": 1},
}
_SPECIAL = [
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "hash",
    "bool",
    "len",
    "iter",
    "next",
    "contains",
    "getitem",
    "setitem",
    "delitem",
    "missing",
    "reversed",
    "index",
    "int",
    "float",
    "complex",
    "round",
    "trunc",
    "floor",
    "ceil",
    "abs",
    "neg",
    "pos",
    "invert",
    "add",
    "radd",
    "iadd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "imul",
    "matmul",
    "truediv",
    "rtruediv",
    "floordiv",
    "mod",
    "rmod",
    "divmod",
    "pow",
    "rpow",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
    "rand",
    "ror",
    "rxor",
    "ior",
    "iand",
    "str",
    "repr",
    "format",
    "bytes",
    "call",
    "enter",
    "exit",
    "instancecheck",
    "length_hint",
    "copy",
    "deepcopy",
    "reduce_ex",
    "fspath",
    "dir",
    "sizeof",
]


def special(name: str) -> Any:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        RAN.append(name)
        with contextlib.suppress(OSError):
            open("/nowhere/else", "w")  # noqa: SIM115 (ends each walk that comes here)
        return iter(()) if name == "iter" else _RETURNED.get(name, self)

    return method


def class_with_code() -> Any:
    members = {f"__{name}__": special(name) for name in _SPECIAL}
    members |= {"keys": special("keys"), "attr": property(special("attr")), "method": special("method")}
    return type("Every", (), {**members, "__module__": __name__})


class Made:
    def __init__(self) -> None:
        special("init")(self)


class Looks:
    def __getattribute__(self, name: str) -> Any:
        return special("getattribute")(self)


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        return special("getattr")(cls)


class OfMeta(metaclass=Meta):
    pass


class Looked:
    """Computes its attributes."""

    def __getattr__(self, name: str) -> Any:
        return special("getattr")(self)


class Kind(enum.Enum):
    A = 1


@dataclasses.dataclass
class Record:
    a: Any


class Data(BaseModel):
    a: Any


OPERATIONS = r"""
e < f; e == 1; 1 == e; e != None; None == e; 1 < e < 3; "a" < e; e is f; not e; e and 1; 1 if e else 2
[e] == [f]; (e,) == (f,); {"a": e} == {"a": f}; [[e]] == [[f]]; [1, e] == [1, 2]; (e,) < (f,); {e} == {f}; [e] < [f]
e in [1, 2]; 1 in [e]; e in {1}; 1 in e; e in {"a": 1}
e + 1; 1 + e; [1] + e; "a" + e; "a" * e; [1] * e; e | 1; e & 1; e @ e; e // 1; e % 2; e << 1; -e; ~e
{1} | {e}; {1} - {e}; {"a": 1} | e
bool(e); len(e); list(e); tuple(e); set(e); dict(e); [*e]; {**e}; {e: 1}; {e}; {x for x in [e]}; {x: 1 for x in [e]}
e[0]; [1, 2][e]; {"a": 1}[e]; {"a": 1}.get(e); [1, 2][e:]; [1, 2][:e]; [1, 2][::e]; "ab"[e]; (1, 2)[e:]
"%s" % e; "%s" % (e,); "{}".format(e); f"{e}"; f"{e!r}"; f"{e:>3}"; f"{[e]}"; str(e); repr(e); str([e]); format(1, e)
int(e); float(e); complex(e); round(e); abs(e); divmod(e, 2); pow(2, e); hash(e); chr(e); hex(e); bytes(e); slice(e)
sum([e]); sum([1], e); min(e, 1); max([e, f]); min([1, 2], key=e); max("a", "b", key=e); sorted([e, f])
sorted([1], key=e); sorted([2, 1], reverse=e); any([e]); all([e]); next(e); iter(e); list(reversed(e)); range(e)
list(map(e, [1])); list(filter(e, [1])); list(filter(None, [e])); list(zip(e, [1])); list(enumerate(e))
isinstance(e, int); isinstance(1, e); issubclass(int, e); e(); e.attr; e.method(); getattr(e, "attr")
hasattr(e, "attr"); looked.x; getattr(looked, "x", 1); hasattr(looked, "x"); callable(e); vars(e); dir(e)
"a".join(e); "a".join([e]); "a".replace("a", e); "a".split(e); "a".startswith(e); "abc".count(e)
"".join(str(x) for x in [e])
json.dumps(e); json.dumps([e]); json.dumps({"a": e}); json.loads(e); re.sub("a", e, "a"); re.match(e, "a")
math.floor(e); math.sqrt(e); os.fspath(e); os.path.join("a", e); random.choice(e); datetime.timedelta(e)
itertools.chain(e); list(itertools.chain([1], e)); list(itertools.islice([1], e)); functools.reduce(e, [1, 2])
functools.partial(e)(); copy.copy(e); copy.deepcopy(e); copy.deepcopy([e])
collections.Counter([e]); collections.Counter(e); collections.OrderedDict(e); collections.defaultdict(e)["a"]
dict.fromkeys([e]); dict.fromkeys(e); dict([(e, 1)]); dict(a=e); set([e]); frozenset([e])
[1].index(e); [1].count(e); [e].index(1); [1].extend(e); [1].append(e); [e].remove(1); [1, 2].insert(e, 1)
[1, 2].pop(e); [e, f].sort(); [1].sort(key=e); [2, 1].sort(reverse=e); [2, 1].sort(key=lambda x: e)
{1}.union(e); {1}.union([e]); {1}.issubset([e]); {1}.add(e); {1}.discard(e); {1}.update([e]); {1}.update(e)
{"a": 1}.update(e); {"a": 1}.update({e: 1}); {"a": 1}.update([(e, 1)]); {"a": 1}.setdefault(e, 1)
{"a": 1}.pop(e, None); {"a": 1}.update(a=e); list.append([], e); dict.get({}, e); str.join(",", [e]); print(e)
[x for x in e]; (lambda *a: 1)(*e); (lambda **a: 1)(**e); d = {"a": 1}; d[e] = 2; d = [1, 2]; d[e] = 2
d = [1, 2]; del d[e]; d = [1, 2]; del d[e:]; d = [1, 2]; d += e; d = 1; d += e; d = {1}; d |= {e}; a, *b = e; a, b = e
"""


FUNCTIONS = r"""
list(map(w, [1])); list(filter(w, [1])); sorted([1, 2], key=w); min([1, 2], key=w); max(1, 2, key=w)
functools.reduce(w, [1, 2]); functools.reduce(w, [1], 2)
re.sub("a", w, "a"); re.compile("a").sub(w, "aa"); re.subn("a", w, "a"); json.loads("1", parse_int=w)
json.loads("{}", object_hook=w); json.loads('{"a":1.0}', parse_float=w); json.dumps({1,2}, default=w)
json.dumps([e], default=str)
collections.defaultdict(w)[1]; collections.defaultdict(w, a=1)["b"]; iter(w, 1); next(iter(w, 1)); list(iter(w, None))
functools.partial(w)(); functools.partial(w, 1)()
list(itertools.accumulate([1, 2], w)); [list(g) for k, g in itertools.groupby([1], w)]
list(itertools.starmap(w, [(1,)])); list(itertools.takewhile(w, [1])); list(itertools.dropwhile(w, [1]))
list(itertools.filterfalse(w, [1])); list(itertools.compress([1], [e]))
bisect.bisect([1, 2], 1, key=w); bisect.insort([1], 2, key=w); bisect.bisect([e], 1); heapq.nlargest(1, [1, 2], key=w)
heapq.heappush([e], f); heapq.heapify([e, f]); heapq.nsmallest(1, [e, f]); list(heapq.merge([1], [2], key=w))
collections.Counter(map(w, [1])); collections.Counter(x=e); collections.Counter(a=1) + e
collections.deque([1]).extend(e); collections.deque([e]).remove(1); collections.deque([e]).count(1)
collections.ChainMap(e)["a"]; collections.OrderedDict([(e, 1)])
"a".translate(e); "{a}".format_map(e); "{0.attr}".format(e); "{0[a]}".format(e); "%(a)s" % e; "%d" % e; "%x" % e
"%*d" % (e, 1); "{:{}}".format(1, e)
operator.methodcaller("method")(e); operator.attrgetter("attr")(e); operator.itemgetter(0)(e); operator.add(e, 1)
operator.call(w); operator.contains(e, 1); operator.truth(e); operator.index(e); operator.length_hint(e)
operator.lt(e, 1); operator.getitem([1], e); operator.setitem({}, e, 1); operator.concat([1], e)
operator.countOf([e], 1); operator.indexOf([e], 1); operator.iadd([1], e)
sorted([1, 2], key=functools.cmp_to_key(w)); functools.lru_cache(w)(); functools.wraps(w)(w)()
functools.singledispatch(w)(1); functools.cache(w)(1)
threading.Thread(target=w).run(); threading.Timer(0, w).run()
weakref.ref(e, w); weakref.finalize(e, w)()
dataclasses.make_dataclass("D", [("a", int, dataclasses.field(default_factory=w))])(); dataclasses.asdict(e)
dataclasses.replace(e); dataclasses.field(default_factory=w); enum.Enum("E", e); types.SimpleNamespace(**e)
types.SimpleNamespace(a=e) == types.SimpleNamespace(a=f)
string.Template("$a").substitute(e); string.Template("$a").substitute(a=e); string.Template("$a").safe_substitute(e)
string.Formatter().format("{}", e); statistics.mean([e]); statistics.mean(map(w, [1])); textwrap.fill(e)
textwrap.dedent(e); decimal.Decimal(e); fractions.Fraction(e); uuid.UUID(e); uuid.UUID(int=e)
log.info("%s", e); log.info(e); log.error("x", extra=e); log.info("x", *e); logging.info(e)
logging.warning("%s", [e]); logging.getLogger(e); warnings.warn(e); pprint.pprint(e); pprint.pformat(e); print([e])
print("a", sep=e); print("a", end=e); print("a", file=e); print(*e)
hashlib.md5(e); base64.b64encode(e); struct.pack("i", e); html.escape(e); urllib.parse.quote(e)
urllib.parse.urlencode(e); urllib.parse.urlencode({"a": e}); urllib.parse.urljoin("a", e); time.strftime(e)
time.localtime(e); datetime.datetime(e, 1, 1); datetime.datetime.now(e); datetime.date.today() + e
datetime.timedelta(days=e); datetime.datetime.fromtimestamp(e)
random.choice([e]); random.shuffle(e); random.sample(e, 1); random.choices([1], weights=e)
random.choices([1], weights=[e]); random.randint(e, 1); random.uniform(e, 1); random.Random(e); io.StringIO().write(e)
list(csv.reader(e)); ast.literal_eval(e)
d = [3]; d[0] = e; d.sort(key=w); d = []; d.extend(map(w, [1])); d = set(); d.update(map(w, [1]))
d = {}; d.update(map(w, [1])); d = {}; d.update(x=w); d = {}; d.setdefault("a", w)
str(object=e); int(x) if (x := e) else 1; bytes([e]); bytearray(e); memoryview(e); enumerate([1], e)
list(enumerate([1], e)); list(zip(*e)); list(zip([1], e)); pow(e, 1, 2); round(2.5, e); sum([], e); all(map(w, [1]))
any(w(x) for x in [1]); next(map(w, [1])); dict(map(w, [1])); set(map(w, [1])); tuple(map(w, [1]))
frozenset(map(w, [1])); "".join(map(w, [1])); sorted(map(w, [1])); max(map(w, [1])); list(reversed(list(map(w, [1]))))
[*map(w, [1])]; {**dict(map(w, []))}; print(*map(w, [1])); (lambda *a: a)(*map(w, [1])); a, = map(w, [1])
a, *b = map(w, [1])
contextlib.nullcontext(e).__enter__(); base64.b64decode(e); functools.reduce(w, [e], 1); iter([e]); next(iter(e), 1)
ToolMessage(e, tool_call_id="a"); ToolMessage([e], tool_call_id="a"); ToolMessage("a", tool_call_id=e)
RemoveMessage(id=e); Record(**e); Record(**{"a": e}); Record(a=e) == Record(a=f); Data(**e); Data(**{"a": e}); Data(a=e)
Data.model_validate(e); Data.model_validate({"a": e}); Data.model_validate_json(e); Kind(e); Kind[e]; e in Kind
Kind.A == e; Kind.A < e; Kind.A.value + e; str(datetime.date.today()) + e; datetime.datetime.now().strftime(e)
datetime.date.today() - e; datetime.datetime.now() == e; f"{datetime.date.today():{e}}"; datetime.datetime.now() < e
Made(); Looks().a; OfMeta.a; OfMeta()
"""


def operations() -> list[str]:
    """The operations, one for each; statements that begin with an assignment go with the next one."""
    found: list[str] = []
    for line in (OPERATIONS + FUNCTIONS).strip().splitlines():
        parts = re.split(r"; (?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", line)
        while parts:
            found.append(parts.pop(0))
            while parts and re.match(r"d = |d\[0\] = ", found[-1].split("; ")[-1]):
                found[-1] += f"; {parts.pop(0)}"
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["global", "local", "with a result"])
@pytest.mark.parametrize("operation", operations())
def test_nothing_behind_it_is_sure(operation: str, where: str) -> None:
    every = class_with_code()
    names: dict[str, Any] = {"Every": every, "looked": Looked(), "llm": llm, "__name__": __name__}
    names |= {each.__name__.partition(".")[0]: each for each in MODULES}
    names |= {"Made": Made, "Looks": Looks, "OfMeta": OfMeta, "urllib": urllib, "Kind": Kind, "Record": Record}
    names |= {"Data": Data, "ToolMessage": ToolMessage, "RemoveMessage": RemoveMessage}
    names |= {"e": every(), "f": every(), "w": lambda *args: special("w")(None), "log": logging.getLogger(__name__)}
    made = {"local": "e, f = Every(), Every(); ", "with a result": "r = llm.invoke('first'); "}.get(where, "")
    if where == "with a result":
        operation = re.sub(r"\b1\b", "r", operation)
    exec(f"def program(items):\n    {made}{operation}\n    llm.invoke('behind')", names)
    RAN.clear()
    found = Host().through(names["program"], ["a"])
    assert RAN == [], "the walk has run code of the user's"
    names["llm"] = SimpleNamespace(invoke=lambda text: 1)
    with contextlib.suppress(Exception):
        names["program"](["a"])
    assert not (RAN and "behind" in found.calls), f"Python runs {RAN}"
