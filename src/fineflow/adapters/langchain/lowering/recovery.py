"""Lowers runnables with retries and fallbacks: the first attempt runs ahead; from the first failure on, stock runs."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables.fallbacks import RunnableWithFallbacks
from langchain_core.runnables.retry import RunnableRetry

from fineflow.adapters.core.builder import Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.structure import RUN, lower_binding, shadow_binding

_RETRYING = ("_invoke", "_ainvoke", "_batch", "_abatch", "_sync_retrying", "_async_retrying", "_patch_config")


def _lower_fallbacks(step: RunnableWithFallbacks[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol:
    with b.inside("runnable", ""):
        return b.lower(step.runnable, value)


def _shadow_fallbacks(step: RunnableWithFallbacks[Any, Any], site: Site) -> Any:
    return step.model_copy(update={"runnable": site.of(step.runnable, "runnable")})


ROWS = (
    Row(
        RunnableRetry,
        (*RUN, "_merge_configs", *_RETRYING),
        lower_binding,
        shadow_binding,
        reads=("bound", "kwargs", "config", "config_factories"),
    ),
    Row(
        RunnableWithFallbacks,
        (*RUN, "runnables"),
        _lower_fallbacks,
        _shadow_fallbacks,
        reads=("runnable",),
    ),
)
