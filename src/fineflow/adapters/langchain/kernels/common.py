"""What all kernels have in common: their arguments, and when they leave a primitive to stock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages.base import TextAccessor

from fineflow.adapters.analysis import is_plain
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock as LeftToStock

Args = Mapping[str, Any]


def fields(args: Args) -> dict[str, Any]:
    """The named values among the arguments, as one dict."""
    rest = args.get("rest", {})
    if not isinstance(rest, dict):
        raise LeftToStock("what holds its other variables is not a dict")
    found = dict.copy(rest)
    found.update({name[4:]: value for name, value in args.items() if name.startswith("key:")})
    return found


_ACCESS = ("__getitem__", "__iter__", "__contains__", "__len__", "get", "keys", "values", "items", "copy")


def plain(value: Any) -> None:
    """Raises LeftToStock for values that could notice that they are looked at, or can be looked at only once."""
    if not is_plain(dict(value) if _read_like_a_dict(type(value)) else value):
        raise LeftToStock("what it is given is not plain data")


def _read_like_a_dict(kind: type) -> bool:
    """Whether it is a dict that looks like one, such as LangChain's own, to which chunks can be added."""
    if kind is dict or not issubclass(kind, dict) or hasattr(kind, "__missing__"):
        return False
    return all(getattr(kind, name) is getattr(dict, name) for name in _ACCESS)


def is_text(value: Any) -> bool:
    """Whether it is text that nobody can change: a str, or what LangChain's messages give as their text."""
    return type(value) is str or type(value) is TextAccessor


def current(run: Execution) -> None:
    """Raises LeftToStock where the graph's values are known to be no longer those of stock."""
    if step := run.call.changed:
        raise LeftToStock(f"{step} has changed in place what it was given")
