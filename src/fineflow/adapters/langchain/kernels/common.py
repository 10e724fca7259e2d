"""Helpers of all kernels: their arguments, and the checks that leave a primitive to stock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages.base import TextAccessor

from fineflow.adapters.analysis import is_plain
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock as LeftToStock

Args = Mapping[str, Any]


def fields(args: Args) -> dict[str, Any]:
    """Returns the named values among the arguments as one dict."""
    rest = args.get("rest", {})
    if not isinstance(rest, dict):
        raise LeftToStock("its other variables are not in a dict")
    found = dict.copy(rest)
    found.update({name[4:]: value for name, value in args.items() if name.startswith("key:")})
    return found


_ACCESS = ("__getitem__", "__iter__", "__contains__", "__len__", "get", "keys", "values", "items", "copy")


def plain(value: Any) -> None:
    """Raises LeftToStock for values that could notice being read, or that can be read only once."""
    if not is_plain(dict(value) if _read_like_a_dict(type(value)) else value):
        raise LeftToStock("its input is not plain data")


def _read_like_a_dict(kind: type) -> bool:
    """Returns True for dict classes that read like a dict, such as LangChain's own, to which chunks can be added."""
    if kind is dict or not issubclass(kind, dict) or hasattr(kind, "__missing__"):
        return False
    return all(getattr(kind, name) is getattr(dict, name) for name in _ACCESS)


def is_text(value: Any) -> bool:
    """Returns True for immutable text: a str, or the text of LangChain's messages."""
    return type(value) is str or type(value) is TextAccessor


def current(run: Execution) -> None:
    """Raises LeftToStock if the graph's values are known to differ from stock's."""
    if step := run.call.changed:
        raise LeftToStock(f"{step} changed its input in place")


def unbounded(run: Execution) -> None:
    """Raises LeftToStock if few requests may be in vain, for one that stock does not claim by itself."""
    if run.call.bounded:
        raise LeftToStock("waste bounds the requests that may be in vain")


def documents(found: Any) -> list[Any]:
    """Returns the documents that a component found as a new list. Raises LeftToStock if it returned something else."""
    if not isinstance(found, (list, tuple)):
        raise LeftToStock(f"the component returned {type(found).__name__} instead of a list of documents")
    return list(found)
