"""Attributes, functions and calls."""

from __future__ import annotations

import asyncio
from types import CodeType
from typing import TYPE_CHECKING

from fineflow.adapters.lookahead import calls, iteration, objects
from fineflow.adapters.lookahead.instructions.table import rule
from fineflow.adapters.lookahead.values import HELD, NULL, Awaited, Local, Stop
from fineflow.adapters.python.bytecode import Instruction
from fineflow.adapters.python.rules import called

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame


@rule("LOAD_ATTR LOAD_METHOD")
def _attribute(f: Frame, ins: Instruction) -> None:
    method = ins.name == "LOAD_METHOD"
    value = objects.attribute(f.walk, f.pop(), ins.value, method=method)
    if method:
        f.stack.append(NULL)
    f.push(value)


@rule("LOAD_SUPER_ATTR")
def _inherited(f: Frame, ins: Instruction) -> None:
    func, cls, obj = f.pops(3)
    if func is not super:
        raise Stop("calls a function of its own named super")
    value = objects.inherited_attribute(f.walk, cls, obj, ins.value)
    if ins.arg & 1:
        f.stack.append(NULL)
    f.push(value)


@rule("STORE_ATTR")
def _set_attribute(f: Frame, ins: Instruction) -> None:
    value, obj = f.pops(2)
    objects.set_attribute(f.walk, obj, ins.value, value)


@rule("DELETE_ATTR DELETE_GLOBAL")
def _refused(f: Frame, ins: Instruction) -> None:
    raise Stop("deletes part of an object that it was given")


@rule("MAKE_FUNCTION")
def _make_function(f: Frame, ins: Instruction) -> None:
    code = f.pop()
    if not isinstance(code, CodeType):
        raise Stop("makes an unusual function")
    f.stack.append(Local(code, f.owner, (), {}, ()))


@rule("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(f: Frame, ins: Instruction) -> None:
    func, value = f.pop(), f.pop()
    field = {1: "defaults", 2: "named_defaults", 8: "cells"}.get(ins.arg)
    f.push(func._replace(**{field: value}) if field else func)


@rule("CALL")
def _call(f: Frame, ins: Instruction) -> None:
    args = f.pops(ins.arg)
    f.push(calls.call(f.walk, *called(f.pops(2), args, ins.value, lambda each: each is NULL)))


@rule("CALL_FUNCTION_EX")
def _call_unpacked(f: Frame, ins: Instruction) -> None:
    named = f.pop() if ins.arg & 1 else {}
    args = iteration.elements(f.walk, f.pop())
    first, second = f.pops(2)
    func = second if first is NULL else first
    if args is None and func is asyncio.gather:
        f.push(Awaited(HELD))
        return
    if args is not None and not f.walk.whole(named):  # what a model wrote, say
        f.push(calls.call_by_unknown_names(f.walk, func, list(args), named))
        return
    if args is None or type(named) is not dict:
        raise Stop("calls a function with arguments that are not known one by one")
    f.push(calls.call(f.walk, func, list(args), dict(named)))
