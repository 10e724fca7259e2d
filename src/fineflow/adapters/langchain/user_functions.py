"""The user's own functions in opaque steps, and the components that they call."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from fineflow.adapters.lookahead.scan import Found, scan

METHODS = frozenset({"invoke", "ainvoke"})
"""Methods of components whose calls inside user functions run ahead."""


def functions_of(step: Any) -> dict[str, Any]:
    """Returns the functions that a step runs, by the attribute that holds each."""
    if type(step) is not RunnableLambda:
        return {}
    return {name: step.__dict__[name] for name in ("func", "afunc") if name in step.__dict__}


def components_in(step: Any) -> Found:
    """Returns the components that an opaque step calls in its own Python code."""
    found = [scan(func, _is_component, METHODS) for func in functions_of(step).values()]
    return next((each for each in found if each.several), Found())


def _is_component(obj: Any) -> bool:
    kind = type(obj)
    if not issubclass(kind, Runnable):
        return False
    return not issubclass(kind, BasePromptTemplate | BaseOutputParser) or issubclass(kind, BaseLanguageModel)
