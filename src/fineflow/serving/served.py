"""The one interface by which routes call the served object."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import fineflow
from fineflow.adapters.registry import is_optimized
from fineflow.errors import UsageError
from fineflow.ir.text import name_of

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Completion:
    """A part of the answer to a chat, or all of it.

    tool_calls: in OpenAI's form. finish: why the model stopped, "" if it did not say. usage: input and output tokens.
    """

    text: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    finish: str = ""
    usage: tuple[int, int] | None = None


class ServedObject(Protocol):
    """An object as routes see it.

    input, output: types that pydantic checks, and makes schemas of. configurable: keys of ``config["configurable"]``
    that clients may set. configured: False if calls take no config.
    """

    name: str
    input: Any
    output: Any
    configurable: frozenset[str]
    configured: bool

    def restored(self, checked: Any, raw: Any) -> Any:
        """Returns an input as the object takes it. checked: what pydantic has made of ``raw``."""

    async def answer(self, given: Any, config: Config, kwargs: Mapping[str, Any]) -> Any:
        """Returns the answer to one input."""

    async def answers(self, given: Sequence[Any], configs: Sequence[Config], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the answers to several inputs, in their order."""

    def stream(self, given: Any, config: Config, kwargs: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Yields the pieces of an answer."""

    def chat_input(self, messages: Sequence[Mapping[str, Any]], form: str) -> Any:
        """Returns OpenAI's messages as an input. form: ``ServerSettings.chat_input``.

        Raises Refused for what the object cannot take, and for messages that are not valid.
        """

    async def complete(self, given: Any, config: Config) -> Completion:
        """Returns the answer to a chat."""

    def completing(self, given: Any, config: Config) -> AsyncIterator[Completion]:
        """Yields the answer to a chat in parts: texts together are the text of ``complete``."""


@dataclass(frozen=True)
class ServedApp:
    """What ``MODULE:NAME`` names. make: returns it, or a new one. ingest: the module's function for documents."""

    served: ServedObject
    obj: Any
    ingest: Callable[..., Any] | None = field(default=None)


def found(name: str) -> ServedApp:
    """Returns the object that ``module:name`` names, optimized. Raises UsageError if it cannot be served."""
    from fineflow.checking import named

    make, obj = named(name)
    ingest = getattr(sys.modules[name.partition(":")[0]], "ingest", None)
    return app_of(obj, make, ingest=ingest if callable(ingest) else None, name=name.rpartition(":")[2], where=name)


def app_of(
    obj: Any,
    make: Callable[[], Any] | None = None,
    *,
    ingest: Callable[..., Any] | None = None,
    name: str = "",
    where: str = "the object",
) -> ServedApp:
    """Returns an object as an app; optimizes it. make: makes another one for each conversation of a chat engine. name:
    of the model in OpenAI's routes; default: of its class. where: for messages.

    Raises: UsageError for an object that cannot be served.
    """
    inner = obj.__wrapped__ if is_optimized(obj) else obj
    name = name or name_of(inner)
    runnables, index = sys.modules.get("langchain_core.runnables"), sys.modules.get("llama_index.core")
    if runnables is not None and isinstance(inner, runnables.Runnable):
        from fineflow.serving.runnables import ServedRunnable

        fast = _optimized(obj)
        return ServedApp(ServedRunnable(fast, name), fast, ingest)
    if index is not None and not isinstance(inner, type) and (hasattr(inner, "aquery") or hasattr(inner, "achat")):
        from fineflow.serving.index_engines import served_engine

        fast = _optimized(obj)
        if engine := served_engine(fast, name, make and (lambda: fast if (new := make()) is obj else _optimized(new))):
            return ServedApp(engine, fast, ingest)
    kind = f"the class {inner.__name__}" if isinstance(inner, type) else f"of class {type(inner).__name__}"
    raise UsageError(
        f"{where} is {kind}; expected a LangChain Runnable, a LangGraph graph, a query or chat engine of "
        "LlamaIndex, or a function without arguments that makes one"
    )


def _optimized(obj: Any) -> Any:
    return obj if is_optimized(obj) else fineflow.optimize(obj)
