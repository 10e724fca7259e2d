"""Registry of rules: the effect of each instruction on the abstract stack and locals.

A rule returns True if the path ends (or continues elsewhere), so that the next instruction is not reached from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fineflow.adapters.python.bytecode import Instruction
from fineflow.adapters.python.rules import Rules

if TYPE_CHECKING:
    from fineflow.adapters.analysis.frame import Frame

Rule = Callable[["Frame", Instruction], bool | None]

RULES = Rules[Rule]()
rule = RULES.rule
