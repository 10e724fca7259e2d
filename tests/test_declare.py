"""What users declare about their functions."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest
from langchain_core.tools import tool

from fineflow import declare
from fineflow.declare import Declaration, declaration, declared, effects, external, pure, resource_name
from fineflow.ir import Effect


class Store:
    @pure
    def method(self, x: Any) -> Any:
        return x


def test_pure_returns_the_function_and_is_found_through_wrappers() -> None:
    def f(x: Any, y: Any = 1) -> Any:
        return x

    assert declared(f) is None
    assert pure(f) is f
    for func in (f, functools.partial(f, y=2), functools.partial(functools.partial(f), y=2), Store().method):
        found = declared(func)
        assert found is not None
        assert found.kind is Effect.PURE


def test_runnable_lambda() -> None:
    runnables = pytest.importorskip("langchain_core.runnables")

    @pure
    def f(x: Any) -> Any:
        return x

    assert declared(runnables.RunnableLambda(f)).kind is Effect.PURE  # type: ignore[union-attr]
    assert declared(runnables.RunnableLambda(lambda x: x)) is None


def test_a_declaration_is_not_copied_onto_wrappers() -> None:
    @pure
    def f(x: Any) -> Any:
        return x

    @functools.wraps(f)
    def wrapper(x: Any) -> Any:
        print(x)
        return f(x)

    assert declared(wrapper) is None


def test_resources_by_identity_and_by_name() -> None:
    store, other = Store(), Store()

    @effects(reads=store)
    def reads(x: Any) -> Any:
        return x

    @effects(writes="index")
    def writes(x: Any) -> Any:
        return x

    @effects(reads=store, writes=[store])
    def both(x: Any) -> Any:
        return x

    @effects(reads=store, writes=other)
    def several(x: Any) -> Any:
        return x

    found = [declared(f) for f in (reads, writes, both, several)]
    assert [f.kind for f in found if f] == [Effect.READ, Effect.WRITE, Effect.WRITE, Effect.WRITE]
    assert [f.resource for f in found if f] == [resource_name(s) for s in (store, "index", store, other)]
    assert [f.touched[1:] for f in found if f] == [(), (), (), ((resource_name(store), False),)]
    assert resource_name(store) != resource_name(other)


def test_several_resources_are_told_apart() -> None:
    @effects(reads=("a", "b"), writes=["b", "c"])
    def f(x: Any) -> Any:
        return x

    found = declared(f)
    assert found is not None
    assert found.touched == (("b", True), ("c", True), ("a", False))
    assert str(found) == "write(b) write(c) read(a)"
    assert found.reason == "is declared to read a and write b, c"


def test_bad_declarations_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="name a resource, or use @pure"):
        effects()
    with pytest.raises(ValueError, match="given None among its resources"):
        effects(reads=["index", None])
    with pytest.raises(TypeError, match="expected a function"):
        pure(3)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="wrap it in a function"):
        pure(_Callable())
    with pytest.raises(TypeError, match="put it below @tool"):
        pure(tool(_documented))  # type: ignore[type-var]


def _documented(city: str) -> str:
    """Looks up a city."""
    return city


def test_messages_say_what_came_and_stay_short() -> None:
    runnables = pytest.importorskip("langchain_core.runnables")
    chain = runnables.RunnableLambda(str.upper) | runnables.RunnableLambda(str.lower)
    with pytest.raises(TypeError) as caught:
        pure(chain)
    assert str(caught.value) == (
        "expected a function to declare effects of, not a RunnableSequence: declare the functions that it is made of"
    )
    with pytest.raises(TypeError, match=r"takes reads and writes by name, @effects\(reads=...\).*, not len; .*@pure"):
        effects(len)
    with pytest.raises(TypeError, match=r"by name.*, not 'index'"):
        effects("index")
    with pytest.raises(TypeError, match="not about a RunnableSequence"):
        external(chain)


class _Callable:
    __slots__ = ()

    def __call__(self) -> None: ...


def test_a_declaration_ends_with_its_function() -> None:
    def make() -> int:
        @pure
        def f(x: Any) -> Any:
            return x

        return id(f)

    import fineflow.declare

    key = make()
    gc.collect()
    entry = fineflow.declare._declared.get(key)
    assert entry is None or entry[0]() is not None


class Shelf:
    def __init__(self, name: str) -> None:
        self.name = name

    def books(self) -> str:
        return self.name


def test_a_bound_method_is_declared_for_its_object() -> None:
    declared, other = Shelf("a"), Shelf("b")
    assert effects(reads=declared)(declared.books)() == "a"
    assert declaration(declared.books) == Declaration(reads=(declared,))
    assert declaration(other.books) is declaration(Shelf.books) is None
    assert declaration(functools.partial(declared.books)) == Declaration(reads=(declared,))


def test_the_declaration_of_a_bound_method_goes_with_its_object() -> None:
    before = len(declare._declared)
    shelf = Shelf("a")
    effects(reads="books")(shelf.books)
    assert len(declare._declared) == before + 1
    del shelf
    assert len(declare._declared) == before
