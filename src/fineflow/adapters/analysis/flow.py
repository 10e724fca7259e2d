"""Rules for locals, closures, globals, the stack and control flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fineflow.adapters.analysis import streams
from fineflow.adapters.analysis.rules import rule
from fineflow.adapters.analysis.tables import is_error
from fineflow.adapters.analysis.values import (
    ARG,
    LAZY,
    NONE,
    NULL,
    OVER,
    SCALAR,
    SHARED,
    Impure,
    Kind,
    Returned,
    Table,
    Value,
)
from fineflow.adapters.python.bytecode import Instruction

if TYPE_CHECKING:
    from fineflow.adapters.analysis.frame import Frame

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


# --- locals, constants, closures, globals ---------------------------------------------------------------------------


@rule("LOAD_CONST")
def _load_const(f: Frame, ins: Instruction) -> None:
    f.push(Value(Kind.CONST, ins.value))


@rule("RETURN_VALUE")
def _return(f: Frame, ins: Instruction) -> bool:
    value = f.pop()
    if f.passes and OVER not in f.slots:
        raise Impure("stops before the end of what it gets")
    passed = value.kind is Kind.BAD and isinstance(value.data, Returned)
    f.returned = f.analysis.meet(f.returned, value if passed else f.analysis.use(value))
    return True


@rule("LOAD_FAST")
def _load_fast(f: Frame, ins: Instruction) -> bool:
    return f.load(ins.arg, str(ins.value))


@rule("LOAD_FAST_AND_CLEAR")
def _load_clear(f: Frame, ins: Instruction) -> None:
    f.push(f.slots[ins.arg])
    f.slots[ins.arg] = NULL


@rule("STORE_FAST")
def _store_fast(f: Frame, ins: Instruction) -> None:
    f.slots[ins.arg] = f.pop()


@rule("DELETE_FAST")
def _delete_fast(f: Frame, ins: Instruction) -> None:
    before = f.instructions[f.index - 1]
    if before.name not in ("STORE_FAST", "STORE_DEREF") or before.value != ins.value:
        raise Impure("deletes a variable")  # only the end of ``except ... as name`` is allowed
    f.slots[ins.arg] = NULL


@rule("MAKE_CELL")
def _make_cell(f: Frame, ins: Instruction) -> None:
    key = (*f.path, ins.offset)
    f.analysis.store_cell(key, f.slots[ins.arg])
    f.slots[ins.arg] = Value(Kind.CELL, key)


@rule("LOAD_DEREF")
def _load_deref(f: Frame, ins: Instruction) -> bool:
    value = f.read_cell(f.cell(ins.arg, str(ins.value)))
    if value.kind is Kind.NULL:
        return True
    if value.kind is Kind.BAD and not isinstance(value.data, (Returned, Table)):
        raise Impure(value.data)
    f.push(SHARED if f.passes and value.kind is Kind.ARG else value)  # a cell may hold an item of before
    return False


@rule("STORE_DEREF")
def _store_deref(f: Frame, ins: Instruction) -> None:
    cell = f.cell(ins.arg, str(ins.value))
    own = f.slots[ins.arg].kind is Kind.CELL
    if cell.data[0] == "free" or not (own or f.code.co_name in _COMPREHENSIONS):
        raise Impure(f"writes {ins.value} of the enclosing function")
    f.analysis.store_cell(cell.data, f.pop())


@rule("LOAD_GLOBAL")
def _load_global(f: Frame, ins: Instruction) -> None:
    value = f.analysis.load_global(f.owner, str(ins.value))
    f.stack.extend([NULL, value] if ins.arg & 1 else [value])


@rule("STORE_GLOBAL")
def _store_global(f: Frame, ins: Instruction) -> None:
    raise Impure(f"writes global {ins.value}")


@rule("IMPORT_NAME")
def _import_name(f: Frame, ins: Instruction) -> None:
    level, names = f.pops(2)
    if level.data != 0:
        raise Impure("imports relative to its package")
    f.push(f.analysis.load_import(f.owner, str(ins.value), whole=names.data is not None))


@rule("IMPORT_FROM")
def _import_from(f: Frame, ins: Instruction) -> None:
    f.push(f.analysis.load_module(f.stack[-1].data, str(ins.value)))


# --- the stack ------------------------------------------------------------------------------------------------------


@rule("POP_TOP")
def _pop_top(f: Frame, ins: Instruction) -> None:
    if f.pop().kind is Kind.STREAM:
        raise Impure("stops before the end of what it gets")


@rule("PUSH_NULL")
def _push_null(f: Frame, ins: Instruction) -> None:
    f.push(NULL)


@rule("COPY")
def _copy(f: Frame, ins: Instruction) -> None:
    f.push(f.stack[-ins.arg])


@rule("SWAP")
def _swap(f: Frame, ins: Instruction) -> None:
    f.stack[-1], f.stack[-ins.arg] = f.stack[-ins.arg], f.stack[-1]


# --- control flow ---------------------------------------------------------------------------------------------------


@rule("JUMP")
def _jump(f: Frame, ins: Instruction) -> bool:
    f.jump(ins)
    return True


@rule("POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE")
def _pop_jump(f: Frame, ins: Instruction) -> None:
    f.use()
    f.jump(ins)


@rule("GET_ITER GET_AITER")
def _get_iter(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    if streams.is_whole(f, value):
        f.push(value)
        return
    if ins.name == "GET_AITER":
        raise Impure("iterates asynchronously")
    f.iterable(value)
    f.push(LAZY)


@rule("FOR_ITER")
def _for_iter(f: Frame, ins: Instruction) -> None:
    given = f.stack[-1].kind is Kind.STREAM
    if given:
        streams.take(f)
    elif f.stack[-1].kind is Kind.BAD:
        raise Impure(f.stack[-1].data)
    elif f.stack[-1].kind is not Kind.LAZY:
        raise Impure("unsupported bytecode: iterates over something else than an iterator")
    slots = f.slots
    f.slots = streams.ended(f) if given else slots
    iterator = f.pop()
    f.jump(ins)
    f.push(iterator)
    f.slots = slots
    f.push(ARG if given else SHARED)


@rule("RETURN_GENERATOR")
def _return_generator(f: Frame, ins: Instruction) -> None:
    f.push(NONE)


@rule("YIELD_VALUE")
def _yield(f: Frame, ins: Instruction) -> None:
    value = f.pop()
    if f.passes:
        streams.passed(f, value)
    f.analysis.use(value)
    f.push(NONE)


@rule("RAISE_VARARGS")
def _raise(f: Frame, ins: Instruction) -> bool:
    if not ins.arg:
        raise Impure("raises the exception being handled, which may be the caller's")
    for value in f.pops(ins.arg):
        known = value.kind is Kind.CONST and (value.data is None or is_error(value.data))
        if value.kind is not Kind.ERROR and not known:
            raise Impure("raises something that is not a builtin exception")
    if f.analysis.up_to_a_call:
        raise Impure("may raise an error instead")
    f.analysis.raises = True
    return True


@rule("RERAISE")
def _reraise(f: Frame, ins: Instruction) -> bool:
    return True


@rule("PUSH_EXC_INFO")
def _push_exc_info(f: Frame, ins: Instruction) -> None:
    f.stack.insert(len(f.stack) - 1, SCALAR)


@rule("POP_EXCEPT")
def _pop_except(f: Frame, ins: Instruction) -> None:
    f.pop()


@rule("CHECK_EXC_MATCH")
def _check_exc(f: Frame, ins: Instruction) -> None:
    classes = f.pop()
    found = classes.data if isinstance(classes.data, tuple) else (classes.data,)
    if classes.kind is not Kind.CONST or not all(map(is_error, found)):
        raise Impure("catches something that is not a builtin exception")
    f.push(SCALAR)
