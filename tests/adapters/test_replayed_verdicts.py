"""Verdicts on functions that an app makes anew in every request: by their code and by what they read, as if fresh."""

from __future__ import annotations

import functools
import gc
import json
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import Any

import pytest
from analysed_functions import LOUD, shorten, twice
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pydantic import BaseModel

import fineflow
from fineflow.adapters.analysis import Verdict, analyse, verdict
from fineflow.adapters.analysis.replay import Replays
from fineflow.declare import effects, pure
from fineflow.testing.langchain import FakeChat


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Counts the functions whose bytecode is read."""
    found: list[Any] = []
    original = verdict._interpreted

    def counted(analysis: Any, func: Any, given: Any) -> Verdict:
        found.append(repr(func))
        return original(analysis, func, given)

    monkeypatch.setattr(verdict, "_interpreted", counted)
    monkeypatch.setattr(verdict, "_replays", Replays())
    yield found


def fresh(func: Any, **how: Any) -> Verdict:
    """Returns the verdict of an analysis that knows nothing of earlier ones."""
    kept, verdict._replays = verdict._replays, Replays()
    try:
        return analyse(func, **how)
    finally:
        verdict._replays = kept


class Limits:
    """A class of the user's with state."""

    words = 3

    def __init__(self, most: Any, how: Any = str.upper) -> None:
        self.most, self.how = most, how

    def cut(self, text: Any) -> Any:
        return text[: self.most]

    def __call__(self, x: Any) -> Any:
        return x["a"][: self.most]


def calls(target: Any) -> Callable[[Any], Any]:
    return lambda x: target(x["a"])


def calls_both(target: Any) -> Callable[[Any], Any]:
    first, second = target if isinstance(target, tuple) else (target, target)
    return lambda x: [first(x["a"]), second(x["b"])]


def calls_either(target: Any) -> Callable[[Any], Any]:
    first, second = target if isinstance(target, tuple) else (target, target)
    return lambda x: (first if x["b"] else second)(x["a"])


def subscripts(target: Any) -> Callable[[Any], Any]:
    return lambda x: x[target]


def adds(target: Any) -> Callable[[Any], Any]:
    return lambda x: [x["a"], target]


def by_default(target: Any) -> Callable[[Any], Any]:
    def f(x: Any, *, other: Any = target) -> Any:
        return [x["a"], other]

    return f


def reads_attribute(target: Any) -> Callable[[Any], Any]:
    return lambda x: x["a"][: target.most]


def calls_method(target: Any) -> Callable[[Any], Any]:
    def inner(text: Any) -> Any:
        return target.cut(text)

    return lambda x: inner(x["a"])


def as_partial(target: Any) -> Any:
    def f(other: Any, x: Any) -> Any:
        return [other, x["a"]]

    return functools.partial(f, target)


def as_method(target: Any) -> Any:
    return Limits(target).__call__


def reads_global(target: Any) -> Callable[[Any], Any]:
    return FunctionType((lambda x: OUTSIDE(x["a"])).__code__, {"OUTSIDE": target, "__builtins__": __builtins__})  # type: ignore[name-defined]  # noqa: F821


def _nested(target: Any) -> Any:
    return lambda text: target(text)


def _other(text: Any) -> Any:
    return text


@pure
def _promised(text: Any) -> Any:
    LOUD.append(text)


@effects(writes="log")
def _writes(text: Any) -> Any:
    return text


MAKERS = (
    *(
        calls,
        calls_both,
        calls_either,
        subscripts,
        adds,
        by_default,
        reads_attribute,
        calls_method,
        as_partial,
        as_method,
    ),
    reads_global,
)
TARGETS: dict[str, Callable[[], Any]] = {
    "len": lambda: len,
    "print": lambda: print,
    "json.dumps": lambda: json.dumps,
    "a function of the module": lambda: shorten,
    "another one": lambda: twice,
    "a function made anew": lambda: _nested(len),
    "the same over another": lambda: _nested(print),
    "a function of another code": lambda: lambda text: LOUD.append(text),
    "nested twice": lambda: _nested(_nested(_other)),
    "two of one code": lambda: (_nested(len), _nested(len)),
    "one twice": lambda: (lambda f: (f, f))(_nested(len)),
    "two, one of which prints": lambda: (_nested(len), _nested(print)),
    "declared pure": lambda: _promised,
    "declared to write": lambda: _writes,
    "key a": lambda: "a",
    "key b": lambda: "".join(["b"]),
    "one": lambda: 1,
    "true": lambda: True,
    "one point": lambda: 1.0,
    "none": lambda: None,
    "a tuple": lambda: (1, "a"),
    "another tuple": lambda: (True, "a"),
    "a pattern": lambda: re.compile("a"),
    "a long text": lambda: "a" * 5000,
    "a list": lambda: [1, 2],
    "another list": lambda: ["a"],
    "a list of what can change": lambda: [LOUD],
    "an object": lambda: Limits(3),
    "an object of another limit": lambda: Limits("many"),
    "an object that holds another": lambda: Limits(LOUD),
    "a class": lambda: Limits,
    "a getter": lambda: itemgetter("a"),
    "a partial": lambda: functools.partial(shorten, limit=3),
    "not pure": lambda: LOUD,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_verdicts_are_those_of_a_fresh_analysis_whatever_was_analysed_before(maker: Callable[[Any], Any]) -> None:
    expected = {name: fresh(maker(make())) for name, make in TARGETS.items()}
    assert len({(each.pure, each.reason) for each in expected.values()}) > 1
    for name, make in [*TARGETS.items(), *reversed(TARGETS.items()), *TARGETS.items()]:
        func = maker(make())
        found = analyse(func)
        assert (name, found) == (name, expected[name])
        assert found.still_holds()
        assert len(found.held) == len(expected[name].held)


def test_an_equal_function_is_not_interpreted_again(interpreted: list[Any]) -> None:
    for name, make in TARGETS.items():
        for maker in MAKERS:
            analyse(maker(make()))
            interpreted.clear()
            again = analyse(maker(make()))
            # A text of thousands of characters, a container or a getter is not kept.
            known = again.pure and name not in ("a long text", "a getter", "a partial", "a list", "another list")
            assert not (known and interpreted), (maker.__name__, name)


def test_checks_are_those_of_the_function_itself() -> None:
    def make(target: Any) -> tuple[Callable[[Any], Any], Callable[[Any], None]]:
        def change(value: Any) -> None:
            nonlocal target
            target = value

        return (lambda x: target(x["a"])), change

    (one, change_one), (other, change_other) = make(len), make(len)
    first, second = analyse(one), analyse(other)
    change_one(print)
    assert not first.still_holds()
    assert second.still_holds()
    change_other(LOUD)
    assert not second.still_holds()
    assert not analyse(other).pure
    limits = Limits(3)
    analyse(reads_attribute(Limits(3)))
    func = reads_attribute(limits)
    third = analyse(func)
    assert third.pure and third.still_holds()
    limits.most = LOUD
    assert not third.still_holds()
    assert not analyse(func).pure


def test_a_later_declaration_counts() -> None:
    def appends(text: Any) -> Any:
        LOUD.append(text)

    assert not analyse(calls(appends)).pure
    pure(appends)
    assert analyse(calls(appends)).pure


def test_what_cannot_be_read_may_be_another_thing() -> None:
    def make(**names: Any) -> Any:
        return FunctionType((lambda x: OUTSIDE(x["a"])).__code__, {**names, "__builtins__": __builtins__})  # type: ignore[name-defined]  # noqa: F821

    undefined, changing = make(), make(OUTSIDE={"a": LOUD})
    assert "not defined" in analyse(undefined).reason
    assert "can change" in analyse(changing).reason
    assert "not defined" in analyse(make()).reason
    assert analyse(make(OUTSIDE=len)).pure


def test_what_is_returned_may_be_another_object(interpreted: list[Any]) -> None:
    def make(long: Any, short: Any) -> Callable[[Any], Any]:
        return lambda x: long if x["a"] else short

    routes = (object(), object())
    assert analyse(make(*routes), returned=routes).pure
    assert not analyse(make(*routes)).pure
    interpreted.clear()
    others = (object(), object())
    assert analyse(make(*others), returned=others).pure
    assert not analyse(make(*others)).pure
    assert not interpreted
    assert not analyse(make(*others), returned=others[:1]).pure


def test_nothing_is_kept_alive() -> None:
    class Own:
        most = 3

    scope: dict[str, Any] = {}
    text = "def f(x):\n    return [helper(x['a'])[: own.most], isinstance(x['b'], Own), module.most]"
    exec(f"{text}\ndef helper(t):\n    return t + 'b'", scope)
    scope |= {"own": Own(), "Own": Own, "module": ModuleType("module")}
    scope["module"].most = 3
    func = scope["f"]
    assert analyse(func).pure
    gone = [weakref.ref(scope[name]) for name in ("f", "helper", "own", "Own", "module")]
    gone.append(weakref.ref(func.__code__))
    del func, Own
    scope.clear()
    read = ("fineflow.adapters.analysis.", "fineflow.adapters.python.")
    ours = [module for name, module in sys.modules.items() if name.startswith(read)]
    for each in (value for module in ours for value in vars(module).values()):
        if isinstance(each, functools._lru_cache_wrapper):  # what was decoded lately is kept, up to a bound
            each.cache_clear()
    gc.collect()
    assert len(verdict._replays) == 1
    assert [each() for each in gone] == [None] * 6


def test_memory_is_bounded() -> None:
    made = []
    for number in range(3 * Replays.MOST):
        scope: dict[str, Any] = {}
        exec(f"def f(x):\n    return x['a'] + {number}", scope)
        made.append(scope["f"])
        analyse(made[-1])
    assert len(verdict._replays) == Replays.MOST
    for number in range(3 * Replays.EACH):
        analyse(adds(number))
    assert max(len(kept) for _, kept in verdict._replays._kept.values()) == Replays.EACH


def test_threads_may_analyse_equal_functions() -> None:
    begin, wrong = threading.Barrier(4), list[Any]()

    def run() -> None:
        begin.wait()
        for _ in range(20):
            for name in ("len", "print", "key a", "an object", "a function made anew", "the same over another"):
                if analyse(calls(TARGETS[name]())) != expected[name]:
                    wrong.append(name)

    expected = {name: fresh(calls(make())) for name, make in TARGETS.items()}
    threads = [threading.Thread(target=run) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_a_chain_for_each_request_is_interpreted_once(interpreted: list[Any]) -> None:
    log: list[int] = []

    def answer(question: str) -> Any:
        def shout(x: Any) -> Any:
            return shorten(x["question"].upper(), 3)

        def noted(x: Any) -> Any:
            log.append(len(x))
            return x

        chain = (
            RunnablePassthrough.assign(tone=shout)
            | RunnableLambda(noted)
            | ChatPromptTemplate.from_template("{tone}: {question}")
            | FakeChat()
            | StrOutputParser()
        )
        return fineflow.optimize(chain).invoke({"question": question})

    first = answer("one")
    assert interpreted
    interpreted.clear()
    assert [answer("one"), answer("two")] == [first, first]
    assert not interpreted
    assert log == [2, 2, 2]


def test_structured_output_of_a_new_client_is_interpreted_once(interpreted: list[Any]) -> None:
    openai = pytest.importorskip("langchain_openai")

    class Grade(BaseModel):
        score: int

    def plan() -> str:
        model = openai.ChatOpenAI(model="gpt-4o-mini", api_key="none").with_structured_output(Grade)
        return str(fineflow.explain(ChatPromptTemplate.from_template("Grade {answer}") | model))

    first = plan()
    assert interpreted
    interpreted.clear()
    assert plan() == first
    assert not interpreted
