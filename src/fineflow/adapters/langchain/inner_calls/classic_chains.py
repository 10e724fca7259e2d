"""Chains of langchain-classic: their classes, and which of their own methods make calls that may run ahead."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from langchain_core.retrievers import BaseRetriever

from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.trust import of_packages_class, owner

_SEARCHES = ("_get_docs", "_aget_docs")
RUNS = ("_call", "_acall")
"""Methods in which a chain does its work, and that the user's own chains define."""


def is_chain(kind: type) -> bool:
    """Returns True for a class of langchain-classic's chains, and the user's own made from these."""
    base = if_imported("langchain_classic.chains.base", "Chain")
    return base is not None and issubclass(kind, base)


def methods_inside(chain: Any) -> tuple[str, ...]:
    """Returns the methods of packages in a chain whose component calls may gain: by themselves, or beside others."""
    kind: Any = type(chain)
    if not is_chain(kind):
        return ()
    names = _SEARCHES if isinstance(getattr(chain, "retriever", None), BaseRetriever) else ()
    names = RUNS if _independent(chain) else names
    return tuple(name for name in names if of_packages_class(kind, name))


def _independent(chain: Any) -> bool:
    """Returns True for a ``SequentialChain`` one of whose chains may run beside the one before it."""
    own = owner(type(chain), "_call")
    if (own.__module__, own.__name__) != ("langchain_classic.chains.sequential", "SequentialChain"):
        return False
    return not all(set(one.output_keys) & set(other.input_keys) for one, other in pairwise(chain.chains))
