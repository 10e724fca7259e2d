"""Functions of packages that stand in chains, such as those in which structured output ends: judged by reading them.

They are read as the user's own are, with two differences. A ``raise`` is no guard of the user's: as the exception of a
package's parser, it is met when stock gets there. And what a pydantic model of the user's does when it validates is
believed to change nothing, so that stock's call of the function keeps no other call waiting.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator
from dataclasses import replace
from types import FunctionType
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langchain_core.runnables.utils import accepts_config, accepts_run_manager

from fineflow.adapters.analysis import Verdict, passes_on, trusting_models
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.trust import called
from fineflow.adapters.langchain.kernels.common import LeftToStock, plain
from fineflow.adapters.langchain.lowering.declared import functions_of
from fineflow.adapters.langchain.lowering.list_functions import judged


def packaged(func: Any) -> bool:
    """Returns True for a function that an installed package defines."""
    if type(func) not in (FunctionType, functools.partial):
        return False
    module = getattr(called(func), "__globals__", {}).get("__name__")  # a wrapper may have the name of what it wraps
    return isinstance(module, str) and of_package(module)


def reads_only(func: Any) -> bool:
    """Returns True for a package's function that changes nothing, whatever models it makes."""
    if not packaged(func):
        return False
    return judged(func).pure or trusting_models(func).pure


def judged_generator(step: RunnableGenerator[Any, Any]) -> Verdict:
    """Returns the verdict on a step whose generators, sync and async, pass on what they get, and may raise."""
    functions = functions_of(step)
    if any(accepts_config(func) or accepts_run_manager(func) for func in functions):
        return Verdict(False, "takes the run's config")
    found = [passes_on(func) for func in functions]
    worst = next((each for each in found if not (each.pure or each.unordered)), None)
    if worst is None:
        worst = next((each for each in found if each.unordered), found[0])
    return replace(
        worst,
        assumes=tuple(check for each in found for check in each.assumes),
        raises=any(each.raises for each in found),
    )


def computes(step: Any) -> bool:
    """Returns True for a step over a package's function that only computes."""
    if type(step) is RunnableLambda:
        func = step.__dict__.get("func")
        return "afunc" not in step.__dict__ and packaged(func) and judged(func).pure
    return type(step) is RunnableGenerator and all(map(packaged, functions_of(step))) and judged_generator(step).pure


def value_of(step: Any, given: Any, *, sync: bool = True) -> Any:
    """Returns what a step that computes makes of a value. Raises LeftToStock if that may run other code."""
    message = isinstance(given, BaseMessage) and of_package(type(given).__module__)
    if not message:
        plain(given)
    if type(step) is RunnableGenerator:
        _pass_on(step.__dict__, given, sync)
        return given
    value = step.func(given)
    # A message may hold the value itself, which belongs to stock's side, too.
    return copy.deepcopy(value) if value is not given and message else value


def _pass_on(functions: dict[str, Any], given: Any, sync: bool) -> None:
    """Has a generator pass on one value, as its own function does for calls of this kind."""
    if (func := functions.get("_transform" if sync else "_atransform")) is None:
        raise LeftToStock(f"only {'async' if sync else 'sync'} calls of it work")
    if sync:
        for _ in func(iter((given,))):
            pass
        return
    try:
        _all(func(_one(given))).send(None)  # it awaits nothing but its input
    except StopIteration:
        return
    raise LeftToStock("its generator awaits something else than its input")


async def _one(value: Any) -> AsyncIterator[Any]:
    yield value


async def _all(values: AsyncIterator[Any]) -> None:
    async for _ in values:
        pass
