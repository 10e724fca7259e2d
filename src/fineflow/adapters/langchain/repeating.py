"""Calls that are verified: made once more without handlers, and which parts of messages make the same answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

from langchain_core.callbacks.base import BaseCallbackManager
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableBinding
from langsmith.run_helpers import tracing_context
from wrapt import wrap_function_wrapper

from fineflow.adapters.analysis import asking
from fineflow.adapters.core.invocation import Unrepeatable, sync_name
from fineflow.adapters.core.proxy import merged
from fineflow.adapters.core.trust import of_packages_class
from fineflow.adapters.langchain.user_functions import functions_of, methods_of
from fineflow.declare import undeclared
from fineflow.ir import Op, Primitive
from fineflow.runtime.reruns import noted, repeating

_CALLED = frozenset({"invoke", "batch"})
_NOT_REPEATED = ("callbacks", "run_id")  # keys of a config
_BY_SERVER = frozenset({"id", "index", "signature", "encrypted_content"})  # keys of content blocks and tool calls
_CACHED = "answers of models are cached, so stock would repeat the first one"
_NO_SYNC = "Cannot invoke a coroutine function synchronously"  # langchain-core 1.7.2
_installed: list[bool] = []


def sync_method(entry: str, method: str) -> str:
    """Returns stock's sync method for an entry point. Raises Unrepeatable."""
    if get_llm_cache() is not None:
        raise Unrepeatable(_CACHED)
    if method not in ("invoke", "ainvoke", "stream", "astream") or method != entry:
        why = "a batch that runs step by step" if "batch" in method else "without callbacks there are no events"
        raise Unrepeatable(f"{method} is not repeated: {why}")
    return sync_name(method)


def settings_of(config: Any) -> Any:
    """Returns what counts of a config: all but handlers and the id of the run. Its values are not copied."""
    return config and {key: value for key, value in config.items() if key not in _NOT_REPEATED}


def silences() -> list[AbstractContextManager[Any]]:
    """Returns contexts without handlers and tracers."""
    if not _installed:
        _installed.append(True)
        wrap_function_wrapper("langchain_core.callbacks.manager", "_configure", _configure)
    return [tracing_context(enabled=False, parent=False)]


def _configure(configure: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """Stands for LangChain's function that makes the manager of every run (langchain-core 1.7.2)."""
    if not repeating.get():
        return configure(*args, **kwargs)
    noted()
    return _without_handlers(*args, **kwargs)


def _without_handlers(
    kind: Any,
    inheritable: Any = None,
    local: Any = None,
    inheritable_tags: Any = None,
    local_tags: Any = None,
    inheritable_metadata: Any = None,
    local_metadata: Any = None,
    **_: Any,
) -> Any:
    """Returns a manager without handlers, local and global ones; with tags and metadata, which components may read."""
    outer = inheritable if isinstance(inheritable, BaseCallbackManager) else kind(handlers=[])
    made = outer.copy() if isinstance(outer, kind) else kind(handlers=[], parent_run_id=outer.parent_run_id)
    made.add_tags(inheritable_tags or [])
    made.add_tags(local_tags or [], inherit=False)
    made.add_metadata(inheritable_metadata or {})
    made.add_metadata(local_metadata or {}, inherit=False)
    made.handlers, made.inheritable_handlers = [], []  # tracing libraries add theirs when a manager is made
    return made


def compared(value: Any) -> Mapping[str, Any] | None:
    """Returns what makes a message the same answer: kind, content, tool calls. Ids and usage differ in each request."""
    if not isinstance(value, BaseMessage):
        return None
    extra = {name: each for name, each in value.additional_kwargs.items() if name not in ("id", "tool_calls")}
    found = {"content": _content(value.content), "name": value.name, "additional_kwargs": extra}
    for name in ("tool_calls", "invalid_tool_calls"):
        if calls := getattr(value, name, None):
            found[name] = [{key: each for key, each in call.items() if key not in _BY_SERVER} for call in calls]
    return found


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    blocks = [each if isinstance(each, str) else _block(each) for each in content]
    return [each for each in blocks if each]


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in block.items() if key not in _BY_SERVER}


def sampled(p: Primitive) -> str:
    """Returns why equal requests may be answered differently: a model that is not known to answer at temperature 0."""
    if p.op is Op.PREFILL or p.op is Op.PARTIAL_PREFILL:
        return ""
    options = p.meta.get("options") or {}
    for model, bound in _models(p.component, options):
        found = bound.get("temperature", getattr(model, "temperature", None))
        kind = type(model).__name__
        if not isinstance(found, int | float):
            return f"the temperature of {kind} is not known"
        if found != 0:
            return f"{kind} answers at temperature {found:g}"
    return ""


def _models(component: Any, options: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yields the models of a component, and what is bound to them."""
    found = [component, *vars(component).values()] if hasattr(component, "__dict__") else []
    for each in found:
        bound = dict(options)
        while isinstance(each, RunnableBinding):
            bound, each = {**each.kwargs, **bound}, each.bound
        if isinstance(each, BaseLanguageModel):
            yield each, bound
        elif each is not component and isinstance(each, BaseDocumentCompressor):
            yield from _models(each, {})


def asked(step: Any) -> tuple[Sequence[Any], Callable[[], bool]] | str:
    """Returns the runnables that a step's own functions call, and a check that they still do.

    If they may do anything else that changes something, a reason. Only sync functions: a step is repeated by these.
    """
    own = [undeclared(step)] if isinstance(step, FunctionType) else functions_of(step).values()
    found = [asking(func, reads) for func in own if not inspect.iscoroutinefunction(func)]
    if not found:
        return "is a coroutine function" if isinstance(step, FunctionType) else ""
    if refused := [verdict.reason for verdict, _ in found if not verdict.pure]:
        return refused[0]
    called = [each for _, components in found for each in components if isinstance(each, Runnable)]
    return called, lambda: all(verdict.still_holds() for verdict, _ in found)


def reads(obj: Any, name: str) -> bool:
    """Returns True for methods of components that change nothing, or of which the plan of a runnable says whether.

    name: "" asks whether it is a component.
    """
    obj = merged(obj)
    names = _CALLED if isinstance(obj, Runnable) else methods_of(obj) or ()
    if not (names and name) or name in getattr(obj, "__dict__", {}):
        return bool(names) and not name
    return name in names and (isinstance(obj, Runnable) or of_packages_class(type(obj), name))


def unrepeatable(objects: Any) -> str:
    """Returns why calls may not be made once more: stock would take its answers from a cache."""
    models = (each for each in objects if isinstance(each, BaseLanguageModel))
    return _CACHED if any(each.cache for each in models) else ""


def async_only(error: Exception) -> bool:
    """Returns True if a sync method raised this because something in it has only an async one."""
    return isinstance(error, NotImplementedError) or (isinstance(error, TypeError) and _NO_SYNC in str(error))
