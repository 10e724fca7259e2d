"""What a scan finds of agents: objects of the user's classes that call components, made, held or handed on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from walk_host import Component, llm

from fineflow.adapters.lookahead import scan as scanning
from fineflow.adapters.lookahead.scan import Found


def scan(func: Any) -> Found:
    return scanning.scan(func, lambda obj: isinstance(obj, Component), frozenset({"invoke", "ainvoke"}))


def get_llm() -> Any:
    return llm


class Agent:
    def __init__(self, name: str = "") -> None:
        self.name, self.llm = name, llm

    def run(self, q: str) -> Any:
        return self.llm.invoke(self.name + q)

    def twice(self, q: str) -> Any:
        return self.run(q), self.run(q + "2")

    def __call__(self, q: str) -> Any:
        return self.llm.invoke(self.name + q)

    @classmethod
    def both(cls, q: str) -> Any:
        return cls.ask(q), cls.ask(q + "2")

    @staticmethod
    def ask(q: str) -> Any:
        return llm.invoke(q)


class Inherits(Agent):
    def __init__(self) -> None:
        super().__init__("more")

    def run(self, q: str) -> Any:
        return super().run(q.upper())


@dataclass
class Fields:
    model: Any = field(default_factory=get_llm)

    def run(self, q: str) -> Any:
        return self.model.invoke(q)


@dataclass
class Completed:
    def __post_init__(self) -> None:
        self.model = llm

    @property
    def asking(self) -> Any:
        return self.model

    def run(self, q: str) -> Any:
        return self.asking.invoke(q)


class Single:
    def __new__(cls) -> Single:
        made = super().__new__(cls)
        made.model = llm
        return made

    def run(self, q: str) -> Any:
        return self.model.invoke(q)

    model: Any


class Shared:
    model = llm

    def run(self, q: str) -> Any:
        return self.model.invoke(q)


class Slots:
    __slots__ = ("model",)

    def __init__(self, model: Any) -> None:
        self.model = model

    def run(self, q: str) -> Any:
        return self.model.invoke(q)


class Crew:
    def __init__(self) -> None:
        self.agents, self.by_name = [Agent("a"), Agent("b")], {"a": Agent("a"), "b": Agent("b")}
        self.tables = [("a", lambda: llm), ("b", functools.partial(get_llm))]
        self.kinds = {"a": Agent, "b": Inherits}
        self.shared, self.slots = Shared(), Slots(llm)

    def comprehension(self, q: str) -> Any:
        return [each.run(q) for each in self.agents]

    def generator(self, q: str) -> Any:
        return list(each.run(q) for each in self.agents)  # noqa: C400

    def joined(self, q: str) -> Any:
        return " ".join(map(lambda each: each.run(q), self.agents))  # noqa: C417

    def items(self, q: str) -> Any:
        return {name: each.run(q) for name, each in self.by_name.items()}

    def values(self, q: str) -> Any:
        return [each.run(q) for each in self.by_name.values()]

    def called(self, q: str) -> Any:
        return [each(q) for each in self.agents]

    def table(self, q: str) -> Any:
        return [make().invoke(name + q) for name, make in self.tables]

    def classes(self, q: str) -> Any:
        return [kind().run(q) for kind in self.kinds.values()]

    def handed(self, q: str) -> Any:
        return several(self.agents, q)

    def attributes(self, q: str) -> Any:
        return self.shared.run(q), self.slots.run(q)


def several(agents: Any, q: str) -> Any:
    return [each.run(q) for each in agents]


def instance(q: str) -> Any:
    agent = Agent()
    return agent(q), agent(q + "2")


MADE: dict[str, Callable[[str], Any]] = {
    "two": lambda q: (Agent().run(q), Inherits().run(q)),
    "one, twice": lambda q: (Agent("a").run(q), Agent("b").run(q)),
    "its own method": lambda q: Agent().twice(q),
    "inherited": lambda q: Inherits().twice(q),
    "of the class": lambda q: Inherits.both(q),
    "called": instance,
    "field": lambda q: (Fields().run(q), Fields().run(q + "2")),
    "completed": lambda q: (Completed().run(q), Completed().run(q + "2")),
    "new": lambda q: (Single().run(q), Single().run(q + "2")),
    "class attribute": lambda q: (Shared().run(q), Shared().run(q + "2")),
}


@pytest.mark.parametrize("func", MADE.values(), ids=MADE)
def test_agents_that_the_function_makes(func: Any) -> None:
    assert scan(func).several


@pytest.mark.parametrize("name", [name for name in vars(Crew) if not name.startswith("_")])
def test_agents_that_an_object_holds(name: str) -> None:
    assert scan(getattr(Crew(), name)).several


def test_what_is_not_named_and_other_classes_are_not_followed() -> None:
    def only_made(q: str) -> Any:
        return Agent(q), Shared.__name__

    def of_package(q: str) -> Any:
        return pytest.Item.from_parent(q), functools.partial(q)

    assert (scan(only_made).calls, scan(of_package).calls) == (2, 0)  # made agents may be called
    assert scan(lambda q: Completed()).calls == 0


def test_code_of_classes_does_not_run() -> None:
    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            raise AssertionError(name)

    class Hostile(metaclass=Meta):
        def __init__(self) -> None:
            self.llm = llm

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property
        def model(self) -> Any:
            raise AssertionError

        def run(self, q: str) -> Any:
            return self.model, self.absent, self.llm.invoke(q), llm.invoke(q)

    held = [Hostile()]
    assert scan(lambda q: [each.run(q) + each.other for each in held]).several
    assert scan(lambda q: (Hostile().run(q), Hostile.other)).several


def test_large_structures_are_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Node:
        def __init__(self, depth: int) -> None:
            self.llm, self.nodes = llm, [Node(depth - 1) for _ in range(4)] if depth else []

        def run(self, q: str) -> Any:
            return [self.llm.invoke(q), *(each.run(q) for each in self.nodes)]

    tree: Any = [Node(5)]
    tree.append(tree)
    assert 100 < scan(lambda q: [each.run(q) for each in tree]).calls < 1000
    monkeypatch.setattr(scanning, "_FUNCTIONS", 10)
    assert scan(lambda q: [each.run(q) for each in tree]).calls < 20
