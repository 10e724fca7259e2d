"""Instructions are read alike on every Python, and their table holds for all code of the standard library."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import contextlib
import dataclasses
import dis
import inspect
import json.decoder
import pdb
import sys
import tarfile
import types
import typing
import unittest.mock
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest
from walk_host import Host, llm

from fineflow.adapters.analysis import analyse
from fineflow.adapters.python import bytecode, graph
from fineflow.adapters.python.bytecode import decode
from fineflow.adapters.python.opcodes import JUMPS, LEFT_BY_JUMP, OPCODES
from fineflow.adapters.python.raw_code import raw_instructions

MODULES = (argparse, asyncio.base_events, ast, contextlib, dataclasses, inspect, json.decoder, pdb, tarfile, typing)
RARE = ("CALL_INTRINSIC", "PREP_RERAISE_STAR")  # of type parameters and groups of exceptions


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


@pytest.fixture(scope="module")
def codes() -> list[CodeType]:
    found: list[CodeType] = []
    for module in (*MODULES, unittest.mock):
        found += _codes(compile(inspect.getsource(module), module.__name__, "exec"))
    return found


def stores(self: Any, value: Any) -> None:
    self.kept = value


def swaps(pair: Any) -> Any:
    first, second = pair
    return second, first


def names_of(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [(each.name, each.value) for each in decode(function.__code__)]


def test_a_store_follows_the_load_of_its_object() -> None:
    names = names_of(stores)
    at = names.index(("STORE_ATTR", "kept"))
    assert names[at - 2 : at] == [("LOAD_FAST", "value"), ("LOAD_FAST", "self")]


def test_pairs_are_two_instructions() -> None:
    local = [each for each in names_of(swaps) if "_FAST" in each[0]]
    assert local[1:] == [
        *(("STORE_FAST", "first"), ("STORE_FAST", "second"), ("LOAD_FAST", "second"), ("LOAD_FAST", "first")),
    ]


def everything(x: Any, y: Any, *rest: Any, **named: Any) -> Any:
    def inner(z: int = 1, *, w: int = 2) -> Any:
        return x, z, w

    text = f"{x!r:>{y}} {y:>3} {rest!s}"
    part, x[1:2] = x[y:3], x[2:]
    with open(x) as file:
        for each in file:
            if not each and y:
                break
    return (
        text,
        part,
        inner,
        inner(*rest),
        inner(*rest, **named),
        x.find(each, default=5),
        -y,
        all(each for each in rest),
        7,
    )


def test_every_version_has_the_same_instructions() -> None:
    """Those of Python 3.11, but for the order in which the compiler puts the parts of a function."""
    found = decode(everything.__code__)
    names = [each.name for each in found]
    assert not {each for each in names if each not in OPCODES}
    wanted = {
        "BUILD_SLICE": 3,
        "BINARY_SUBSCR": 2,
        "STORE_SUBSCR": 1,
        "SET_FUNCTION_ATTRIBUTE": 4,  # the closure, the annotations (a function on Python 3.14), and two of defaults
        "FORMAT_WITH_SPEC": 2,
        "CONVERT_VALUE": 2,
        "BEFORE_WITH": 1,
        "WITH_EXCEPT_START": 1,
        "LOAD_METHOD": 1,
        "CALL_FUNCTION_EX": 2,
        "FOR_ITER": 1,
    }
    assert {name: names.count(name) for name in wanted} == wanted
    assert [each.arg for each in found if each.name == "CALL_FUNCTION_EX"] == [0, 1]
    assert [each.value for each in found if each.name == "CALL" and each.value] == [("default",)]
    (failing,) = compile("def f(x): assert x", "f", "exec").co_consts[:1]
    assert AssertionError in [each.value for each in decode(failing) if each.name == "LOAD_CONST"]
    assert names[-1] in ("RETURN_VALUE", "RERAISE")


def test_offsets_arguments_and_targets_are_those_of_dis(codes: list[CodeType]) -> None:
    for code in codes:
        raw = raw_instructions(code)
        expected = [each for each in dis.get_instructions(code) if each.opname not in ("EXTENDED_ARG", "CACHE")]
        assert [(each.name, each.offset) for each in raw] == [(each.opname, each.offset) for each in expected]
        for one, other in zip(raw, expected, strict=True):
            assert other.opcode < dis.HAVE_ARGUMENT or one.arg == (other.arg or 0)
            if other.opcode in dis.hasjrel and other.opname != "END_ASYNC_FOR":
                assert bytecode._target(one) == other.argval


def test_values_are_those_of_dis(codes: list[CodeType]) -> None:
    kinds = ("LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "STORE_DEREF", "STORE_ATTR", "COMPARE_OP", "IMPORT_NAME")
    for code in codes:
        expected = {each.offset: each for each in dis.get_instructions(code) if each.opname in kinds}
        for each in decode(code):
            other = expected.get(each.offset)
            if other is not None and other.opname == each.name and not isinstance(other.argval, slice):
                value = other.argval.removeprefix("bool(").removesuffix(")") if each.name == "COMPARE_OP" else None
                assert each.value == (other.argval if value is None else value)
                assert each.line == ((other.positions.lineno if other.positions else None) or each.line)


def test_the_stack_is_as_deep_on_all_paths_as_the_table_says(codes: list[CodeType]) -> None:
    met: set[str] = set()
    for code in codes:
        if any(each.name.startswith(RARE) for each in decode(code)):
            continue
        met |= {each.name for each in decode(code)}
        _follow(graph.graph(code))
    assert met <= OPCODES.keys()
    assert met >= {"FOR_ITER", "SEND", "BEFORE_WITH", "LOAD_METHOD", "CALL", "CALL_FUNCTION_EX", "MAKE_FUNCTION"}


def _follow(made: graph.ControlFlow) -> None:
    depths: dict[int, int] = {}
    todo = [(0, 0)]
    while todo:
        number, depth = todo.pop()
        if number == made.end:
            continue
        if number in depths:
            assert depths[number] == depth, made.instructions[number]
            continue
        depths[number] = depth
        ins = made.instructions[number]
        for handler in made.handlers[number]:
            assert handler.depth <= depth
            todo.append((handler.target, handler.depth + handler.lasti + 1))
        opcode = OPCODES[ins.name]
        assert opcode.taken(ins.arg) <= depth, ins
        below, left = depth - opcode.taken(ins.arg), opcode.left(ins.arg)
        for each in made.following[number]:
            jumps = ins.name in JUMPS and each == made.targets[number]
            todo.append((each, below + (LEFT_BY_JUMP.get(ins.name, left) if jumps else left)))


def test_an_instruction_that_nobody_knows_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    code = types.CodeType.replace(swaps.__code__, co_name="other")
    name = next(each.name for each in raw_instructions(code) if each.name.startswith("UNPACK"))
    monkeypatch.setattr(dis, "opname", [each if each != name else "DOES_SOMETHING_NEW" for each in dis.opname])
    assert "DOES_SOMETHING_NEW" in [each.name for each in decode(code)]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="t-strings came with Python 3.14")
def test_template_strings_are_understood() -> None:
    scope: dict[str, Any] = {"llm": llm}
    exec("def f(x):\n    return list(t'{x['a']!r:>4} and {x['b']}')", scope)
    exec("def g(x):\n    t'{llm.invoke(x)}{x}'\n    llm.invoke(x)", scope)
    assert analyse(scope["f"]).pure
    host = Host().through(scope["g"], "q")
    assert host.walk.reason is None or not host.walk.reason
    assert host.calls == ["q", "q"]
