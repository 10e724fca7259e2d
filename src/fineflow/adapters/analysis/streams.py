"""Rules of generator functions that get an iterator: each item must be passed on as it is, once, and up to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fineflow.adapters.analysis.rules import rule
from fineflow.adapters.analysis.values import ARG, GIVEN, NONE, OVER, SHARED, TAKEN, Impure, Kind, Value
from fineflow.adapters.python.bytecode import Instruction

if TYPE_CHECKING:
    from fineflow.adapters.analysis.frame import Frame


def take(f: Frame) -> None:
    """Takes an item of the iterator on top of the stack; those before it are the argument no longer."""
    if f.stack[-1] != GIVEN:
        raise Impure("does not pass on all that it gets")
    f.analysis.escaped = True
    f.slots = [SHARED if slot.kind is Kind.ARG else slot for slot in f.slots]
    f.stack[-1] = TAKEN


def is_whole(f: Frame, value: Value) -> bool:
    """Returns True for what a generator function gets, if nothing has been taken of it."""
    return value == GIVEN and all(each.kind is not Kind.STREAM for each in f.stack)


def ended(f: Frame) -> list[Value]:
    return [OVER if slot.kind is Kind.STREAM else slot for slot in f.slots]


def passed(f: Frame, value: Value) -> None:
    """Notes what is yielded: it must be the item that was taken last."""
    if value.kind is not Kind.ARG or TAKEN not in f.stack:
        raise Impure("yields something else than what it gets, or twice")
    f.stack[f.stack.index(TAKEN)] = GIVEN


@rule("GET_YIELD_FROM_ITER")
def _get_yield_from(f: Frame, ins: Instruction) -> None:
    if not is_whole(f, f.pop()):
        raise Impure("yields from an iterator")
    f.analysis.escaped = True
    f.slots = ended(f)
    f.push(OVER)


@rule("GET_ANEXT")
def _get_anext(f: Frame, ins: Instruction) -> None:
    take(f)
    f.push(ARG)  # once it has been awaited


@rule("SEND")
def _send(f: Frame, ins: Instruction) -> bool:
    f.pop()  # what the awaitable yields is the event loop's; what the iterator yields is passed on
    if f.stack[-1] == OVER:
        f.stack[-1] = NONE
    elif len(f.stack) < 2 or f.stack[-2].kind is not Kind.STREAM:
        raise Impure("awaits")
    f.jump(ins)
    return True


@rule("END_ASYNC_FOR")
def _end_async_for(f: Frame, ins: Instruction) -> None:
    f.pops(2)
    f.slots = ended(f)
