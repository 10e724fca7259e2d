"""Jumps, loops, returns, coroutines and generator expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead import iteration
from fineflow.adapters.lookahead.instructions.table import rule
from fineflow.adapters.lookahead.managers import entered
from fineflow.adapters.lookahead.surroundings import TextFile
from fineflow.adapters.lookahead.values import (
    HANDLED,
    HELD,
    INERT,
    NULL,
    SWALLOWS,
    UNKNOWN,
    Awaited,
    Method,
    Progress,
    Stop,
    TaskGroup,
    unknown,
)
from fineflow.adapters.python.bytecode import Instruction

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame


@rule("JUMP")
def _jump(f: Frame, ins: Instruction) -> None:
    f.jump()


@rule("POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE")
def _pop_jump(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    holds = _holds(f, ins.name, value)
    if holds is None:
        f.walk.touch(value)
        f.split((f.at, f.stack), (f.target, f.stack))
    elif holds:
        f.jump()


def _holds(f: Frame, name: str, value: Any) -> bool | None:
    """Returns True if a conditional jump is taken, None if that is not known."""
    if not f.walk.whole(value):
        return None
    if name.endswith("NOT_NONE"):
        return value is not None
    if name.endswith("NONE"):
        return value is None
    return f.walk.truth(value) is name.endswith("TRUE")


@rule("GET_ITER")
def _iterate(f: Frame, ins: Instruction) -> None:
    f.push(iteration.iterator(f.walk, f.pop()))


@rule("FOR_ITER")
def _next(f: Frame, ins: Instruction) -> None:
    try:
        value = f.following()
    except StopIteration:
        f.pop()
        f.jump()
        return
    if value is NULL:
        other = iteration.rest(f.walk, f.stack[-1])
        f.stack[-1] = UNKNOWN if other is UNKNOWN else HELD
        f.split((f.at, [*f.stack, other]), (f.target, f.stack[:-1]))
    else:
        f.push(value)


@rule("GET_AITER")
def _iterate_async(f: Frame, ins: Instruction) -> None:
    if not unknown(f.stack[-1]):
        raise Stop(f"iterates over a {type(f.stack[-1]).__name__}")


@rule("GET_ANEXT")
def _next_async(f: Frame, ins: Instruction) -> None:
    """Goes through the body once, perhaps; what stock awaits for each element lets tasks begin."""
    f.walk.tasks.begin()
    other = f.walk.aliases.part(f.stack[-1])
    f.split((f.at, [*f.stack, Awaited(other)]), (f.target, [*f.stack, UNKNOWN]))


@rule("END_ASYNC_FOR")
def _end_async_for(f: Frame, ins: Instruction) -> None:
    f.pops(2)


@rule("RETURN_VALUE")
def _return(f: Frame, ins: Instruction) -> None:
    f.leave(f.pop())


@rule("RAISE_VARARGS RERAISE")
def _raise(f: Frame, ins: Instruction) -> None:
    tries = f.walk.tries
    if not (tries.aside or any(each is HANDLED for each in f.stack)):  # those go on as if nothing fails
        error = f.stack[-ins.arg] if ins.name == "RAISE_VARARGS" and ins.arg else UNKNOWN
        ends = isinstance(error, type) and not issubclass(error, Exception)  # SystemExit, say
        if ends or not any(each.catches(Exception)[1] for each in tries.open):
            raise Stop("may raise an exception")
        tries.raises(Exception)
    f.fail()


@rule("PUSH_EXC_INFO")
def _handle(f: Frame, ins: Instruction) -> None:
    f.stack.insert(-1, HANDLED)


@rule("CHECK_EXC_MATCH")
def _is_handled(f: Frame, ins: Instruction) -> None:
    f.stack[-1] = UNKNOWN


@rule("POP_EXCEPT")
def _handled(f: Frame, ins: Instruction) -> None:
    f.pop()


@rule("RETURN_GENERATOR")
def _return_generator(f: Frame, ins: Instruction) -> None:
    f.push(None)


@rule("GET_AWAITABLE")
def _awaitable(f: Frame, ins: Instruction) -> None:
    f.push(Awaited(f.walk.awaited(f.pop())))


@rule("SEND")
def _send(f: Frame, ins: Instruction) -> None:
    f.pop()
    f.push(f.pop().value)
    f.jump()


@rule("YIELD_VALUE")
def _yield(f: Frame, ins: Instruction) -> None:
    if f.streams:
        f.walk.yielded(f.pop())
        f.push(None)
    elif f.branches:
        f.blurred, f.perhaps = True, f.walk.aliases.one_of(f.perhaps, f.pop())
        f.push(None)
    else:
        f.suspend()


# --- with -----------------------------------------------------------------------------------------------------------


@rule("BEFORE_WITH")
def _enter(f: Frame, ins: Instruction) -> None:
    manager = f.pop()
    if manager is SWALLOWS:
        f.stack += [SWALLOWS, None]
        return
    if manager is INERT or isinstance(manager, Progress | TextFile):
        f.stack += [INERT, manager]  # its exit, and what it returns
        return
    for each in entered(f.walk, manager, later=False):
        f.push(each)


@rule("BEFORE_ASYNC_WITH")
def _aenter(f: Frame, ins: Instruction) -> None:
    manager = f.pop()
    if manager is INERT or isinstance(manager, TaskGroup):
        f.stack += [INERT if manager is INERT else Method(manager, "__aexit__"), Awaited(manager)]
        return
    for each in entered(f.walk, manager, later=True):
        f.push(each)


@rule("WITH_EXCEPT_START")
def _exit(f: Frame, ins: Instruction) -> None:
    f.push(UNKNOWN)
