"""Components that a user function makes itself, in every call anew: when two of them are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.prompts.chat import BaseChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from pydantic import SecretStr

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.recognition import find
from fineflow.adapters.core.trust import of_packages_class
from fineflow.adapters.langchain.inner_calls.composed import (
    MadeParallel,
    MadeSequence,
    coerced,
    components_in,
    stands_for,
    steps_of,
)
from fineflow.adapters.langchain.inner_calls.made_chains import made_chain, makes_chains
from fineflow.adapters.langchain.lowering import package_functions, parsers, prompts
from fineflow.adapters.lookahead import Stop

_MADE_OF = ("langchain_core.prompts.", "langchain_core.output_parsers.")
_FORMATS = frozenset({"format", "format_messages", "format_prompt", "partial"})
_PARSES = frozenset({"parse", "get_format_instructions"})
_MAKES: tuple[tuple[type, frozenset[str]], ...] = (
    (BasePromptTemplate, _FORMATS),
    (BaseOutputParser, _PARSES),
    (BaseLanguageModel, frozenset({"bind", "with_structured_output", "bind_tools", "with_config"})),
    (VectorStore, frozenset({"as_retriever"})),
    (Runnable, frozenset({"bind", "with_config", "with_retry", "with_fallbacks"})),
)
_REBUILT = (
    *(RunnableSequence, RunnableBindingBase, RunnableWithFallbacks, VectorStoreRetriever),
    *(BasePromptTemplate, BaseOutputParser),
)
_DEPTH = 8  # of components inside components


def makes(obj: Any, name: str) -> bool:
    """Returns True for methods that only compute, or make a new component. obj: a component or its class."""
    own = obj if isinstance(obj, type) else type(obj)
    return any(issubclass(own, kind) and name in names for kind, names in _MAKES)


def made(kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Returns what a class, or one of the methods above, makes of known arguments. Raises Stop."""
    if not isinstance(kind, type):
        return _of_component(kind, name, args, named)
    if makes_chains(kind):
        return made_chain(kind, name, args, named)
    if not kind.__module__.startswith(_MADE_OF):
        raise Stop(f"makes a {getattr(kind, '__name__', 'new object')}")
    return (getattr(kind, name) if name else kind)(*args, **named)


def _of_component(obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    if not of_packages_class(type(obj), name) or name in getattr(obj, "__dict__", {}):
        raise Stop(f"calls .{name}() of a {type(obj).__name__}, a class of the user's own")
    if name in _FORMATS | _PARSES and not _is_plain_template(obj):
        raise Stop(f"calls .{name}() of a {type(obj).__name__} that may run code")
    value = getattr(obj, name)(*args, **named)
    if name != "with_structured_output":
        return value
    found = _taken_apart(value)
    if not all(isinstance(part, RunnableBindingBase | BaseOutputParser) for part in components_in(found)):
        raise Stop("asks for structured output that is more than the model's and a parser's")
    return found


def computes(obj: Any) -> bool:
    """Returns True for a component that only computes: a prompt, a parser, a function of a package."""
    kind = type(obj)
    if kind in (RunnableLambda, RunnableGenerator):
        return package_functions.computes(obj)
    return (issubclass(kind, BasePromptTemplate) and find(prompts.ROWS, obj) is not None) or (
        issubclass(kind, BaseOutputParser) and find(parsers.ROWS, obj) is not None
    )


def _taken_apart(obj: Any) -> Any:
    """Returns a chain that a package has composed as one that the walk has, without bindings that bind nothing."""
    if type(obj) is RunnableSequence:
        return MadeSequence(tuple(step for each in obj.steps for step in steps_of(_taken_apart(each))))
    if type(obj) in (RunnableParallel, RunnableAssign):
        branches = (obj.mapper if type(obj) is RunnableAssign else obj).steps__
        parts = {name: _taken_apart(part) for name, part in branches.items()}
        return MadeParallel(parts, merged=type(obj) is RunnableAssign)
    if type(obj) is RunnableWithFallbacks:
        return _taken_apart(obj.runnable)  # a walk ends where that fails
    if isinstance(obj, RunnableBindingBase) and not (obj.kwargs or obj.config or obj.config_factories):
        return _taken_apart(obj.bound)
    return coerced(obj.func) if type(obj) is RunnableLambda and not package_functions.computes(obj) else obj


def _is_plain_template(obj: Any) -> bool:
    """Returns True for prompts without functions in them, and for parsers of packages."""
    if isinstance(obj, BaseOutputParser):
        return of_package(type(obj).__module__)
    parts = [obj, *(obj.messages if isinstance(obj, BaseChatPromptTemplate) and hasattr(obj, "messages") else ())]
    functions = [value for part in parts for value in (getattr(part, "partial_variables", None) or {}).values()]
    return not any(map(callable, functions))


def same(left: Any, right: Any, made: Sequence[Any] = (), depth: int = 0) -> bool:
    """Returns True if two components are made of the same parts, in the same way.

    made: models that stand for others of the same settings.
    """
    if left is right or (any(left is each for each in made) and _alike(left, right)):
        return True
    kind = type(left)
    if kind is not type(right) or depth > _DEPTH:
        return False
    if is_plain(left) and is_plain(right):
        return bool(left == right)
    if kind in (list, tuple):
        return len(left) == len(right) and all(same(a, b, made, depth + 1) for a, b in zip(left, right, strict=True))
    if kind is dict:
        return bool(left.keys() == right.keys()) and all(same(left[key], right[key], made, depth + 1) for key in left)
    if isinstance(left, _REBUILT) and of_package(kind.__module__):
        return same(vars(left), vars(right), made, depth + 1)
    if isinstance(left, FunctionType | MethodType):  # such as the method of a model that a binding calls
        return bool(left == right)
    return False


def alike(made: Any, obj: Any) -> bool:
    """Returns True if stock's object may be the one that stands for something made here: it has the same parts."""
    return type(obj) is stands_for(made) and same(components_in(made), components_in(obj))


def _alike(left: Any, right: Any) -> bool:
    """Returns True if two models have equal settings. What is no data, such as a client, comes from the settings."""
    if type(left) is not type(right):
        return False
    for name in type(left).model_fields:
        one, other = getattr(left, name), getattr(right, name)
        if type(one) is not type(other):
            return False
        if one is not other and (is_plain(one) or isinstance(one, SecretStr)) and one != other:
            return False
    return True


def plain(value: Any) -> Any:
    """Returns plain data. Raises TypeError for anything else."""
    if not is_plain(value):
        raise TypeError(f"a {type(value).__name__} is not plain data")
    return value
