"""Verdicts on functions that people write, and on functions written to deceive."""

# ruff: noqa: C408, C416, C417, UP030, UP031, E731  (the functions under test are not to be improved)

from __future__ import annotations

import functools
import gc
import itertools
import json
import math
import operator
import random
import re
import sys
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fineflow.adapters.analysis import analyse, is_plain
from fineflow.declare import effects, pure

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="bytecode is read on Python 3.11 to 3.13")

PREFIX = "answer: "
LIMITS = (1, (2, "three"), frozenset({4}))
NUMBER = re.compile(r"\d+")
CACHE: dict[str, str] = {}
KEYS = ["question"]
by_score = operator.itemgetter("score")


class Loud:
    """Everything that it does has a side effect."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @property
    def noisy(self) -> str:
        self.seen.append("property")
        return ""

    def method(self, x: Any) -> Any:
        self.seen.append("method")
        return x

    def __call__(self, x: Any) -> Any:
        self.seen.append("call")
        return x


class LoudText(str):
    """Text with a method that has a side effect; as a constant of a function it must not be trusted."""

    def upper(self) -> str:
        CACHE["upper"] = "called"
        return str(self)


LOUD = Loud()
LOUD_TEXT = LoudText("x")


def shorten(text: str, limit: int = 10) -> str:
    return text[:limit] + "..." if len(text) > limit else text


def remember(text: str) -> str:
    CACHE[text] = text
    return text


def twice(text: str) -> str:
    return shorten(text) + remember(text)


def countdown(n: int) -> int:
    return 0 if n <= 0 else 1 + countdown(n - 1)


def format_docs(docs: Any) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def format_numbered(docs: Any) -> str:
    out = []
    for i, doc in enumerate(docs, start=1):
        source = doc.metadata.get("source", "unknown")
        out.append(f"[{i}] ({source}) {shorten(doc.page_content.strip())}")
    return "\n".join(out)


def format_augmented(docs: Any) -> str:
    text = ""
    for doc in docs:
        text += doc.page_content + "\n"
    return text


def merge_results(x: Any) -> Any:
    seen = set()
    out = []
    for doc in x["first"] + x.get("second", []):
        if doc.page_content not in seen:
            seen.add(doc.page_content)
            out.append(doc)
    return out[: x["k"]]


def count_words(x: Any) -> Any:
    counts: dict[str, Any] = {}
    for word in x["text"].lower().split():
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def guarded(x: Any) -> Any:
    try:
        return json.loads(x["raw"])
    except (ValueError, TypeError) as error:
        return {"error": str(error), "raw": x["raw"]}
    finally:
        len("done")


def alias(x: Any) -> Any:
    y = x
    z = y
    return z["a"] + y.get("b")


def rebound(x: Any) -> Any:
    x = x["a"]
    return x["inner"]


def bound_get(x: Any) -> Any:
    get = x.get
    return get("a") or get("b", "")


def nested(x: Any) -> Any:
    def pick(name: str) -> Any:
        return name + x["a"]

    return [pick(n) for n in x["names"]]


def recursive_helper(x: Any) -> Any:
    def depth(tree: Any) -> Any:
        return 1 + max([depth(t) for t in tree["children"]], default=0)

    return depth(x["tree"])


def walrus(x: Any) -> Any:
    return [short for d in x["docs"] if (short := d.page_content[:5])]


def unpacked(x: Any) -> Any:
    first, *rest = x["docs"]
    (a, b), c = x["pairs"]
    return [first, rest, a, b, c]


def while_loop(x: Any) -> Any:
    n = 0
    while n < 10 and n < x["limit"]:
        n += 1
        if n == 5:
            continue
        if n == 7:
            break
    return n


def many_arguments(x: Any) -> Any:
    return dict(a=x["a"], b=max(x["c"], key=len, default=None), c=str(int(x["b"], base=10)))


exec_scope: dict[str, Any] = {}
# As text, because pytest rewrites the assertions of its modules.
exec(
    """
def from_text(x):
    return unknown_name + x['a']

def checks(x):
    assert x["k"] > 0, "k must be positive"
    if not x["question"]:
        raise ValueError(f"empty question for {x['k']}")
    return x["question"]
""",
    exec_scope,
)


def _key(text: str) -> frozenset[str]:
    return frozenset(text.split())


PURE: list[tuple[Callable[[Any], Any], frozenset[str] | None]] = [
    (lambda x: x["question"], _key("question")),
    (lambda _: 1, _key("")),
    (lambda x: x["a"] + x["b"], _key("a b")),
    (lambda x: x.get("a"), _key("a")),
    (lambda x: x.get("a", x["b"]), _key("a b")),
    (lambda x: x.get(x["k"]), None),
    (lambda x: x[0], None),
    (lambda x: x, None),
    (lambda x: x["a"] or x, None),
    (lambda x: x.split("\n"), None),
    (lambda x: [line.strip() for line in x.split("\n") if line.strip()], None),
    (lambda x: {k: v for k, v in x.items() if k != "a"}, None),
    (lambda x: {len(w) for w in x["words"]}, _key("words")),
    (lambda x: {**x, "a": 1}, None),
    (lambda x: dict(x, a=1), None),
    (lambda x: dict(**x), None),
    (lambda x: [*x["a"], *x["b"]], _key("a b")),
    (lambda x: "a" in x, None),
    (lambda x: len(x), None),
    (lambda x: x["a"] if x["c"] else x["b"], _key("a b c")),
    (lambda x: x["docs"][: x["k"]], _key("docs k")),
    (lambda x: x["docs"][-1].metadata["source"], _key("docs")),
    (lambda x: f"{x['a']!r:>10} {x['b']:.2f}", _key("a b")),
    (lambda x: f"{x}", None),
    (lambda x: "{} {b}".format(x["a"], b=x["b"]), _key("a b")),
    (lambda x: "{a} {b[0]}".format(**x), None),
    (lambda x: "%s" % x["a"], _key("a")),
    (lambda x: PREFIX + x["a"], _key("a")),
    (lambda x: (x["a"], LIMITS[1][0]), _key("a")),
    (lambda x: re.sub(r"\s+", " ", x["a"], flags=re.I | re.M), _key("a")),
    (lambda x: re.sub(r"\s+", lambda m: str(m), x["a"]), _key("a")),
    (lambda x: [NUMBER.sub("#", t) for t in x["a"]], _key("a")),
    (lambda x: m.group(1) if (m := re.search("(a)", x["a"], re.I)) else None, _key("a")),
    (lambda x: json.dumps({"q": x["a"]}, indent=2, default=str), _key("a")),
    (lambda x: math.sqrt(x["a"]) + math.pi, _key("a")),
    (lambda x: sorted(x["docs"], key=lambda d: d.metadata["score"], reverse=True), _key("docs")),
    (lambda x: sorted(x["docs"], key=by_score), _key("docs")),
    (lambda x: sorted(x["docs"], key=operator.itemgetter("a", "b")), _key("docs")),
    (lambda x: sorted(x["docs"], key=str.lower), _key("docs")),
    (lambda x: list(map(lambda d: d.page_content, x["docs"])), _key("docs")),
    (lambda x: list(map(shorten, x["docs"])), _key("docs")),
    (lambda x: list(filter(None, x["docs"])), _key("docs")),
    (lambda x: list(zip(x["a"], itertools.chain(x["b"], x["c"]), strict=False)), _key("a b c")),
    (lambda x: list(itertools.chain.from_iterable(x["a"])), _key("a")),
    (lambda x: functools.reduce(lambda a, b: a + b, x["a"], 0), _key("a")),
    (lambda x: next((d for d in x["docs"] if d.id == x["id"]), None), _key("docs id")),
    (lambda x: sum(len(d.page_content) for d in x["docs"]), _key("docs")),
    (lambda x: any(w in x["a"] for w in ("b", "c")), _key("a")),
    (lambda x: isinstance(x["a"], (str, list)) and bool(x["a"]), _key("a")),
    (lambda x: getattr(x["doc"], "page_content", ""), _key("doc")),
    (lambda x: x["a"] is None, _key("a")),
    (lambda x: (lambda y: y + x["a"])(x["b"]), _key("a b")),
    (lambda x: [[b + x["k"] for b in a] for a in x["rows"]], _key("rows k")),
    (lambda x: shorten(x["a"], limit=5), _key("a")),
    (lambda x: shorten(x), None),
    (lambda x: countdown(x["n"]), _key("n")),
    (lambda x: max(*x["a"]), _key("a")),
    (lambda x: list(range(len(x["a"])))[::-1], _key("a")),
    (lambda x: dict.fromkeys(x["a"], 0), _key("a")),
    (lambda m: m.content if m.tool_calls == [] else m.additional_kwargs.get("a"), None),
    (lambda x: x["a"] == x["b"] and not x["c"] < -x["d"], _key("a b c d")),
    (lambda x, k=3: x["docs"][:k], _key("docs")),
    (lambda x, config=None: x["a"], _key("a")),
    (format_docs, None),
    (format_numbered, None),
    (format_augmented, None),
    (merge_results, _key("first second k")),
    (count_words, _key("text")),
    (guarded, _key("raw")),
    (exec_scope["checks"], _key("k question")),
    (alias, _key("a b")),
    (rebound, _key("a")),
    (bound_get, _key("a b")),
    (nested, _key("a names")),
    (recursive_helper, _key("tree")),
    (walrus, _key("docs")),
    (unpacked, _key("docs pairs")),
    (while_loop, _key("limit")),
    (many_arguments, _key("a b c")),
    (operator.itemgetter("a"), _key("a")),
    (operator.itemgetter("a", "b"), _key("a b")),
    (operator.itemgetter(0), None),
    (operator.attrgetter("page_content"), None),
    (operator.methodcaller("get", "a", "b"), _key("a")),
    (operator.methodcaller("split", maxsplit=1), None),
    (functools.partial(shorten, limit=3), None),
    (functools.partial(lambda prefix, x: prefix + x["a"], "p"), _key("a")),
    (functools.partial(functools.partial(lambda a, b, x: a + b + x["a"], 1), 2), _key("a")),
    (functools.partial(re.sub, r"\s", " "), None),
    (functools.partial(sorted, reverse=True), None),
    (", ".join, None),
    (len, None),
    (str, None),
    (json.loads, None),
    (format, None),
]


@pytest.mark.parametrize(("func", "keys"), PURE)
def test_pure(func: Callable[[Any], Any], keys: frozenset[str] | None) -> None:
    verdict = analyse(func)
    assert verdict.pure, verdict
    assert verdict.keys == keys, verdict
    assert verdict.still_holds()


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


def default_reads(x: Any, extra: dict[str, Any] = {"a": 1}) -> Any:  # noqa: B006
    return extra["a"]


def keyword_default_reads(x: Any, *, extra: Any = KEYS) -> Any:
    return extra[0]


def keyword_calls(x: Any) -> Any:
    return shorten(x["a"], **x["options"])


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


def over_mutable_read() -> Callable[[Any], Any]:
    options = {"k": 1}
    return lambda x: x["docs"][: options["k"]]


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


def keyword_leak(x: Any) -> Any:
    # The keyword names belong to the inner call only.
    return print(dict(key=x["a"]))


IMPURE: list[tuple[Callable[..., Any], str]] = [
    (lambda x: print(x), "calls print"),
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
    (lambda x: getattr(x, "noisy"), "attribute .noisy"),  # noqa: B009
    (lambda x: hasattr(x, "noisy"), "attribute .noisy"),
    (lambda x: x["a"].noisy, "attribute .noisy"),
    (lambda x: x["a"].save(), "attribute .save"),
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
    (lambda x: sorted(x["a"], key=print), "calls print"),
    (lambda x: sorted(x["a"], key=x["key"]), "calls a value"),
    (lambda x: max(**x), "not known one by one"),
    (lambda x: max(x["a"], key=lambda d: d.noisy), ".noisy"),
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
    (lambda x: re.sub("a", lambda m: print(m), x["a"]), "calls print"),
    (lambda x: re.findall("a", x["a"], re.DEBUG), "flags"),
    (lambda x: re.findall("a", x["a"], flags=re.I | re.DEBUG), "flags"),
    (lambda x: re.findall("a", x["a"], x["flags"]), "flags"),
    (lambda x: json.loads(x["a"], object_hook=print), "object_hook"),
    (lambda x: json.dumps(x["a"], cls=x["cls"]), "cls"),
    (lambda x: json.dumps(x["a"], default=x["default"]), "calls a value"),
    (lambda x: json.dump(x["a"], x["f"]), ""),
    (lambda x: random.random(), "calls random"),
    (lambda x: time.time(), "calls time"),
    (lambda x: CACHE.get(x["a"]), "global CACHE"),
    (lambda x: x[KEYS[0]], "global KEYS"),
    (lambda x: sys.modules["os"], "sys.modules"),
    (lambda x: LOUD(x), "global LOUD"),
    (lambda x: LOUD.noisy, "global LOUD"),
    (lambda x: LOUD_TEXT.upper(), "global LOUD_TEXT"),
    (lambda x: Loud(), "calls Loud"),
    (lambda x: Loud.method(x, x), ".method"),
    (lambda x: isinstance(x, x["cls"]), "isinstance"),
    (lambda x: type("T", (), {}), "calls type"),
    (lambda x: twice(x["a"]), "calls twice, which calls remember, which reads global CACHE"),
    (lambda x: list(map(remember, x["a"])), "calls remember"),
    (lambda x: default_reads(x), "default"),
    (lambda x: x["a"] is x["b"], "identities"),
    (lambda x: undefined_name, "not defined"),  # noqa: F821
    (lambda x: [y for y in x["a"] if y.noisy], ".noisy"),
    (lambda x: functools.partial(print, 1)(x), "calls print"),
    (lambda x: functools.partial(shorten, x["a"])(), "not constant"),
    (lambda x: operator.itemgetter(x["a"])(x), "not constant"),
    (lambda x: operator.attrgetter("noisy")(x), ".noisy"),
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
    (default_mutates, "default"),
    (default_reads, "default"),
    (keyword_default_reads, "default"),
    (generator, "generator"),
    (lambda x: (yield x["a"]), "generator"),
    (lambda x: [w for w in x["a"]].append(x["b"].save()), ".save"),
    (coroutine, "asynchronous"),
    (async_generator, ""),
    (writes_global, "writes global PREFIX"),
    (writes_outer(), "writes count"),
    (over_list(), "seen of the enclosing function"),
    (over_mutable_read(), "options of the enclosing function"),
    (over_unset(), "not set"),
    (deletes_item, "deletes"),
    (deletes_local, "deletes"),
    (with_statement, "context manager"),
    (imports, "imports"),
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
    (keyword_leak, "calls print"),
    (exec_scope["from_text"], "unknown_name"),
    (LOUD.method, "a method of Loud"),
    (LOUD, "Loud"),
    (Loud, "calls Loud"),
    (print, "calls print"),
    ([].append, "calls append"),
    (functools.partial(shorten, limit=[]), "holds a list"),
    (functools.partial(print), "calls print"),
    (functools.partial(remember), "CACHE"),
    (functools.lru_cache(shorten), "lru_cache"),
    (operator.itemgetter(slice(1)), "slice"),
    (operator.attrgetter("page_content.noisy"), ".noisy"),
    (operator.methodcaller("append", 1), ".append()"),
]


@pytest.mark.parametrize(("func", "reason"), IMPURE)
def test_not_pure(func: Callable[..., Any], reason: str) -> None:
    verdict = analyse(func)
    assert not verdict.pure, verdict
    assert reason in verdict.reason.lower() or reason in verdict.reason, verdict
    assert verdict.keys is None


def test_keyword_calls_of_a_known_function_take_anything_as_data() -> None:
    verdict = analyse(keyword_calls)
    assert verdict.pure, verdict
    assert verdict.keys == {"a", "options"}


def test_reason_and_location_point_at_the_line() -> None:
    verdict = analyse(remember)
    line = remember.__code__.co_firstlineno + 1
    assert verdict.location == f"test_purity.py:{line}"
    assert analyse(format_docs).reason == "reads its argument, joins strings"
    assert analyse(lambda x: x["b"] + x["a"]).reason == "reads a, b"
    assert analyse(lambda x: twice(x)).location == f"test_purity.py:{line}"


def test_source_may_be_missing() -> None:
    code = compile("lambda x: x['a']", "", "eval")
    verdict = analyse(eval(code))
    assert verdict.pure
    assert verdict.location == ""


def test_globals_are_checked_again() -> None:
    scope: dict[str, Any] = {}
    exec("P = 'a'\ndef g(t): return t + P\nf = lambda x: g(x['q'])", scope)
    verdict = analyse(scope["f"])
    assert verdict.pure
    assert verdict.still_holds()
    scope["P"] = "b"
    assert not verdict.still_holds()
    assert analyse(scope["f"]).still_holds()
    scope["P"] = []
    assert not analyse(scope["f"]).pure
    scope["P"] = "a"
    assert verdict.still_holds()
    scope["g"] = lambda t: t
    assert not verdict.still_holds()
    scope["g"] = print
    assert not analyse(scope["f"]).pure


def test_a_global_that_appears_over_a_builtin_is_noticed() -> None:
    scope: dict[str, Any] = {}
    exec("f = lambda x: len(x['q'])", scope)
    verdict = analyse(scope["f"])
    assert verdict.pure
    scope["len"] = print
    assert not verdict.still_holds()
    assert not analyse(scope["f"]).pure


def test_patched_module_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = analyse(lambda x: json.dumps(x["a"]))
    assert verdict.pure
    monkeypatch.setattr(json, "dumps", lambda v: CACHE.get(v))
    assert not verdict.still_holds()
    assert not analyse(lambda x: json.dumps(x["a"])).pure


def test_closure_cells_defaults_and_code_are_checked_again() -> None:
    def make() -> tuple[Callable[[Any], Any], Callable[[Any], None]]:
        k = 1

        def change(value: Any) -> None:
            nonlocal k
            k = value

        return (lambda x: x["a"] + k), change

    f, change = make()
    verdict = analyse(f)
    assert verdict.pure
    change(2)
    assert not verdict.still_holds()
    change([])
    assert not analyse(f).pure

    def g(x: Any, k: Any = 1, *, n: Any = 2) -> Any:
        return x["a"] + k + n

    verdict = analyse(g)
    assert verdict.pure
    g.__kwdefaults__["n"] = 3
    assert not verdict.still_holds()
    verdict = analyse(g)
    g.__defaults__ = ([],)
    assert not verdict.still_holds()
    assert not analyse(g).pure

    def h(x: Any) -> Any:
        return x["a"]

    verdict = analyse(h)
    h.__code__ = (lambda x: print(x)).__code__
    assert not verdict.still_holds()
    assert not analyse(h).pure


def test_partial_is_checked_again() -> None:
    p = functools.partial(shorten, limit=3)
    verdict = analyse(p)
    assert verdict.still_holds()
    p.keywords["limit"] = 4
    assert not verdict.still_holds()


def test_verdicts_do_not_keep_functions_alive() -> None:
    def make() -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            return 0 if x["a"] else f({"a": 1})

        return f

    f = make()
    verdict = analyse(f)
    assert verdict.pure
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None
    assert not verdict.still_holds()


def test_functions_of_one_code_have_their_own_verdicts() -> None:
    def make(target: Any) -> Callable[[Any], Any]:
        return lambda x: target(x["a"])

    assert analyse(make(len)).pure
    assert not analyse(make(print)).pure
    assert not analyse(make(LOUD)).pure


def test_unusual_namespace_and_mutable_constants() -> None:
    class Scope(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            return print

    code = (lambda x: something(x)).__code__  # type: ignore[name-defined]  # noqa: F821
    assert not analyse(types.FunctionType(code, Scope())).pure
    code = lambda x: "constant"
    changed = code.__code__.replace(co_consts=tuple([] if c == "constant" else c for c in code.__code__.co_consts))
    assert not analyse(types.FunctionType(changed, {})).pure


def test_declarations_come_first() -> None:
    @pure
    def logs(x: Any) -> Any:
        print(x["a"])
        return x["a"]

    verdict = analyse(logs)
    assert (verdict.pure, verdict.reason, verdict.keys) == (True, "declared pure", None)
    assert analyse(lambda x: logs(x["a"])).pure

    @pure
    def picks(x: Any) -> Any:
        return x["a"]

    assert analyse(picks).keys == {"a"}
    assert analyse(functools.partial(logs)).pure

    @pure
    def two(options: Any, x: Any) -> Any:
        print(options, x)

    assert not analyse(functools.partial(two, [])).pure

    @effects(writes="log")
    def harmless(x: Any) -> Any:
        return x["a"]

    assert not analyse(harmless).pure
    assert "log" in analyse(harmless).reason
    assert "declared" in analyse(lambda x: harmless(x)).reason


def test_langchain_values_can_be_made() -> None:
    documents = pytest.importorskip("langchain_core.documents")
    Document = documents.Document
    assert analyse(lambda x: [Document(page_content=t, metadata={"k": x["k"]}) for t in x["texts"]]).keys == {
        "texts",
        "k",
    }

    class Sub(Document):  # type: ignore[misc,valid-type]
        pass

    assert not analyse(lambda x: Sub(page_content=x["a"])).pure


def test_plain_data() -> None:
    documents = pytest.importorskip("langchain_core.documents")
    messages = pytest.importorskip("langchain_core.messages")

    class Sub(documents.Document):  # type: ignore[misc,name-defined]
        pass

    good = [documents.Document(page_content="a", metadata={"b": [1, {2.0, None}]}), messages.AIMessage("a")]
    assert is_plain({"docs": good, "q": ("a", b"b", True)})
    for bad in (LOUD, LOUD_TEXT, iter([]), Sub(page_content=""), types.SimpleNamespace(), len, range(3)):
        assert not is_plain([bad])
        assert not is_plain(documents.Document(page_content="a", metadata={"k": bad}))
    assert not is_plain(list(range(100)), limit=50)


def test_a_function_of_any_size_is_decided() -> None:
    scope: dict[str, Any] = {}
    exec("def f(x):\n    y = 0\n" + "    y += len(x['a'])\n" * 400 + "    return y", scope)
    assert analyse(scope["f"]).keys == {"a"}
    exec("def f(x):\n    y = 0\n" + "    y += len(x['a'])\n" * 5000 + "    return y", scope)
    assert "too large" in analyse(scope["f"]).reason


def test_small_functions_are_decided_fast() -> None:
    from fineflow.adapters.analysis.verdict import _fresh

    func = lambda x: x["question"]
    best = min(_timed(lambda: _fresh(func)) for _ in range(200))
    assert best < 0.002, f"{best * 1e6:.0f} microseconds"  # ten times what it takes on a slow, busy machine
    again = min(_timed(lambda: analyse(func)) for _ in range(200))
    assert again < best


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
