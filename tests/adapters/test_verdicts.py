"""Verdicts on functions: what they depend on, when they are made again, how long they live."""

# ruff: noqa: E731  (the functions under test are not to be improved)

from __future__ import annotations

import functools
import gc
import json
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from analysed_functions import CACHE, LOUD, LOUD_TEXT, format_docs, remember, shorten, twice
from benchmarks.micro.measure import calls_of_fineflow

from fineflow.adapters.analysis import analyse, is_plain
from fineflow.declare import effects, pure


def keyword_calls(x: Any) -> Any:
    return shorten(x["a"], **x["options"])


def test_keyword_calls_of_a_known_function_take_anything_as_data() -> None:
    verdict = analyse(keyword_calls)
    assert verdict.pure, verdict
    assert verdict.keys == {"a", "options"}


def test_reason_and_location_point_at_the_line() -> None:
    verdict = analyse(remember)
    line = remember.__code__.co_firstlineno + 1
    assert verdict.location == f"analysed_functions.py:{line}"
    assert analyse(format_docs).reason == "reads its argument, joins strings"
    assert analyse(lambda x: x["b"] + x["a"]).reason == "reads a, b"
    assert analyse(lambda x: twice(x)).location == f"analysed_functions.py:{line}"


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
    scope["P"] = LOUD
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
    monkeypatch.setattr(json, "dumps", lambda v: CACHE.pop(v))
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
    change(LOUD)
    assert not analyse(f).pure

    def g(x: Any, k: Any = 1, *, n: Any = 2) -> Any:
        return x["a"] + k + n

    verdict = analyse(g)
    assert verdict.pure
    g.__kwdefaults__["n"] = 3
    assert not verdict.still_holds()
    verdict = analyse(g)
    g.__defaults__ = (LOUD,)
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
    first = calls_of_fineflow(lambda: _fresh(func))
    assert first < 100
    assert calls_of_fineflow(lambda: analyse(func)) < 0.5 * first
