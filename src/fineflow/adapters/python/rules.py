"""Registry of the rules of a model: what it makes of each instruction. An instruction without one is not understood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fineflow.adapters.python.opcodes import OPCODES

Rule = TypeVar("Rule", bound=Callable[..., Any])


class Rules(dict[str, Rule]):
    """Rules by the names of instructions."""

    def rule(self, names: str) -> Callable[[Rule], Rule]:
        """Registers a function as the rule of the instructions of these names. KeyError if there is none of a name."""

        def add(function: Rule) -> Rule:
            for name in names.split():
                OPCODES[name]  # one that is never decoded needs no rule
                self[name] = function
            return function

        return add


def called(
    slots: Sequence[Any], args: Sequence[Any], names: Sequence[str], is_null: Callable[[Any], bool]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Returns the function of a call, its arguments and its named ones. slots: the two values below its arguments.

    One of these is the function, the other a marker: Python 3.13 swapped them. Without a marker there is an argument in
    its place.
    """
    first, second = slots
    if is_null(first):
        func = second
    else:
        func, args = first, args if is_null(second) else [second, *args]
    count = len(args) - len(names)
    return func, list(args[:count]), dict(zip(names, args[count:], strict=True))
