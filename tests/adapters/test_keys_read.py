"""Which keys of its argument a function reads: all uses have to be constant subscripts, or it may read anything."""

from __future__ import annotations

from typing import Any

import pytest

from fineflow.adapters.analysis.keys import keys_read

DB: Any = None
OTHER: Any = None


def loads(x: Any) -> Any:
    found = DB.load(x["session"], limit=x.get("limit", 3))
    DB.touch(x.get("user"))
    return [*found, x["session"]]


class Memory:
    def load(self, x: Any) -> Any:
        self.last = x["session"]
        return DB.load(self)


def rebinds(x: Any) -> Any:
    x = DB.load(x["a"])
    return x["b"]


def inner(x: Any) -> Any:
    return [DB.load(x["a"]) for _ in OTHER()] + (lambda: x["b"])()


def stores(x: Any) -> Any:
    x["a"] = 1
    return x["a"]


def frame(x: Any) -> Any:
    return x["a"], locals()


@pytest.mark.parametrize(
    ("func", "keys"),
    [
        (loads, {"session", "limit", "user"}),
        (Memory().load, {"session"}),
        (lambda x: DB.load(), set()),
        (lambda x, limit=3: DB.load(x["a"], limit), {"a"}),
        (lambda x: DB.load(x["a"]["b"]), {"a"}),
        (lambda x: DB.load(OTHER if x["a"] else x["b"]), {"a", "b"}),
    ],
)
def test_constant_subscripts(func: Any, keys: set[str]) -> None:
    assert keys_read(func) == keys


@pytest.mark.parametrize(
    "func",
    [
        lambda x: DB.load(x),
        lambda x: DB.load(**x),
        lambda x: DB.load(x["a"], len(x)),
        lambda x: x["a" + OTHER],
        lambda x: x[0],
        lambda x: x.get("a" + OTHER),
        lambda x: x.get("a", x),
        lambda x: x.pop("a"),
        lambda x: "a" in x,
        lambda x: (x or OTHER)["a"],
        lambda *x: x[0]["a"],
        rebinds,
        inner,
        stores,
        frame,
        len,
        Memory(),
    ],
)
def test_anything_else_may_read_all_of_it(func: Any) -> None:
    assert keys_read(func) is None


def test_another_parameter() -> None:
    def load(x: Any, *, config: Any = None) -> Any:
        return DB.load(x, config["configurable"]["user"])

    assert keys_read(load, "config") == {"configurable"}
    assert keys_read(load, "other") is None
    assert keys_read(lambda x, config: DB.load(config), "config") is None
