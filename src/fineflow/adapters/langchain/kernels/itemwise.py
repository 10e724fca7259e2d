"""Calls a function that makes a list item by item for one item, before the others are there."""

from __future__ import annotations

from typing import Any

from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, fields, plain
from fineflow.ir import Primitive
from fineflow.ir.primitive import NUMBER


def one_item(p: Primitive, args: Args) -> Any:
    """Returns what the function makes of ``item`` and of what is at its place in the other lists.

    Raises LeftToStock if these are no lists, or too short, and for what is not plain data.
    """
    given: Any = [args["item"]]
    how = p.meta["itemwise"]
    lists = how.keys
    if lists is not None:
        given = fields(args)
        for key in lists:
            given[key] = [args["item"] if key == p.params["of"] else _at(given[key], args[NUMBER])]
    plain(given)
    found = how.at(p.component.func, args[NUMBER])(given)
    if type(found) is not list or len(found) != 1:
        raise LeftToStock("the function did not make one item of one")
    return found[0]


def _at(given: Any, place: int) -> Any:
    if type(given) not in (list, tuple) or place >= len(given):
        raise LeftToStock("one of the lists that it goes through is none, or too short")
    return given[place]
