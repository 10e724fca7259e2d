"""Special methods of the user's classes run where Python runs them; an unknown element may equal a known one."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from asking_functions import ASKED, LOG, ask, llm, observed
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel

import fineflow
from fineflow.testing import virtual_threads

pytestmark = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
CHAIN = ChatPromptTemplate.from_template("say {x}") | llm | StrOutputParser()


def made(source: str) -> Callable[[str], Any]:
    names = dict(globals())
    exec(f"def func(q):\n{source}", names)
    return names["func"]  # type: ignore[no-any-return]


# --- an unknown element or key may equal one that is there -----------------------------------------------------------

CHANGES = """\
s.update([u])
s.update({u})
s.add(u)
s |= {u}
s.difference_update([u])
s.intersection_update([u])
s.symmetric_difference_update([u])
s.discard(u)
s = {'re q': 1}; s.update([(u, 2)])
s = {'re q': 1}; s.update(zip([u], [2]))
s = {'re q': 1}; s.update({u: 2})
s = {'re q': 1}; s |= [(u, 2)]
s = {'re q': 1}; s[u] = 2
s = {'re q': 1}; s.setdefault(u, 2)
s = set(); s.update([u]); s.update(['re q'])
s = {u}; s.add('re q')
s = {u: 1}; s.update({'re q': 2})
s = {*s, u}
s = {'re q', *[u]}
s = dict.fromkeys([u, 're q'])
s = {each: 1 for each in [u, 're q']}
""".splitlines()


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_unknown_may_equal_what_is_there(change: str) -> None:
    func = made(f"    s = {{'re q'}}\n    u = ask(q)\n    {change}\n    return ask(str(len(s))), ask('b')")
    stock, mine = (observed(func, "q", optimized=optimized)[:2] for optimized in (False, True))
    assert mine == stock


def test_a_set_of_the_programs_own_keeps_what_earlier_runs_have_put_in() -> None:
    def run(*, optimized: bool) -> Any:
        kept = set[str]()

        def func(q: str) -> Any:
            answer = ask(q)
            kept.update([answer])
            return ask(str(len(kept)))

        app: Any = (
            fineflow.optimize(RunnableLambda(func), strict=True, eager=True) if optimized else RunnableLambda(func)
        )
        ASKED.clear()
        return [virtual_threads.run(lambda: app.invoke("q")).value for _ in range(2)], sorted(ASKED)

    assert run(optimized=True) == run(optimized=False)


# --- special methods that do something ----------------------------------------------------------------------------


RETURNED = {"__str__": "text", "__repr__": "shown"}


def noted(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        LOG.append(name)
        return {"__iter__": iter("ab"), "__len__": 2, "__length_hint__": 2, "__str__": "text", "__repr__": "shown"}.get(
            name, True
        )

    return method


class Sized:
    __iter__, __len__ = noted("__iter__"), noted("__len__")


class Hinted:
    __iter__, __length_hint__ = noted("__iter__"), noted("__length_hint__")


class Texts:
    __str__ = noted("__str__")


class Shown:
    __repr__ = noted("__repr__")


class Contains:
    __contains__ = staticmethod(lambda key: LOG.append("in") or True)  # type: ignore[func-returns-value]


class Cached:
    __eq__ = functools.lru_cache(None)(lambda self, other: LOG.append("eq") or True)  # type: ignore
    __hash__ = object.__hash__


class Hook(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, kind: type) -> Any:
        LOG.append("hook")
        return NotImplemented


class Model(BaseModel):
    v: str = ""
    __bool__, __len__, __str__, __getitem__ = (
        noted(each) for each in ("__bool__", "__len__", "__str__", "__getitem__")
    )


class Row(NamedTuple):
    v: str


class NotedRow(Row):
    __bool__, __len__ = noted("__bool__"), noted("__len__")


DOES = """\
list(Sized())
[*Sized()]
tuple(Hinted())
sorted(Sized())
a, b = Sized()
[each for each in Sized()]
len(Sized())
1 if Sized() else 2
f"{Texts()}"
str(Texts())
"%s" % Texts()
x in Contains()
x == Cached()
Cached() in [x]
isinstance(x, Hook)
1 if Model(v=x) else 2
len(Model(v=x))
f"{Model(v=x)}"
Model(v=x)["k"]
Model.model_validate({"v": x})["k"]
len(NotedRow(x))
1 if NotedRow(x) else 2
CHAIN.invoke({"x": Texts()})
CHAIN.invoke({"x": [Shown()]})
""".splitlines()


@pytest.mark.parametrize("does", DOES)
def test_what_a_special_method_does_counts(does: str) -> None:
    func = made(f"    x = ask('a')\n    {does}\n    return ask(str(LOG)), ask('b')")
    found = []
    for optimized in (False, True):
        Hook.register(type("Other", (), {}))  # Python asks again
        found.append(observed(func, "q", optimized=optimized)[:2])
    stock, mine = found
    assert mine == stock


# --- special methods that return something else than Python takes ---------------------------------------------------


class Falsy:
    __bool__ = staticmethod(lambda: False)

    def __len__(self) -> int:
        return 3


class Number(int):
    def __len__(self) -> int:
        return 3


class Returns:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> Any:
        return self.value

    def __str__(self) -> Any:
        return self.value


class Truth(Returns):
    def __bool__(self) -> Any:
        return self.value


TAKEN = """\
1 if Falsy() else 2
1 if Number(0) else 2
len(Returns(-1))
len(Returns("a"))
len(Returns(None))
len(Returns(True))
1 if Returns(-1) else 2
1 if Truth(1) else 2
f"{Returns(3)}"
str(Returns(3))
f"{Texts():>9}"
""".splitlines()


@pytest.mark.parametrize("taken", TAKEN)
def test_what_python_does_not_take(taken: str) -> None:
    func = made(
        f"    a = ask('a')\n    try:\n        x = {taken}\n    except (TypeError, ValueError):\n        x = 'none'\n"
        "    return ask(str(x)), a"
    )
    stock, mine = (observed(func, "q", optimized=optimized)[:2] for optimized in (False, True))
    assert mine == stock
