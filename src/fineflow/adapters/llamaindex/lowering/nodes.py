"""Nodes of packages' classes, whose attributes can be read without calling user code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fineflow.adapters.core.installers import foreign


def known_nodes(nodes: Iterable[Any]) -> bool:
    """Returns True if all nodes (``NodeWithScore``) are of packages' classes. Reading others may run user code."""
    return all(foreign(type(each)) and foreign(type(each.node)) for each in nodes)
