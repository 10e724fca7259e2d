"""Who is compared: stock, fineflow, and the public libraries whose scope overlaps; none of those is a dependency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import fineflow

Apply = Callable[[Any], Any]
"""Takes a compiled graph, returns one with the same interface."""


@dataclass(frozen=True)
class Contender:
    """One way to run a graph. packages: that must be installed. install: the arguments of pip that do it."""

    name: str
    apply: Apply
    packages: tuple[str, ...] = ()
    install: str = ""

    def versions(self) -> dict[str, str] | None:
        """Returns the versions of its packages; None if one is not installed."""
        try:
            return {each: version(each) for each in self.packages}
        except PackageNotFoundError:
            return None


def _stock(graph: Any) -> Any:
    return graph


def _fineflow(graph: Any) -> Any:
    return fineflow.optimize(graph, strict=True)


def _nvidia(*, speculation: bool) -> Apply:
    def apply(graph: Any) -> Any:
        from langchain_nvidia_langgraph.graph import OptimizationConfig, with_app_compile  # type: ignore[import-not-found]

        return with_app_compile(graph.builder).compile(
            checkpointer=graph.checkpointer,
            cache=graph.cache,
            store=graph.store,
            interrupt_before=list(graph.interrupt_before_nodes) or None,
            interrupt_after=list(graph.interrupt_after_nodes) or None,
            optimization=OptimizationConfig(enable_parallel=True, enable_speculation=speculation),
        )

    return apply


def _fast_langgraph(graph: Any) -> Any:
    from fast_langgraph import shim  # type: ignore[import-not-found]

    if not shim.is_patched():  # for the rest of the process, which is why each contender has one of its own
        shim.patch_langgraph(verbose=False)
    return graph


_NVIDIA = ("langchain-nvidia-langgraph", "nvidia-nat-app")
_NVIDIA_INSTALL = (
    'nvidia-nat-app && pip install --no-deps "langchain-nvidia-langgraph @ '
    'git+https://github.com/langchain-ai/langchain-nvidia#subdirectory=libs/langgraph"'
)
CONTENDERS = {
    each.name: each
    for each in (
        Contender("stock", _stock, ("langgraph", "langchain-core", "langchain")),
        Contender("fineflow", _fineflow),
        Contender("nvidia, parallel", _nvidia(speculation=False), _NVIDIA, _NVIDIA_INSTALL),
        Contender("nvidia, speculative", _nvidia(speculation=True), _NVIDIA, _NVIDIA_INSTALL),
        Contender("fast-langgraph", _fast_langgraph, ("fast-langgraph",), "fast-langgraph"),
    )
}
