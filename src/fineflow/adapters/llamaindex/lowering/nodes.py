"""Nodes of LlamaIndex's own classes, whose attributes can be read without calling user code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_PACKAGES = ("llama_index", "fineflow", "pydantic", "pydantic_core")


def known_nodes(nodes: Iterable[Any]) -> bool:
    """Returns True if all nodes (``NodeWithScore``) are of LlamaIndex's classes. Reading others may run user code."""
    return all(_known(type(each)) and _known(type(each.node)) for each in nodes)


def _known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PACKAGES
