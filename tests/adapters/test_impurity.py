"""Functions that the analysis does not take for pure, and the reasons that it gives."""

# ruff: noqa: C416, UP030  (the functions under test are not to be improved)

from __future__ import annotations

import functools
import json
import operator
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from analysed_functions import CACHE, LOUD, LOUD_TEXT, Loud, exec_scope, remember, shorten, twice

from fineflow.adapters.analysis import analyse

LOUD_LIST = [LOUD]
TABLE: dict[str, list[int]] = {"a": []}


def mutates_copy(x: Any) -> Any:
    y = dict(x)
    y["docs"].append(1)
    return y


def aliased_store(x: Any) -> Any:
    y = x
    y["k"] = 1
    return y


def in_place_or(x: Any) -> Any:
    x |= {"a": 1}
    return x


def in_place_part(x: Any) -> Any:
    y = x["a"]
    y += [1]
    return y


def in_place_loop(x: Any) -> Any:
    out = []
    for part in x["parts"]:
        out = out or part
        out += [1]
    return out


def in_place_reflected(x: Any) -> Any:
    out = 0
    for part in x["parts"]:
        out += part
    return out


def fresh_or_not(x: Any) -> Any:
    out = [] if x["a"] else x["b"]
    out.append(1)
    return out


def fresh_element(x: Any) -> Any:
    out = [x["a"]]
    out[0].append(1)
    return out


def loop_element(x: Any) -> Any:
    for d in x["docs"]:
        d["seen"] = True
    return x["docs"]


def cell_rebound(x: Any) -> Any:
    out: Any = []
    add = (out.append(i) for i in x["a"])
    out = x["b"]
    list(add)
    return 1


def closure_mutates(x: Any) -> Any:
    def add(v: Any) -> None:
        x["a"].append(v)

    add(1)
    return x["b"]


def parameter_mutates(x: Any) -> Any:
    def add(target: Any) -> None:
        target.append(1)

    add(x["a"])
    return x["b"]


def default_mutates(x: Any, seen: list[Any] = []) -> Any:  # noqa: B006
    seen.append(x["a"])
    return seen


def generator(x: Any) -> Any:
    yield x["a"]


async def coroutine(x: Any) -> Any:
    return x["a"]


async def async_generator(x: Any) -> Any:
    yield x["a"]


def writes_global(x: Any) -> Any:
    global PREFIX
    PREFIX = x["a"]
    return x


def writes_outer() -> Callable[[Any], Any]:
    count = 0

    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        return x["a"]

    return f


def over_list() -> Callable[[Any], Any]:
    seen: list[Any] = []
    return lambda x: (seen.append(x), x["a"])[1]


def over_unset() -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        return later

    if CACHE is None:
        later = 1
    return f


def deletes_item(x: Any) -> Any:
    del x["a"]
    return x


def deletes_local(x: Any) -> Any:
    y = x["a"]
    z = x["b"]
    del y
    return z


def with_statement(x: Any) -> Any:
    with x["lock"]:
        return x["a"]


def imports(x: Any) -> Any:
    import os

    return os.getcwd()


def try_mutates(x: Any) -> Any:
    y: Any = []
    try:
        y = x["a"]
        int(x["b"])
        y = []
    except ValueError:
        y.append(1)
    return y


def finally_mutates(x: Any) -> Any:
    try:
        return x["a"]
    finally:
        x["b"].clear()


def bare_raise(x: Any) -> Any:
    raise


def raises_given(x: Any) -> Any:
    raise x["error"]


def catches_given(x: Any) -> Any:
    try:
        return x["a"]
    except x["error"]:
        return None


def defines_class(x: Any) -> Any:
    class C:
        a = x["a"]

    return C.a


def shadowed_builtin() -> Callable[[Any], Any]:
    len = LOUD
    return lambda x: len(x)


def match_class(x: Any) -> Any:
    match x["a"]:
        case Loud(noisy=value):
            return value
    return None


def lazy_in_list(x: Any) -> Any:
    return [iter(x["a"])]


def lazy_in_cell(x: Any) -> Any:
    it = iter(x["a"])
    return [next(it) for _ in [1]], it


def hidden_lazy(x: Any) -> Any:
    return list(map(iter, x["a"]))


def yields_self(x: Any) -> Any:
    def g(n: Any) -> Any:
        yield g(n)

    return [list(g(1))]


def function_in_data(x: Any) -> Any:
    return {"f": lambda: x["a"]}


def mixed_functions(x: Any) -> Any:
    f = print if x["a"] else len
    return f(x["b"])


def starred(*args: Any) -> Any:
    return args[0]["a"]


def keyworded(x: Any, **options: Any) -> Any:
    return options.get("k")


def reads_config(x: Any, config: Any) -> Any:
    return config["tags"]


def reads_optional_config(x: Any, config: Any = None) -> Any:
    return config


def needs_more(x: Any, y: Any) -> Any:
    return y


def store_slice(x: Any) -> Any:
    x["a"][1:2] = []
    return x


def hides_iterator(x: Any) -> Any:
    out = [0]
    out[0] = iter(x["a"])
    return out


def function_attribute(x: Any) -> Any:
    shorten.calls = 1  # type: ignore[attr-defined]
    return x


def imports_anew(x: Any) -> Any:
    import this  # type: ignore[import-not-found,unused-ignore]

    return this


def in_place_times(x: Any) -> Any:
    y = x["a"]
    y *= 2
    return y


def in_place_text(x: Any) -> Any:
    counts = {"a": x["a"]}
    counts["a"] += "text"  # of a list, it adds each character
    return counts


def mutates_global(x: Any) -> Any:
    TABLE.update(x)
    return x


def held_element(x: Any) -> Any:
    TABLE["a"].append(1)
    return x


class Properties(Loud):
    """Methods of an object, which reads itself."""

    def reads_property(self, x: Any) -> Any:
        return self.noisy

    def sets(self, x: Any) -> Any:
        self.last = x
        return x

    def returns_itself(self, x: Any) -> Any:
        return [self]

    def calls_itself(self, x: Any) -> Any:
        return self(x)

    def reads_hooked(self, x: Any) -> Any:
        return self.hooked

    def __getattr__(self, name: str) -> Any:
        return LOUD.method(name)


class Hooked:
    def __getattribute__(self, name: str) -> Any:
        return LOUD.method(name) if name == "a" else object.__getattribute__(self, name)

    def reads(self, x: Any) -> Any:
        return self.a


IMPURE: list[tuple[Callable[..., Any], str]] = [
    (lambda x: input(x["a"]), "calls input"),
    (lambda x: open(x["a"]), "calls open"),  # noqa: SIM115
    (lambda x: eval(x["a"]), "calls eval"),
    (lambda x: exec(x["a"]), "calls exec"),
    (lambda x: compile(x["a"], "", "eval"), "calls compile"),
    (lambda x: globals(), "calls globals"),
    (lambda x: locals(), "calls locals"),
    (lambda x: vars(x), "calls vars"),
    (lambda x: id(x["a"]), "calls id"),
    (lambda x: hash(x["a"]), "calls hash"),
    (lambda x: __import__("os"), "calls __import__"),
    (lambda x: setattr(x, "a", 1), "calls setattr"),
    (lambda x: getattr(x, x["name"]), "not constant"),
    (lambda x: x["a"].save(), "calls .save()"),
    (lambda x: x["a"](), "calls a value"),
    (lambda x: x(), "calls a value"),
    (lambda x: x["a"].text(), "calls a value"),
    (lambda x: x["a"].append(1), ".append()"),
    (lambda x: x.update(a=1), ".update()"),
    (lambda x: x.setdefault("a", []), ".setdefault()"),
    (lambda x: x.pop("a"), ".pop()"),
    (lambda x: x["a"].sort(), ".sort()"),
    (lambda x: dict(x)["a"].clear(), ".clear()"),
    (lambda x: [d.update(a=1) for d in x["docs"]], ".update()"),
    (lambda x: list(map(x["a"].append, x["b"])), ".append()"),
    (lambda x: x["thread"].join(), ".join()"),
    (lambda x: x["path"].replace("new"), "paths"),
    (lambda x: x["tokenizer"].encode("a"), ".encode()"),
    (lambda x: x["template"].format(x=x["a"]), ".format()"),
    (lambda x: "{0.noisy}".format(x["a"]), "template"),
    (lambda x: "{0:{1.noisy}}".format(x["a"], x["b"]), "template"),
    (lambda x: "{a.noisy}".format(**x), "template"),
    (lambda x: sorted(x["a"], key=x["key"]), "calls a value"),
    (lambda x: max(**x), "not known one by one"),
    (lambda x: list(map(x["f"], x["a"])), "calls a value"),
    (lambda x: list(map(*x["a"])), "not known one by one"),
    (lambda x: print(*x), "calls print"),
    (lambda x: list(iter(x["f"], None)), "iter"),
    (lambda x: next(x["it"]), "advances an iterator"),
    (lambda x: iter(x["a"]), "iterator"),
    (lambda x: (d for d in x["a"]), "iterator"),
    (lambda x: map(str, x["a"]), "iterator"),
    (lambda x: lambda: x["a"], "function"),
    (lambda x: x["a"].strip, "function"),
    (lambda x: len, "uses len"),
    (lambda x: json, "uses json"),
    (lambda x: re.sub(x["pattern"], "", x["a"]), "not constant"),
    (lambda x: re.sub("a", x["repl"], x["a"]), "calls a value"),
    (lambda x: re.findall("a", x["a"], re.DEBUG), "flags"),
    (lambda x: re.findall("a", x["a"], flags=re.I | re.DEBUG), "flags"),
    (lambda x: re.findall("a", x["a"], x["flags"]), "flags"),
    (lambda x: json.loads(x["a"], object_hook=print), "object_hook"),
    (lambda x: json.dumps(x["a"], cls=x["cls"]), "cls"),
    (lambda x: json.dumps(x["a"], default=x["default"]), "calls a value"),
    (lambda x: json.dump(x["a"], x["f"]), ""),
    (lambda x: random.random(), "calls random"),
    (lambda x: sys.modules["os"], "sys.modules"),
    (lambda x: LOUD(x), "global LOUD"),
    (lambda x: LOUD.noisy, "global LOUD"),
    (lambda x: LOUD_TEXT.upper(), "global LOUD_TEXT" if sys.version_info < (3, 13) else "calls upper"),
    (lambda x: Loud(), "calls Loud"),
    (lambda x: Loud.method(x, x), ".method"),
    (lambda x: isinstance(x, x["cls"]), "isinstance"),
    (lambda x: type("T", (), {}), "calls type"),
    (lambda x: twice(x["a"]), "calls twice, which calls remember, which stores into"),
    (lambda x: list(map(remember, x["a"])), "calls remember"),
    (lambda x: x["a"] is x["b"], "identities"),
    (lambda x: undefined_name, "not defined"),  # noqa: F821
    (lambda x: functools.partial(shorten, x["a"])(), "not constant"),
    (lambda x: operator.itemgetter(x["a"])(x), "not constant"),
    (lambda x: operator.methodcaller("clear")(x), ".clear()"),
    (lambda x: operator.setitem(x, "a", 1), "calls setitem"),
    (lambda x: operator.iadd(x["a"], [1]), "calls iadd"),
    (lambda: 1, "takes no argument"),
    (mutates_copy, ".append()"),
    (aliased_store, "stores into"),
    (in_place_or, "in place"),
    (in_place_part, "in place"),
    (in_place_loop, "in place"),
    (in_place_reflected, "in place"),
    (fresh_or_not, ".append()"),
    (fresh_element, ".append()"),
    (loop_element, "stores into"),
    (cell_rebound, ".append()"),
    (closure_mutates, ".append()"),
    (parameter_mutates, ".append()"),
    (default_mutates, ".append()"),
    (generator, "generator"),
    (lambda x: (yield x["a"]), "generator"),
    (lambda x: [w for w in x["a"]].append(x["b"].save()), ".save"),
    (coroutine, "asynchronous"),
    (async_generator, ""),
    (writes_global, "writes global PREFIX"),
    (writes_outer(), "writes count"),
    (over_list(), ".append()"),
    (over_unset(), "not set"),
    (deletes_item, "deletes"),
    (deletes_local, "deletes"),
    (with_statement, "context manager"),
    (imports, "calls getcwd"),
    (imports_anew, "which is not loaded yet"),
    (lambda x: x["a"]._noisy, "attribute ._noisy"),
    (lambda x: getattr(x, "_noisy"), "attribute ._noisy"),  # noqa: B009
    (lambda x: LOUD_LIST[0], "global LOUD_LIST"),
    (in_place_times, "in place"),
    (in_place_text, "in place"),
    (mutates_global, ".update()"),
    (held_element, ".append()"),
    (try_mutates, ".append()"),
    (finally_mutates, ".clear()"),
    (bare_raise, "being handled"),
    (raises_given, "raises something"),
    (catches_given, "catches something"),
    (defines_class, "defines a class"),
    (shadowed_builtin(), "len of the enclosing function"),
    (match_class, "match"),
    (lazy_in_list, "iterator"),
    (lazy_in_cell, "iterator"),
    (hidden_lazy, "iterator"),
    (yields_self, "iterator"),
    (function_in_data, "function"),
    (mixed_functions, ""),
    (starred, "*args"),
    (keyworded, "*options"),
    (reads_config, "parameter config"),
    (reads_optional_config, "parameter config"),
    (needs_more, "parameter y"),
    (store_slice, "stores into"),
    (hides_iterator, "iterator"),
    (function_attribute, "stores an attribute"),
    (exec_scope["from_text"], "unknown_name"),
    (LOUD.method, ".append()"),
    ([].append, "calls append"),
    (Properties().reads_property, "self.noisy, which may run code"),
    (Properties().sets, "stores an attribute"),
    (Properties().returns_itself, "reads self, which can change"),
    (Properties().calls_itself, "reads self, which can change"),
    (Properties().reads_hooked, "self.hooked, which is not set"),
    (Hooked().reads, "self.a, which may run code"),
    (LOUD, "Loud"),
    (Loud, "calls Loud"),
    (functools.partial(shorten, limit=[]), "holds a list"),
    (functools.partial(remember), "stores into"),
    (functools.lru_cache(shorten), "lru_cache"),
    (operator.itemgetter(slice(1)), "slice"),
    (operator.methodcaller("append", 1), ".append()"),
]


@pytest.mark.parametrize(("func", "reason"), IMPURE)
def test_not_pure(func: Callable[..., Any], reason: str) -> None:
    verdict = analyse(func)
    assert not verdict.pure, verdict
    assert reason in verdict.reason.lower() or reason in verdict.reason, verdict
    assert verdict.keys is None
