"""Rules of the instructions: what each does to actual values (Python 3.11 to 3.13)."""

from fineflow.adapters.lookahead.instructions import containers, control_flow, functions, operators, variables
from fineflow.adapters.lookahead.instructions.table import RULES

__all__ = ["RULES", "containers", "control_flow", "functions", "operators", "variables"]
