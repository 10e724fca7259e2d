"""LangChain's side of component calls inside user functions: runnables that a function invokes."""

from __future__ import annotations

import asyncio
import copy as copying
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableBinding, RunnableLambda, RunnableSequence
from langchain_core.runnables.config import var_child_runnable_config
from pydantic import SecretStr

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.core.calls_ahead import CallAhead, MethodAhead
from fineflow.adapters.core.entry_wrappers import claims_of, looked_through, looks_through
from fineflow.adapters.core.fresh_components import Fresh
from fineflow.adapters.core.inner_calls import InnerCalls
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.core.recognition import find, of_package, owner
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain import several_prompts
from fineflow.adapters.langchain.calls import is_constant
from fineflow.adapters.langchain.lowering import parsers, prompts
from fineflow.adapters.langchain.lowering.pydantic_fields import plain_model
from fineflow.adapters.langchain.user_functions import ENTRIES, composite, functions_of, methods_of
from fineflow.adapters.langchain.user_functions import looked_through as looked_through_in
from fineflow.adapters.lookahead import UNKNOWN, Stop
from fineflow.ir import Effect, Primitive
from fineflow.ir.spec import everything

_READING = frozenset({Effect.PURE, Effect.READ, Effect.EXTERNAL})
_FORMATTING = frozenset({"format", "format_messages", "format_prompt"})
_BINDING = frozenset({"bind", "with_structured_output"})
_MADE_OF = ("langchain_core.prompts.", "langchain_core.output_parsers.")


class _Sequence(NamedTuple):
    """``prompt | llm`` made by the function itself: stock's is another object in every call, of the same steps."""

    steps: tuple[Any, ...]


class Runnables:
    """LangChain's ``Components``. trusting: believes what interfaces of the user's own classes say."""

    def __init__(self, *, trusting: bool = False) -> None:
        self._trusting = trusting

    def knows(self, obj: Any) -> bool:
        return self._of_runnable(obj) or methods_of(obj) is not None

    def judges(self, obj: Any, name: str) -> bool:
        if type(obj) in (_Sequence, Fresh):
            return True
        defined = inspect.getattr_static(type(obj), name, None)
        if name in getattr(obj, "__dict__", {}) or not isinstance(defined, FunctionType):
            return False
        return name in ENTRIES or name in (methods_of(obj) or ()) or of_package(owner(type(obj), name).__module__)

    def _of_runnable(self, obj: Any) -> bool:
        return issubclass(type(obj), Runnable) or type(obj) in (_Sequence, Fresh)

    def composite(self, obj: Any) -> bool:
        return composite(obj)

    def steps(self, obj: Any) -> Sequence[Any] | None:
        return obj.steps if type(obj) is _Sequence else None

    def key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not self._of_runnable(obj):
            return self._method_key(obj, name, args, named)
        if name not in ENTRIES:
            raise Stop(f"calls .{name}() of a runnable")
        given = dict(zip(("input", "config"), args, strict=False)) | dict(named)
        if "input" not in given or len(args) > 2 or not given.keys() <= {"input", "config"}:
            raise Stop(f"calls .{name}() with arguments of its own")
        config = given.get("config")
        if config is not None and config is not UNKNOWN and not isinstance(config, dict):
            raise Stop(f"calls .{name}() with something else than a config")
        return given["input"]

    def _method_key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if name not in (methods_of(obj) or ()) or named.get("callbacks") is not None:
            raise Stop(f"calls .{name}() of a {type(obj).__name__}")
        believed = self._trusting or of_package(owner(type(obj), name).__module__)
        if not believed or name in getattr(obj, "__dict__", {}):
            raise Stop(f"calls .{name}() of a {type(obj).__name__}, a class of the user's own")
        return (*args, *named, *named.values())

    def reads_only(self, part: Planned, key: Any) -> bool:
        plan = part._self_current(key is not UNKNOWN and is_constant(key))
        return plan is not None and all(p.effects.kind in _READING or _parses(p) for p in everything(plan.p_graph))

    def computes(self, obj: Any) -> bool:
        kind = type(obj)
        if kind is RunnableLambda:
            return plain_model(_structured(obj))
        return (issubclass(kind, BasePromptTemplate) and find(prompts.ROWS, obj) is not None) or (
            issubclass(kind, BaseOutputParser) and find(parsers.ROWS, obj) is not None
        )

    def computed(self, part: Planned, key: Any) -> Any:
        if not self.reads_only(part, key):
            return UNKNOWN
        obj: Any = part.__wrapped__
        if isinstance(obj, RunnableLambda):
            return obj.func(key).model_copy(deep=True)
        if isinstance(obj, BasePromptTemplate):
            return obj._format_prompt_with_error_handling(_plain(key))
        message = isinstance(key, BaseMessage)
        made: Any = ChatGeneration(message=key) if message else Generation(text=_plain(key))
        return obj.parse_result([made])

    def invocation(self, part: Any, name: str, args: Any, named: Any, limit: asyncio.Semaphore) -> Invocation:
        given = dict(zip(("input", "config"), args, strict=False)) | dict(named)
        made: Invocation = part._self_chain_call(
            name, given["input"], given.get("config"), {}, sync=name == "invoke", limit=limit
        )
        return made

    def method(self, obj: Any, name: str, args: Any, named: Any, limit: asyncio.Semaphore) -> CallAhead:
        return MethodAhead(getattr(obj, name), args, named, limit)

    def limit(self) -> int | None:
        return (var_child_runnable_config.get() or {}).get("max_concurrency")

    def joined(self, left: Any, right: Any) -> Any:
        if not (self.knows(left) and self.knows(right)):
            raise Stop("makes a sequence of something that is no runnable")
        return _Sequence((*(self.steps(left) or (left,)), *(self.steps(right) or (right,))))

    def made(self, kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not (isinstance(kind, type) and kind.__module__.startswith(_MADE_OF)):
            raise Stop(f"makes a {getattr(kind, '__name__', 'new object')}")
        return (getattr(kind, name) if name else kind)(*args, **named)

    def fresh(self, kind: Any) -> bool:
        return isinstance(kind, type) and issubclass(kind, BaseLanguageModel) and of_package(kind.__module__)

    def derives(self, obj: Any, name: str) -> bool:
        kind = obj.kind if isinstance(obj, Fresh) else type(obj)
        own = getattr(obj, "__dict__", {})
        if issubclass(kind, BasePromptTemplate):
            return name in _FORMATTING and name not in own and self.computes(obj)
        believed = issubclass(kind, BaseChatModel) and of_package(owner(kind, name).__module__)
        return believed and name in _BINDING and name not in own

    def derived(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if isinstance(obj, BasePromptTemplate):
            return getattr(obj, name)(*map(_plain, args), **{key: _plain(value) for key, value in named.items()})
        if not all(is_plain(each) or plain_model(each) for each in (*args, *named.values())):
            raise Stop(f"calls .{name}() of a model with more than plain data")
        steps = tuple(_flattened(getattr(obj, name)(*args, **named)))
        if not all(isinstance(each, RunnableBinding) or self.computes(each) for each in steps):
            raise Stop(f"calls .{name}() of a model, and more than the model and a parser result")
        return steps[0] if len(steps) == 1 else _Sequence(steps)

    def same(self, one: Any, other: Any, made: Sequence[Any]) -> bool:
        kind = type(one)
        if type(other) is not kind:
            return False
        if not issubclass(kind, RunnableBinding):
            return any(one is each for each in made) and _alike(one, other)
        if one.bound is not other.bound and not self.same(one.bound, other.bound, made):
            return False
        plain = not (one.config or other.config or one.config_factories or other.config_factories)
        return plain and bool(one.kwargs == other.kwargs)


def _alike(one: Any, other: Any) -> bool:
    """Returns True if two models have equal settings. What is no data, such as a client, comes from the settings."""
    for name in type(one).model_fields:
        left, right = getattr(one, name), getattr(other, name)
        if type(left) is not type(right):
            return False
        if left is not right and (is_plain(left) or isinstance(left, SecretStr)) and left != right:
            return False
    return True


def _structured(step: Any) -> Any:
    return parsers.structured_model(step.__dict__.get("func"))


def _flattened(chain: Any) -> Iterator[Any]:
    """Yields the steps of a sequence, without bindings that bind nothing."""
    if isinstance(chain, RunnableSequence):
        for step in chain.steps:
            yield from _flattened(step)
    elif isinstance(chain, RunnableBinding) and not (chain.kwargs or chain.config or chain.config_factories):
        yield from _flattened(chain.bound)
    else:
        yield chain


def _parses(p: Primitive) -> bool:
    """Returns True for a parser of a package, which stock runs."""
    kind = type(p.component)
    if kind is RunnableLambda:
        return _structured(p.component) is not None
    return issubclass(kind, BaseOutputParser) and of_package(kind.__module__)


def _plain(value: Any) -> Any:
    if not is_plain(value):
        raise TypeError(f"a {type(value).__name__} is not plain data")
    return value


_RUNNABLES = {trusting: Runnables(trusting=trusting) for trusting in (False, True)}


def looking_through(step: Any, site: Site) -> Any:
    """Returns an opaque step in whose own functions component calls run ahead."""
    if not site.looked_through:
        return step
    several_prompts.install()
    found = looked_through_in(step)
    for _, each in found.values():
        for component in each.components.values():
            if isinstance(component, Runnable):  # one call of it may gain by itself
                for name in ENTRIES:
                    claims_of(type(component), name)
    if type(step) is RunnableLambda:
        copy = copying.copy(step)
        for name, func in functions_of(step).items():
            copy.__dict__[name] = looked_through(func, partial(_begin, site, func))
        return copy
    for obj, _ in found.values():
        for name in functions_of(obj):  # the user's object itself must run: its identity and its state are the user's
            looks_through(type(obj), name)
        site.shadows.inside[id(obj)] = partial(_begin, site)
    return step


def _begin(site: Site, func: Any, args: Any, named: Any) -> InnerCalls | None:
    here = site.here
    if here is None or not site.shadows.leaves:
        return None
    hidden = {name: UNKNOWN for name in named if name == "run_manager"}  # stock's, for the callbacks of this call
    given = {**named, **hidden}
    shadows = site.shadows
    components = _RUNNABLES[shadows.options.trust == "interfaces"]
    return InnerCalls(
        components, here, shadows.component, shadows.arguments, func, args, given, options=shadows.options
    )
