"""Registry of rules: what each instruction does to actual values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fineflow.adapters.python.bytecode import Instruction
from fineflow.adapters.python.rules import Rules

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.frame import Frame

RULES = Rules[Callable[["Frame", Instruction], None]]()
rule = RULES.rule
