"""Claims of LangChain components: counted, within the component's limits, and only of untainted results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from fineflow.adapters.core.claiming import Usable
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain.resources import acounted, counted
from fineflow.adapters.langchain.run_recorder import clean
from fineflow.runtime.call.entry import Entry

T = TypeVar("T")


def claim(site: Site, key: Any, own: Callable[[], T], usable: Usable = clean) -> tuple[Entry, T]:
    """Returns the graph's result for these arguments, or that of ``own()``; for calls from a thread."""
    return site.claim(key, partial(counted, site.planned, site.leaf, own), usable)


async def aclaim(site: Site, key: Any, own: Callable[[], Awaitable[Any]], usable: Usable = clean) -> tuple[Entry, Any]:
    """Async version of ``claim``."""
    return await site.aclaim(key, partial(acounted, site.planned, site.leaf, own), usable)
