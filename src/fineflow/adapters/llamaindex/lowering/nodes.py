"""Nodes: whether reading them calls nothing but LlamaIndex."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_PACKAGES = ("llama_index", "fineflow", "pydantic", "pydantic_core")


def known_nodes(nodes: Iterable[Any]) -> bool:
    """Whether all nodes (``NodeWithScore``) are of LlamaIndex's own classes: those of users may do more when read."""
    return all(_known(type(each)) and _known(type(each.node)) for each in nodes)


def _known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PACKAGES
