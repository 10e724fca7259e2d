"""Abstract interpretation of one code object: all paths, with values that track ownership.

An instruction without a rule makes the function not pure, so the bytecode of a later Python can only cost precision.
Each rule is named after the instruction.
"""

from __future__ import annotations

from types import CodeType, FunctionType

from fineflow.adapters.analysis import flow, operations  # noqa: F401  (they register their rules)
from fineflow.adapters.analysis.calls import CallSite
from fineflow.adapters.analysis.outside import Key
from fineflow.adapters.analysis.rules import RULES, Rule
from fineflow.adapters.analysis.state import Analysis, Reached
from fineflow.adapters.analysis.values import ERROR, LAZY, NULL, SCALAR, SHARED, Impure, Kind, Returned, Table, Value
from fineflow.adapters.python.bytecode import Instruction, location
from fineflow.adapters.python.graph import graph
from fineflow.adapters.python.opcodes import OPCODES

_COROUTINE = 0x80 | 0x100 | 0x200  # coroutine, awaitable generator, asynchronous generator
_GENERATOR, _ASYNC_GENERATOR = 0x20, 0x200
_REFUSED = {
    "STORE_ATTR": "stores an attribute",
    "DELETE_ATTR": "deletes an attribute",
    "DELETE_DEREF": "deletes a variable",
    "DELETE_FAST": "deletes a variable",
    "DELETE_GLOBAL": "deletes a global",
    "BEFORE_WITH": "uses a context manager",
    "BEFORE_ASYNC_WITH": "uses a context manager",
    "LOAD_BUILD_CLASS": "defines a class",
    "GET_AWAITABLE": "awaits",
    "MATCH_CLASS": "matches a class, whose attributes may run code",
}


# The only instructions allowed while a value that may only be returned, or a table of these, is on the stack.
_HANDING_ON = frozenset(
    {
        *("RETURN_VALUE", "STORE_FAST", "JUMP", "PUSH_NULL"),
        *("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BINARY_SUBSCR"),
    }
)


class Frame:
    """Interprets one code object. ``owner`` is the function whose globals and closure it sees."""

    def __init__(
        self, analysis: Analysis, code: CodeType, owner: FunctionType, path: Key, outer: dict[str, Value] | None = None
    ) -> None:
        self.analysis, self.code, self.owner, self.path, self.outer = analysis, code, owner, path, outer
        self.stack: list[Value] = []
        self.slots: list[Value] = []
        self.returned = NULL
        self.reached = False  # a path has ended at the call up to which the function is analysed
        self.passes = False  # a generator function that gets an iterator
        self.instruction = Instruction("", 0, None, 0, 0)
        self.states: dict[int, tuple[tuple[Value, ...], tuple[Value, ...]]] = {}
        self.pending: list[int] = []

    def run(self, parameters: dict[str, Value]) -> Value:
        """Returns the result value, given the values of parameters. Raises Impure with its location set."""
        code = self.code
        names = code.co_varnames
        slots = [NULL] * (len(names) + len(code.co_cellvars) + len(code.co_freevars))
        for index, name in enumerate(names):
            slots[index] = parameters.get(name, NULL)
        try:
            self.passes = any(slot.kind is Kind.STREAM for slot in slots)
            refused = 0 if self.analysis.coroutines else _COROUTINE
            if code.co_flags & (refused & ~_ASYNC_GENERATOR if self.passes else refused):
                raise Impure("is asynchronous")
            self._run(tuple(slots))
        except Impure as problem:
            problem.where = problem.where or location(code, self.instruction.line)
            raise
        if code.co_flags & _GENERATOR:
            return LAZY
        if self.reached and self.returned is NULL:
            raise Reached
        return SHARED if self.returned is NULL else self.returned  # NULL: code that always raises

    def _run(self, slots: tuple[Value, ...]) -> None:
        made = graph(self.code)
        self.instructions = made.instructions
        self._merge(0, (), slots)
        while self.pending:
            index = self.pending.pop()
            stack, slots = self.states[index]
            self.stack, self.slots = list(stack), list(slots)
            while True:
                self.instruction = ins = self.instructions[index]
                self.index = index
                self.analysis.spend()
                for h in () if self.analysis.up_to_a_call else made.handlers[index]:  # an outer one only adds paths
                    kept = [*self.stack[: h.depth], *([SCALAR] if h.lasti else []), ERROR]
                    self._merge(h.target, tuple(kept), tuple(self.slots))
                if self.analysis.returned and ins.name not in _HANDING_ON:
                    for value in self._operands(ins):
                        if value.kind is Kind.BAD:
                            raise Impure(value.data)
                rule = RULES.get(ins.name)
                if rule is None:
                    raise Impure(_REFUSED.get(ins.name, f"unsupported bytecode {ins.name}"))
                if self._apply(rule, ins):
                    break
                index += 1
                if index in made.entered:
                    self._merge(index, tuple(self.stack), tuple(self.slots))
                    break

    def _apply(self, rule: Rule, ins: Instruction) -> bool | None:
        """Does what an instruction does. Returns True if the path ends there."""
        try:
            return rule(self, ins)
        except Reached:
            self.reached = True
            return True

    def _operands(self, ins: Instruction) -> list[Value]:
        """Returns what an instruction may read of the stack."""
        known = OPCODES.get(ins.name)
        count = len(self.stack) if known is None else known.taken(ins.arg)
        return self.stack[max(0, len(self.stack) - count) :]

    def _merge(self, index: int, stack: tuple[Value, ...], slots: tuple[Value, ...]) -> None:
        old = self.states.get(index)
        if old is None:
            new = (stack, slots)
        else:
            if len(old[0]) != len(stack):
                raise Impure("unsupported bytecode: the stack differs from path to path")
            meet = self.analysis.meet
            new = (tuple(map(meet, old[0], stack)), tuple(map(meet, old[1], slots)))
            if new == old:
                return
        self.states[index] = new
        self.pending.append(index)

    # --- helpers of the rules -------------------------------------------------------------------------------------

    def pop(self) -> Value:
        if not self.stack:
            raise Impure("unsupported bytecode: the stack is empty")
        return self.stack.pop()

    def pops(self, count: int) -> list[Value]:
        if count > len(self.stack):
            raise Impure("unsupported bytecode: the stack is empty")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found

    def use(self) -> Value:
        return self.analysis.use(self.pop())

    def uses(self, count: int) -> list[Value]:
        return [self.analysis.use(v) for v in self.pops(count)]

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def site(self) -> CallSite:
        return CallSite(self.analysis, (*self.path, self.instruction.offset))

    def jump(self, ins: Instruction) -> None:
        self._merge(ins.value, tuple(self.stack), tuple(self.slots))

    def iterable(self, value: Value) -> None:
        if value.kind is not Kind.LAZY:
            self.analysis.use(value)

    def fresh(self, depth: int) -> None:
        """Checks that the container that an instruction adds to was created by this code."""
        if self.stack[-depth].kind is not Kind.FRESH:
            raise Impure("unsupported bytecode: adds to a container that is not new")

    def cell(self, index: int, name: str) -> Value:
        slot = self.slots[index]
        if slot.kind is Kind.CELL:
            return slot
        if self.outer is not None:
            return self.outer[name]
        return Value(Kind.CELL, ("free", self.owner, name))

    def read_cell(self, cell: Value) -> Value:
        if cell.data[0] == "free":
            return self.analysis.load_outer(cell.data[1], cell.data[2])
        return self.analysis.read_cell(cell.data)

    def load(self, index: int, name: str) -> bool:
        """Pushes a local; returns True (this path ends) if it is unbound, because reading it raises."""
        value = self.slots[index]
        if value.kind is Kind.NULL:
            if name in self.code.co_freevars:  # 3.13 loads closure cells like locals
                value = self.cell(index, name)
            else:
                return True
        if value.kind is Kind.BAD and not isinstance(value.data, (Returned, Table)):
            raise Impure(value.data)
        self.push(value)
        return False
