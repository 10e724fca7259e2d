"""Applications: the papers' ones and common ones of the community, each written once.

In unmodified LangChain, LangGraph or LlamaIndex. A module describes one ``App`` or several; ``app`` finds them by name.
The examples of the documentation are applications, too.
"""

from __future__ import annotations

from importlib import import_module

from benchmarks.apps import examples
from benchmarks.apps.app import App

_AT = {
    "search_generation": "search_generation:APP",
    "naive_rag": "naive_rag:APP",
    "naive_rag_llamaindex": "naive_rag_llamaindex:APP",
    "advanced_rag": "advanced_rag:APP",
    "advanced_rag_llamaindex": "advanced_rag_llamaindex:APP",
    "contextual_retrieval": "contextual_retrieval:APP",
    "agent": "agent:APP",
    "repository_naive": "repository:NAIVE",
    "repository_advanced": "repository:ADVANCED",
    "repository_two_steps": "repository:TWO_STEPS",
    "colocated": "colocated:APP",
    "conversational_rag": "conversational_rag:APP",
    "rag_fusion": "rag_fusion:APP",
    "corrective_rag": "corrective_rag:APP",
}
NAMES = tuple(_AT)
EXAMPLES = tuple(f"example_{name}" for name in examples.PATHS)


def app(name: str) -> App:
    """Returns an application. Raises ValueError for an unknown name."""
    if name in EXAMPLES:
        return examples.example(name.removeprefix("example_"))
    if name not in _AT:
        raise ValueError(f"no application is called {name!r}; there are {', '.join((*NAMES, *EXAMPLES))}")
    module, _, attribute = _AT[name].partition(":")
    found: App = getattr(import_module(f"benchmarks.apps.{module}"), attribute)
    return found


def apps() -> dict[str, App]:
    """Returns all applications by name."""
    return {name: app(name) for name in (*NAMES, *EXAMPLES)}
