"""Intermediate representation: primitives, graphs and their text."""

from fineflow.ir.graph import Graph, Note
from fineflow.ir.primitive import PURE, Effect, Effects, Op, Primitive, Ref

__all__ = ["PURE", "Effect", "Effects", "Graph", "Note", "Op", "Primitive", "Ref"]
