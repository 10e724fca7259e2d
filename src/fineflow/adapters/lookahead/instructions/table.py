"""The table of instruction rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fineflow.adapters.python.bytecode import Instruction

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame

RULES: dict[str, Callable[[Frame, Instruction], None]] = {}
"""What each instruction does to actual values."""


def rule(names: str) -> Callable[[Callable[[Frame, Instruction], None]], Callable[[Frame, Instruction], None]]:
    """Registers a function as the rule of the instructions of these names."""

    def add(function: Callable[[Frame, Instruction], None]) -> Callable[[Frame, Instruction], None]:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return add
