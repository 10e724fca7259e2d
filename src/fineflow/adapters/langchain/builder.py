"""Builder of p-graphs of runnables: tracks what is bound or configured on the path to a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fineflow.adapters.core.builder import Builder


@dataclass
class ChainBuilder(Builder):
    """A builder for runnables.

    options: keyword arguments bound on the path to the current step. configured: True if something on the path changes
    what a config makes configurable. invoked: True if stock calls ``invoke`` here even when the whole chain streams.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    configured: bool = False
    invoked: bool = False

    def body(self, **changes: Any) -> Self:
        invoked = changes.pop("invoked", False) or self.invoked
        return super().body(options={}, invoked=invoked, **changes)
