"""Rules of the instructions: what each does to actual values."""

from fineflow.adapters.lookahead.instructions import containers, control_flow, functions, operators, variables
from fineflow.adapters.lookahead.instructions.table import RULES

__all__ = ["RULES", "containers", "control_flow", "functions", "operators", "variables"]
