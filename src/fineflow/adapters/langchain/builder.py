"""The builder of p-graphs of runnables: what is bound or configured on the way to a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fineflow.adapters.core.builder import Builder


@dataclass
class ChainBuilder(Builder):
    """A builder for runnables.

    options: keyword arguments bound on the way to the current step. configured: whether something on the way changes
    what a config makes configurable. invoked: whether stock calls ``invoke`` here even where the whole chain streams.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    configured: bool = False
    invoked: bool = False

    def body(self, **changes: Any) -> Self:
        invoked = changes.pop("invoked", False) or self.invoked
        return super().body(options={}, invoked=invoked, **changes)
