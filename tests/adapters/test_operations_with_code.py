"""Every operation that may run code of the user's on a known object: a walk runs none of it, and trusts nothing behind.

The operations are run, too: where Python runs a special method, the call behind it is not sure.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import datetime
import functools
import itertools
import json
import math
import os
import random
import re
from types import SimpleNamespace
from typing import Any

import pytest
from walk_host import Host, llm

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


class Looked:
    """Computes its attributes."""

    def __getattr__(self, name: str) -> Any:
        return special("getattr")(self)


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


def operations() -> list[str]:
    """The operations, one for each; statements that begin with an assignment go with the next one."""
    found: list[str] = []
    for line in OPERATIONS.strip().splitlines():
        parts = re.split(r"; (?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", line)
        while parts:
            first = parts.pop(0)
            found.append(f"{first}; {parts.pop(0)}" if re.match(r"d = ", first) else first)
    return found


@pytest.mark.parametrize("where", ["global", "local", "with a result"])
@pytest.mark.parametrize("operation", operations())
def test_nothing_behind_it_is_sure(operation: str, where: str) -> None:
    every = class_with_code()
    names: dict[str, Any] = {"Every": every, "looked": Looked(), "llm": llm, "__name__": __name__}
    names |= {each.__name__: each for each in (collections, copy, datetime, functools, itertools, json, math, os)}
    names |= {"random": random, "re": re, "e": every(), "f": every()}
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
