"""Registry of frameworks, and look-up of the framework that an object belongs to.

A framework is one folder with a module that has a ``FRAMEWORK``, and one entry here (or a call of ``register``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from fineflow import tested_versions

if TYPE_CHECKING:  # ``import fineflow`` stays light
    from fineflow.adapters.core.framework import Framework
    from fineflow.runtime.queues.component_calls import LimitedComponent


@dataclass(frozen=True, slots=True)
class Registration:
    """One framework.

    library: dotted name of a module that is imported wherever objects of the framework exist. adapter: dotted name of
    a module with a ``FRAMEWORK``, imported when the library is. taken: the objects that ``optimize`` takes, for
    messages; "" if those of another framework cover them.
    """

    library: str
    adapter: str
    taken: str


_REGISTERED: dict[str, Registration] = {
    "langgraph": Registration(  # before LangChain: a graph is a runnable, too
        "langgraph.pregel",
        "fineflow.adapters.langgraph.framework",
        "",
    ),
    "langchain": Registration(
        "langchain_core.runnables",
        "fineflow.adapters.langchain.framework",
        "a LangChain Runnable",
    ),
    "llamaindex": Registration(
        "llama_index.core",
        "fineflow.adapters.llamaindex.framework",
        "a supported LlamaIndex object (docs/llamaindex.md)",
    ),
}


def register(name: str, library: str, adapter: str, taken: str) -> None:
    """Adds a framework, or replaces the one of that name; see ``Registration`` for the arguments."""
    _REGISTERED[name] = Registration(library, adapter, taken)


def unregister(name: str) -> None:
    """Removes a framework. Objects that were optimized already stay optimized."""
    _REGISTERED.pop(name, None)


def frameworks() -> list[Framework]:
    """Returns the frameworks whose libraries are imported in this process."""
    found = []
    for each in tuple(_REGISTERED.values()):
        if sys.modules.get(each.library) is not None:
            try:
                found.append(cast("Framework", import_module(each.adapter).FRAMEWORK))
            except ImportError:  # a version with another module layout: its objects run as stock
                continue
    return found


def unusable() -> str:
    """Returns why the adapters of libraries that are imported cannot be used, for error messages; "" if all can."""
    reasons = [f"; {why}" for why in [tested_versions.interpreter()] if why]
    for name, each in tuple(_REGISTERED.items()):
        if sys.modules.get(each.library) is not None:
            try:
                import_module(each.adapter)
            except ImportError as error:
                reasons.append(f"; its adapter for {name} does not fit the installed version: {error}")
    return "".join(reasons)


def framework_of(obj: Any) -> Framework | None:
    """Returns the framework that takes an object, or None; None for all where this interpreter is not understood."""
    if tested_versions.interpreter():
        return None
    return next((each for each in frameworks() if each.knows(obj)), None)


def is_optimized(obj: Any) -> bool:
    """Returns True for an object that ``optimize`` returned."""
    proxy = sys.modules.get("fineflow.adapters.core.proxy")  # no object was optimized before this is imported
    return proxy is not None and issubclass(type(obj), proxy.Planned)


def taken() -> str:
    """Describes what ``optimize`` takes, for error messages."""
    return " or ".join(each.taken for each in _REGISTERED.values() if each.taken)


def component_of(obj: Any) -> LimitedComponent:
    """Returns the limited component of an object, whatever its framework.

    Raises: TypeError for an object that no framework can limit.
    """
    kind = obj if isinstance(obj, type) else obj.__class__  # for an optimized object: the user's class
    packages = {each.__module__.partition(".")[0] for each in kind.__mro__}
    found = frameworks()
    refusals = []
    for framework in [each for each in found if each.package in packages] or found:
        try:
            return framework.component(obj)
        except TypeError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    raise TypeError(f"expected an engine, or a component of a supported framework, got {type(obj).__name__}")
