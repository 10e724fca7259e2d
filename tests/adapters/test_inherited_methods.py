"""Methods that call ``super()`` are understood by both models of Python, on every version."""

from __future__ import annotations

from typing import Any

import pytest
from walk_host import Component, Host, llm

from fineflow.adapters.analysis import analyse
from fineflow.adapters.lookahead.scan import scan
from fineflow.adapters.python.bytecode import decode
from fineflow.adapters.python.functions import ABSENT, inherited

ITEMS = ["a", "b"]


class Base:
    mark = "!"

    def __init__(self) -> None:
        self.ending = "."

    def ask(self, items: Any, ending: str = "") -> Any:
        return [llm.invoke(item + ending) for item in items]

    async def aask(self, items: Any) -> Any:
        return [await llm.ainvoke(item) for item in items]

    def clean(self, x: Any) -> Any:
        return x["a"].strip()

    @property
    def tail(self) -> str:
        return self.ending

    @classmethod
    def of_class(cls, items: Any) -> Any:
        return [llm.invoke(item + cls.mark) for item in items]

    @staticmethod
    def static(items: Any) -> Any:
        return [llm.invoke(item) for item in items]


class App(Base):
    mark = "?"

    def __init__(self) -> None:
        super().__init__()
        self.second = "2"

    def ask(self, items: Any, ending: str = "") -> Any:
        found = super().ask([item.upper() for item in items], ending=ending or self.second)
        return [*found, llm.invoke("end")]

    def ask_all(self, *items: Any) -> Any:
        return super().ask(*items)

    def named(self, items: Any) -> Any:
        return super(App, self).ask(items)  # noqa: UP008

    def closed(self, items: Any) -> Any:
        def again() -> Any:
            return self.ask(items)

        super().ask(items)
        return again

    async def aask(self, items: Any) -> Any:
        return await super().aask(items)

    def clean(self, x: Any) -> Any:
        return super().clean(x).lower()

    def values(self, items: Any) -> Any:
        tail, mark = super().tail, super().mark
        return [llm.invoke(f"{item}{mark}{tail}") for item in items]

    @classmethod
    def of_class(cls, items: Any) -> Any:
        return super().of_class(items)

    def static_one(self, items: Any) -> Any:
        return super().static(items)

    def absent(self, items: Any) -> Any:
        return super().missing(items)

    def of_object(self, items: Any) -> Any:
        return super().__reduce__()


class Side(Base):
    def ask(self, items: Any, ending: str = "") -> Any:
        return super().ask([f"side {item}" for item in items])


class Both(App, Side):
    pass


def makes_one(items: Any) -> Any:
    app = App()
    return [llm.invoke(f"{app.ending}{app.second}{item}") for item in items]


@pytest.mark.parametrize(
    ("func", "calls"),
    [
        (App().ask, ["A2", "B2", "end"]),
        (App().ask_all, [*ITEMS]),
        (App().named, [*ITEMS]),
        (App().closed, [*ITEMS]),
        (App().aask, [*ITEMS]),
        (App().values, ["a!.", "b!."]),
        (App().static_one, [*ITEMS]),
        (lambda items: App.of_class(items), ["a?", "b?"]),
        (Both().ask, ["side A", "side B", "end"]),  # the class behind App in the order of Both, not the base of App
        (makes_one, [".2a", ".2b"]),
    ],
)
def test_a_walk_goes_into_methods_of_base_classes(func: Any, calls: list[str]) -> None:
    host = Host().through(func, [*ITEMS])
    assert (host.walk.reason, host.calls, host.unsure) == ("", calls, [])


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (App().absent, "reads missing of super(), which may run code"),
        (App().of_object, "reads __reduce__ of super(), which may run code"),
    ],
)
def test_what_super_has_no_function_for_ends_a_walk(func: Any, reason: str) -> None:
    host = Host().through(func, [*ITEMS])
    assert (host.calls, host.walk.reason) == ([], reason)


def test_another_function_named_super_is_not_taken_for_it() -> None:
    scope: dict[str, Any] = {"llm": llm, "super": lambda: llm, "Base": Base}
    exec("class Own(Base):\n    def ask(self, items):\n        return super().invoke(items)", scope)
    host = Host().through(scope["Own"]().ask, "q")
    assert (host.calls, host.walk.reason) == ([], "calls a function of its own named super")


def test_a_component_calls_its_base_class_unseen() -> None:
    class Inherits(Component):
        def invoke(self, items: Any) -> Any:
            return super().invoke(items)  # type: ignore[misc]

        def both(self, items: Any) -> Any:
            return super().invoke(items)  # type: ignore[misc]

    host = Host().through(Inherits("own").both, "q")
    assert (host.calls, host.walk.reason) == ([], "calls invoke of a base class of a component")


def test_a_method_that_calls_a_pure_method_of_its_base_class_is_pure() -> None:
    app = App()
    verdict = analyse(app.clean)
    assert (verdict.pure, verdict.still_holds()) == (True, True)


def test_the_verdict_ends_with_the_method_of_the_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    verdict = analyse(app.clean)
    monkeypatch.setattr(Base, "clean", lambda self, x: print(x))
    assert verdict.pure and not verdict.still_holds()
    assert not analyse(app.clean).pure


def test_a_base_class_that_changes_something_makes_a_method_impure() -> None:
    assert analyse(App().ask_all).pure is False
    assert analyse(App().absent).reason == "calls missing of super(), which may do anything"


def test_scans_find_components_of_base_classes() -> None:
    found = scan(App().named, lambda obj: isinstance(obj, Component), frozenset({"invoke"}))
    assert (list(found.components), found.several) == (["llm"], True)


def test_super_has_one_instruction_on_every_version() -> None:
    def names(func: Any) -> list[tuple[str, Any]]:
        return [(each.name, each.value) for each in decode(func.__code__)]

    at = names(App.clean).index(("LOAD_SUPER_ATTR", "clean"))
    assert names(App.clean)[at - 3 : at] == [
        ("LOAD_GLOBAL", "super"),
        ("LOAD_DEREF", "__class__"),
        ("LOAD_FAST", "self"),
    ]
    at = names(App.named).index(("LOAD_SUPER_ATTR", "ask"))
    assert names(App.named)[at - 3 : at] == [("LOAD_GLOBAL", "super"), ("LOAD_GLOBAL", "App"), ("LOAD_FAST", "self")]
    assert ("LOAD_DEREF", "self") in names(App.closed)
    flags = {each.value: each.arg & 1 for each in decode(App.values.__code__) if each.name == "LOAD_SUPER_ATTR"}
    assert flags == {"tail": 0, "mark": 0}  # not about to be called


@pytest.mark.parametrize("name", ["ask", "mark", "ending", "missing"])
def test_lookup_is_that_of_super(name: str) -> None:
    both = Both()
    expected = getattr(super(App, both), name, ABSENT)
    assert inherited(App, both, name) is getattr(expected, "__func__", expected)
    assert inherited(dict, both, name) is ABSENT
