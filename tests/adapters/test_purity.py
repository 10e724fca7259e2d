"""Verdicts on functions that people write, and on functions written to deceive."""

# ruff: noqa: C408, C417, UP031  (the functions under test are not to be improved)

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
from analysed_functions import PREFIX, exec_scope, format_docs, shorten

from fineflow.adapters.analysis import analyse

LIMITS = (1, (2, "three"), frozenset({4}))

NUMBER = re.compile(r"\d+")

by_score = operator.itemgetter("score")


def countdown(n: int) -> int:
    return 0 if n <= 0 else 1 + countdown(n - 1)


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
