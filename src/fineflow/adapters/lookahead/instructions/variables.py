"""Variables, constants, imports and the stack."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fineflow.adapters.lookahead import objects
from fineflow.adapters.lookahead.instructions.table import rule
from fineflow.adapters.lookahead.values import NULL, Cell, Stop, content, unknown
from fineflow.adapters.python.bytecode import Instruction

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame


@rule("LOAD_CONST")
def _constant(f: Frame, ins: Instruction) -> None:
    f.stack.append(ins.value)


@rule("LOAD_FAST")
def _load_local(f: Frame, ins: Instruction) -> None:
    f.push(f.local(ins.value))


@rule("LOAD_FAST_AND_CLEAR")
def _load_and_clear(f: Frame, ins: Instruction) -> None:
    f.push(f.names.pop(ins.value, NULL))


@rule("STORE_FAST")
def _store_local(f: Frame, ins: Instruction) -> None:
    f.names[ins.value] = f.pop()


@rule("DELETE_FAST")
def _delete_local(f: Frame, ins: Instruction) -> None:
    f.names.pop(ins.value, None)


@rule("MAKE_CELL")
def _make_cell(f: Frame, ins: Instruction) -> None:
    cell = f.cells[ins.value] = Cell(f.names.pop(ins.value, NULL))
    f.walk.tries.made(cell)


@rule("LOAD_DEREF")
def _load_cell(f: Frame, ins: Instruction) -> None:
    cell = f.cells[ins.value]
    value = cell.value if isinstance(cell, Cell) else f.walk.changes.assigned(cell, "", content(cell))
    if value is NULL:
        raise Stop(f"reads {ins.value} before it is assigned")
    if not unknown(value):
        f.walk.tasks.read(cell)
    f.push(value)


@rule("STORE_DEREF")
def _store_cell(f: Frame, ins: Instruction) -> None:
    cell = f.cells[ins.value]
    value = f.pop()
    if isinstance(cell, Cell):
        shared = ins.value in f.code.co_freevars
        if not (shared and f.walk.tries.ignores(cell)):
            if shared:
                f.walk.tries.assigns(cell, "", cell.value)
            f.walk.tasks.shake(cell)
            cell.value = f.walk.aliases.one_of(value, cell.value) if f.walk.unsure and shared else value
    else:
        f.walk.changes.assign(cell, "", value, content(cell))


@rule("STORE_GLOBAL")
def _store_global(f: Frame, ins: Instruction) -> None:
    scope = f.owner.__globals__
    f.walk.changes.assign(scope, ins.value, f.pop(), scope.get(ins.value, NULL))


@rule("LOAD_GLOBAL")
def _load_global(f: Frame, ins: Instruction) -> None:
    value = f.outer(ins.value)
    if ins.arg & 1:
        f.stack.append(NULL)
    f.push(value)


@rule("IMPORT_NAME")
def _import(f: Frame, ins: Instruction) -> None:
    names, level = f.pop(), f.pop()
    module = sys.modules.get(ins.value)
    if level or module is None:
        raise Stop(f"imports {ins.value}")
    f.push(module if names else sys.modules[ins.value.partition(".")[0]])


@rule("IMPORT_FROM")
def _import_from(f: Frame, ins: Instruction) -> None:
    f.push(objects.attribute(f.walk, f.stack[-1], ins.value, method=False))


@rule("POP_TOP")
def _drop(f: Frame, ins: Instruction) -> None:
    f.pop()


@rule("PUSH_NULL")
def _push_null(f: Frame, ins: Instruction) -> None:
    f.stack.append(NULL)


@rule("COPY")
def _copy(f: Frame, ins: Instruction) -> None:
    f.push(f.stack[-ins.arg])


@rule("SWAP")
def _swap(f: Frame, ins: Instruction) -> None:
    f.stack[-1], f.stack[-ins.arg] = f.stack[-ins.arg], f.stack[-1]
