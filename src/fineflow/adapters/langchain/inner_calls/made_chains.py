"""Classic chains, and agents, that a user function makes in every call anew.

Of chains a walk makes its own. Its calls lead to requests and searches of the function's models and retrievers
(``chain_calls``), so it makes no difference that stock's chain is another object. Agents are left to stock; their calls
may gain by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from langchain_core._api import suppress_langchain_deprecation_warning

from fineflow.adapters.langchain.inner_calls.classic_chains import is_chain
from fineflow.adapters.lookahead import Stop

_CHAINS = "langchain_classic.chains."
_MADE = {  # by the class, and by methods of it; these only check and keep what they get
    "LLMChain": frozenset({"", "from_string"}),
    "StuffDocumentsChain": frozenset({""}),
    "RetrievalQA": frozenset({"", "from_chain_type", "from_llm"}),
    "SequentialChain": frozenset({""}),
    "SimpleSequentialChain": frozenset({""}),
}


_AGENTS = {  # functions that make agents, by name, and the packages that have them
    "create_agent": "langchain.",
    "create_react_agent": "langgraph.",
    "create_deep_agent": "deepagents.",
    "create_supervisor": "langgraph_supervisor.",
}


def makes_chains(obj: Any) -> bool:
    """Returns True for classes of classic chains, and for functions that make chains or agents."""
    if isinstance(obj, type):
        return is_chain(obj) and obj.__module__.startswith(_CHAINS)
    loads = isinstance(obj, FunctionType) and obj.__name__.startswith("load_")
    return (loads and (obj.__module__ or "").startswith(_CHAINS)) or makes_agents(obj)


def makes_agents(obj: Any) -> bool:
    """Returns True for functions such as ``create_agent``, which return a graph."""
    package = _AGENTS.get(obj.__name__) if isinstance(obj, FunctionType) else None
    return package is not None and (obj.__module__ or "").startswith(package)


def made_chain(kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Returns a chain as ``kind(...)`` or ``kind.name(...)`` makes it. Raises Stop."""
    if makes_agents(kind):
        raise Stop("makes an agent")
    if name not in _MADE.get(kind.__name__, ()):
        raise Stop(f"makes a {kind.__name__}")
    with suppress_langchain_deprecation_warning():  # stock's call warns
        return (getattr(kind, name) if name else kind)(*args, **named)
