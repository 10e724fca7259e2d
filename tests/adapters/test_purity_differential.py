"""Random functions: what is judged pure must behave so when it is run."""

from __future__ import annotations

import copy
import itertools
import json
import re
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fineflow.adapters.analysis import analyse

# random code compares literals by identity, and worse
pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")

KEYS = ("a", "b", "c")
WHOLE = object()


class Recording(dict[str, Any]):
    """A dict that notes which keys are read, and WHOLE for anything else that depends on its contents."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)
        self.read: set[Any] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _whole(name: str) -> Any:
    method = getattr(dict, name)

    def noted(self: Recording, *args: Any, **keywords: Any) -> Any:
        self.read.add(WHOLE)
        return method(self, *args, **keywords)

    return noted


for _name in ("__iter__", "__len__", "__contains__", "__eq__", "__repr__", "__or__", "__ror__", "__ior__", "__bool__"):
    if hasattr(dict, _name):
        setattr(Recording, _name, _whole(_name))
for _name in ("keys", "values", "items", "copy", "pop", "popitem", "setdefault", "update", "clear", "__reversed__"):
    setattr(Recording, _name, _whole(_name))
Recording.__bool__ = lambda self: (self.read.add(WHOLE), bool(dict.__len__(self)))[1]  # type: ignore[attr-defined]

ATOMS = [
    "x",
    "y",
    "z",
    "x['a']",
    "x['b']",
    "x.get('c')",
    "x.get('a', [])",
    "y['a']",
    "0",
    "'k'",
    "[]",
    "{}",
    "out",
    "None",
]

# Expressions over expressions. Most make no sense for most values; what raises must raise again.
EXPRESSIONS = [
    "({0} or {1})", "({0} if {1} else {0})", "[{0}, {1}]", "{{'a': {0}, 'k': {1}}}", "({0}, {1})", "({0} + {1})",
    "{0}['a']", "{0}[0]", "{0}[:1]", "{0}[{1}]", "list({0})", "dict({0})", "set({0})", "sorted({0}, key=str)",
    "len({0})", "str({0})", "f'{{{0}}}{{{1}}}'", "{0}.get('a')", "{0}.get('b', {1})", "{0}.get({1})", "{0}.copy()",
    "{0}.append({1})", "{0}.update({1})", "{0}.pop()", "{0}.setdefault('a', {1})", "{0}.extend({1})", "{0}.clear()",
    "{0}.insert(0, {1})", "{0}.split()", "{0}.upper()", "{0}.items()", "{0}.values()", "({0} == {1})", "({0} in {1})",
    "[i for i in {0}]", "[i for i in {0} if i == {1}]", "{{i: {1} for i in {0}}}", "[i.append({1}) for i in {0}]",
    "list(i for i in {0})", "(lambda q: q)({0})", "(lambda: {0})()", "(lambda q, r={1}: [q, r])({0})",
    "list(map(lambda i: {1}, {0}))", "list(map(len, {0}))", "next(iter({0}), {1})", "(y := {0})", "(z := {0})",
    "{{**{0}}}", "[*{0}, {1}]", "max({0}, key=lambda i: str(i), default={1})", "list(zip({0}, {1}))",
    "list(enumerate({0}))", "isinstance({0}, (dict, list))", "(lambda *v: v[0])(*{0})", "(lambda **v: {1})(**{0})",
    "[[j for j in i] for i in {0}]", "re.sub('e', '', {0})", "json.dumps({0})", "any({1} for i in {0})",
    "(lambda t: t.append({1}))({0})", "','.join(str(i) for i in {0})", "({0} is None)", "helper({0})",
    "list(itertools.chain({0}, {1}))", "globals_list.append({0})", "globals_list", "[w := i for i in {0}]",
]  # fmt: skip

SIMPLE = [
    "y = {0}", "z = {0}", "x = {0}", "out.append({0})", "out = {0}", "out += [{0}]", "out['a'] = {0}", "y['a'] = {0}",
    "x['a'] = {0}", "y += {0}", "z |= {0}", "{0}", "y, *z = {0}", "return {0}", "y.append({0})", "z.update({0})",
    "y[0] = {0}", "out[:1] = {0}", "del y['a']", "out = [{0}, {1}]", "assert {0}", "n += 1", "n += {0}",
    "raise ValueError({0})", "add({0})", "y = kept()", "break_out = {0}", "y.sort(key=str)", "y = [{0}] * 2",
]  # fmt: skip

BLOCKS = [
    "if {0}:\n{body}\nelse:\n{body2}",
    "for y in {0}:\n{body}",
    "for z in list({0}):\n{body}\n    if {1}: break\nelse:\n{body2}",
    "try:\n{body}\nexcept (KeyError, TypeError, AttributeError, IndexError, ValueError) as e:\n{body2}",
    "try:\n{body}\nfinally:\n{body2}",
    "def add(v):\n{body}\n    return v",
    "def kept():\n{body}\n    return out",
    "while n < 2:\n    n += 1\n{body}",
    "def late(v=x):\n    y = v\n{body}\nlate({0})",
]

expressions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.builds(lambda shape, a, b: shape.format(a, b), st.sampled_from(EXPRESSIONS), inner, inner),
    max_leaves=4,
)
statements = st.builds(lambda shape, a, b: shape.format(a, b), st.sampled_from(SIMPLE), expressions, expressions)


def _indent(lines: list[str]) -> str:
    return "\n".join("    " + line for text in lines for line in text.split("\n"))


def _block(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    bodies = st.lists(inner, min_size=1, max_size=3).map(_indent)
    return st.builds(
        lambda shape, a, b, body, body2: shape.format(a, b, body=body, body2=body2),
        st.sampled_from(BLOCKS), expressions, expressions, bodies, bodies,
    )  # fmt: skip


programs = st.lists(st.recursive(statements, _block, max_leaves=6), min_size=1, max_size=5).map(
    lambda lines: f"def f(x):\n    y = z = None\n    out = []\n    n = 0\n{_indent(lines)}\n    return out"
)

VALUES: list[Any] = [
    {"a": [1, 2], "b": {"a": "text", "b": [3]}, "c": "some text"},
    {"a": [["e"], ["a", "b"]], "b": [{"a": [1]}], "c": None},
    {"a": {"a": {"a": [0]}}, "b": {"b": 1}, "c": [[]]},
    {"a": "text", "b": 1, "c": {"k"}},
    {"b": []},
]


class TooLong(BaseException):
    """A random function did not come to an end soon, for example because it extends the list it walks over."""


def _run(source: str, argument: Any) -> tuple[str, Any, list[Any]]:
    scope, steps = _scope(source), itertools.count()

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if next(steps) > 600:
            raise TooLong
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return "returned", scope["f"](argument), scope["globals_list"]
    except Exception as error:
        return "raised", (type(error), str(error)), scope["globals_list"]
    finally:
        sys.settrace(before)


def _scope(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"re": re, "json": json, "itertools": itertools, "globals_list": []}
    exec("def helper(v):\n    return [v]\n" + source, scope)
    return scope


def _plain(value: Any, depth: int = 0) -> Any:
    """Recording dicts as dicts, views as lists, so that results can be compared and printed."""
    if depth > 20:
        return "deep"
    if isinstance(value, dict):
        return {k: _plain(v, depth + 1) for k, v in dict.items(value)}
    if isinstance(value, list | tuple):
        return type(value)(_plain(v, depth + 1) for v in value)
    if type(value).__name__ in ("dict_items", "dict_values", "dict_keys"):
        return [_plain(v, depth + 1) for v in list(value)]
    return value


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_what_is_judged_pure_behaves_so(source: str) -> None:
    try:
        compile(source, "", "exec")
    except SyntaxError:
        return
    verdict = analyse(_scope(source)["f"])
    if verdict.pure:
        for value in VALUES:
            try:
                check(source, value, verdict.keys)
            except TooLong:
                continue


def check(source: str, value: dict[str, Any], keys: frozenset[str] | None) -> None:
    """Runs a function judged pure: nothing changes, only ``keys`` are read, the rest is not missed."""
    given_ = copy.deepcopy(value)
    kind, result, global_list = _run(source, given_)
    assert given_ == value, "the argument was changed"
    assert not global_list, "a global was changed"
    result = copy.deepcopy(_plain(result))
    again = _run(source, given_)
    assert (kind, result) == (again[0], _plain(again[1])), "a second call differs"
    if keys is None:
        return
    recording = Recording(copy.deepcopy(value))
    _run(source, recording)
    assert recording.read <= keys, "more was read than the verdict says"
    few = _run(source, {k: v for k, v in copy.deepcopy(value).items() if k in keys})
    assert (kind, result) == (few[0], _plain(few[1])), "a key that the verdict does not name matters"


def test_the_generator_reaches_both_verdicts() -> None:
    """Guards the test above against a grammar whose every function is refused, or is trivial."""
    found: dict[str, int] = {"pure": 0, "impure": 0, "keys": 0, "whole": 0}

    @settings(max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs)
    def count(source: str) -> None:
        try:
            verdict = analyse(_scope(source)["f"])
        except SyntaxError:
            return
        found["pure" if verdict.pure else "impure"] += 1
        if verdict.pure:
            found["whole" if verdict.keys is None else "keys"] += 1

    count()
    assert min(found.values()) >= 10, found


def test_the_check_notices_what_it_should() -> None:
    """The differential check itself fails on functions that are not pure."""
    for body, keys in (
        ("x['a'].append(1)", frozenset("a")),
        ("globals_list.append(1)", frozenset()),
        ("return x['a']", frozenset("b")),
        ("return dict(x)", frozenset("a")),
        ("return len(x)", frozenset("a")),
    ):
        with pytest.raises(AssertionError):
            check(f"def f(x):\n    {body}", VALUES[0], keys)
