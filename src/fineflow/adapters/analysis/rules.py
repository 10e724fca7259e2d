"""Registry of rules: the effect of each instruction on the abstract stack and locals.

An instruction without a rule makes the function not pure, so the bytecode of a later Python can only cost precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fineflow.adapters.python.bytecode import Instruction

if TYPE_CHECKING:
    from fineflow.adapters.analysis.frame import Frame

# A rule returns True if the path ends (or continues elsewhere), so that the next instruction is not reached from here.
Rule = Callable[["Frame", Instruction], bool | None]

RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Registers a function as the rule for the instructions of these names."""

    def add(function: Rule) -> Rule:
        for name in names.split():
            RULES[name] = function
        return function

    return add
