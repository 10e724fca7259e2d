"""What public functions do between two calls of components: a walk goes through it, and is sure of the second call."""

from __future__ import annotations

import contextlib
import datetime
import enum
import functools
import json
import logging
import statistics
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import ChatMessage, RemoveMessage, ToolMessage
from pydantic import BaseModel
from walk_host import Host, llm


class Grade(BaseModel):
    score: int = 0


@dataclass
class Note:
    text: str


class Kind(enum.Enum):
    A = "a"


class Label(str, enum.Enum):  # noqa: UP042 (as people write it)
    YES = "yes"


def logged(func: Any) -> Any:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


@logged
def clean(text: Any) -> Any:
    return text.strip()


def retried(func: Any, *args: Any) -> Any:
    last = None
    for _ in range(3):
        try:
            return func(*args)
        except Exception as error:
            last = error
    raise last  # type: ignore[misc]


def asked(text: str) -> Any:
    return llm.invoke(text)  # type: ignore[attr-defined]


BETWEEN = {
    "a table of what is known": "x = table.get(a, 0)",
    "votes": "votes = {}; votes[a] = votes.get(a, 0) + 1",
    "no default": "x = {}.get(a)",
    "a decorated helper in a branch": "a = clean(a) if a else a",
    "named arguments in a branch": "if a: a = '{x}'.format(**{'x': a})",
    "a list that is made in a branch": "if a:\n        parts = []; parts.append(a); a = ', '.join(parts)",
    "an object that is made in a branch": "if a:\n        note = Note(a); a = note.text",
    "a handler that makes a dict": """try:
        x = json.loads(a)
    except ValueError:
        x = {}; x['text'] = a""",
    "a raise that the function takes": """try:
        if not a: raise ValueError('empty')
    except Exception:
        a = ''""",
    "tool messages": "x = [ToolMessage(str(a), tool_call_id='1'), ToolMessage('b', tool_call_id='2')]",
    "other messages": "x = [ChatMessage(role='x', content=a), RemoveMessage(id='1')]",
    "fields that a model wrote": "x = Grade(**json.loads(a))",
    "a record of what a model wrote": "x = Note(**json.loads(a)).text",
    "arguments that a model wrote": "x = clean(**{}) if False else (lambda text, n=1: text)(**json.loads(a))",
    "validated data": "x = Grade.model_validate(json.loads(a)).score",
    "validated text": "x = Grade.model_validate_json(a).score",
    "values of enumerations": "x = [Kind.A.value, Kind.A.name, Label.YES.value, Label.YES.upper(), Kind['A'].value]",
    "members of enumerations": "x = ', '.join(k.value for k in Kind)",
    "a text that is a member": "x = a == Label.YES",
    "a logger": "logging.getLogger(__name__).info('x')",
    "figures": "x = statistics.mean([len(a), 2]); y = statistics.mean([1, 2])",
    "texts of anything": "x = json.dumps({'a': 1}, default=str)",
    "a sum of lengths": "x = functools.reduce(lambda s, t: s + len(t), ['a', 'b'], 0)",
    "a sum of what is not known": "x = functools.reduce(lambda s, t: s + t, a)",
    "an iterator": "x = next(iter(['a', 'b']))",
    "an iterator of what is not known": "x = next(iter(a), None)",
    "nothing to enter": "with contextlib.nullcontext(): pass",
    "a week ago": "x = (datetime.datetime.now() - datetime.timedelta(days=7)).strftime('%Y-%m-%d')",
    "a time that is read": """try:
        x = datetime.datetime.strptime(a, '%Y')
    except ValueError:
        x = None""",
}

NAMES: dict[str, Any] = {
    **{"llm": llm, "table": {"a": 1}, "__name__": __name__, "clean": clean, "retried": retried, "asked": asked},
    **{each.__name__: each for each in (Grade, Note, Kind, Label, ToolMessage, ChatMessage, RemoveMessage)},
    **{each.__name__: each for each in (contextlib, datetime, functools, json, logging, statistics)},
}


def made(body: str) -> Any:
    names = dict(NAMES)
    exec(f"def function(items):\n    a = llm.invoke('first')\n    {body}\n    llm.invoke('second')", names)
    return names["function"]


@pytest.mark.parametrize("idiom", BETWEEN)
def test_the_second_call_is_sure(idiom: str) -> None:
    found = Host().through(made(BETWEEN[idiom]), [])
    assert (found.calls, found.unsure) == (["first", "second"], []), found.walk.reason


def chunked(items: Any, size: int) -> Any:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def graded(items: Any) -> Any:
    for each in items:
        yield each, llm.invoke(f"grade {each}")  # type: ignore[attr-defined]


def closing(items: Any) -> Any:
    try:
        yield from items
    finally:
        items.clear()


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ("for x in chunked(['x', 'y', 'z'], 2): llm.invoke(x[0])", ["x", "z"]),
        ("x = [g for d, g in graded(['x', 'y'])]", ["grade x", "grade y"]),
        ("x = next(graded(['x', 'y']))", ["grade x"]),
        ("x = graded(['x'])", []),
        ("for d, g in graded(['x', 'y']):\n        if g: break", ["grade x"]),
        ("x = any(g for d, g in graded(['x', 'y']))", ["grade x"]),
        ("for x in graded(a): pass", []),
    ],
)
def test_generator_functions_do_what_is_asked_for(body: str, calls: list[str]) -> None:
    names = {"chunked": chunked, "graded": graded}
    function = made(body)
    function.__globals__.update(names)
    found = Host().through(function, [])
    assert found.calls == ["first", *calls, "second"], found.walk.reason


def test_what_a_generator_does_at_its_end_is_open() -> None:
    function = made("for x in closing(['x']): pass")
    function.__globals__["closing"] = closing
    assert Host().through(function, []).calls == ["first"]


def test_a_retry_of_the_users_own() -> None:
    found = Host().through(made("retried(asked, 'again')"), [])
    assert found.calls == ["first", "again", "second"], found.walk.reason


def test_a_raise_that_nobody_takes_ends_the_walk() -> None:
    taken = "try:\n        if a: raise {}\n    except {}: pass"
    for body in (
        "if not a: raise ValueError",
        taken.format("ValueError", "KeyError"),
        taken.format("SystemExit", "Exception"),
    ):
        assert Host().through(made(body), []).calls == ["first"]


@pytest.mark.parametrize("change", ["x.append(a)", "x[0] = a", "x += [a]", "x.clear()"])
def test_what_a_branch_changes_of_what_was_there_is_unknown(change: str) -> None:
    found = Host().through(made(f"x = ['old']\n    if a: {change}\n    llm.invoke(x[0])"), [])
    assert "old" not in found.calls


def test_an_iterator_is_somewhere_behind_a_branch() -> None:
    found = Host().through(made("it = iter(['x', 'y'])\n    if a: next(it)\n    llm.invoke(next(it))"), [])
    assert set(found.calls) <= {"first", "second"}


@pytest.mark.parametrize("change", ["x.append('b')", "x[0] = 'b'", "x += ['b']"])
def test_what_a_branch_has_made_is_unknown_behind_it(change: str) -> None:
    body = f"x = ['a']\n    if a:\n        x = ['c']; {change}\n    llm.invoke(x[-1])"
    assert set(Host().through(made(body), []).calls) == {"first", "second"}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("datetime.date.today().isoformat()", "%Y-%m-%d"),
        ("str(datetime.date.today())", "%Y-%m-%d"),
        ("f'{datetime.date.today()}'", "%Y-%m-%d"),
        ("datetime.datetime.now().strftime('%A, %d %B %Y')", "%A, %d %B %Y"),
        ("f'{datetime.datetime.now():%Y-%m}'", "%Y-%m"),
        ("f'{datetime.datetime.now().date()}'", "%Y-%m-%d"),
        ("str(datetime.datetime.now().year)", "%Y"),
        ("datetime.datetime.now().strftime('%Y-%m-%d %H:%M')", ""),
        ("datetime.datetime.now().isoformat()", ""),
        ("str(datetime.datetime.now())", ""),
        ("f'{datetime.datetime.now()}'", ""),
        ("datetime.datetime.utcnow().strftime('%Y')", ""),
        ("datetime.datetime.now(datetime.timezone.utc).strftime('%Y')", ""),
    ],
)
def test_the_day_is_known_and_the_time_is_not(text: str, known: str) -> None:
    found = Host().through(made(f"llm.invoke({text})"), [])
    day = datetime.datetime.now().strftime(known)
    assert found.calls == (["first", day, "second"] if known else ["first", "second"])


def test_a_patched_clock_is_not_known() -> None:
    function = made("llm.invoke(str(datetime.date.today()))")
    function.__globals__["datetime"] = SimpleNamespace(date=type("date", (datetime.date,), {}))
    assert str(datetime.date.today()) not in Host().through(function, []).calls
