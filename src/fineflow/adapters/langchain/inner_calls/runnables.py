"""LangChain's ``Components``: runnables that a function invokes, and objects with methods that it calls."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

from langchain_core.documents import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableLambda, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_core.vectorstores import VectorStore

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.invocation import is_async
from fineflow.adapters.core.proxy import Planned, merged
from fineflow.adapters.core.trust import of_packages_class
from fineflow.adapters.inner_calls.calls_ahead import CallAhead, MethodAhead, graph_ahead
from fineflow.adapters.inner_calls.components import Components, Given
from fineflow.adapters.inner_calls.fresh_components import Fresh
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.batch_ahead import BatchAhead, batch_of
from fineflow.adapters.langchain.calls import ChainCall, Streams, is_constant
from fineflow.adapters.langchain.inner_calls import composed as composition
from fineflow.adapters.langchain.inner_calls.chain_calls import ASKED
from fineflow.adapters.langchain.inner_calls.embedded_texts import embedded
from fineflow.adapters.langchain.inner_calls.inner_functions import inner_of
from fineflow.adapters.langchain.inner_calls.made_components import alike, computes, made, makes, plain, same
from fineflow.adapters.langchain.lowering.list_functions import judged
from fineflow.adapters.langchain.lowering.package_functions import reads_only, value_of
from fineflow.adapters.langchain.user_functions import BATCHES, ENTRIES, STREAMS, composite, methods_of
from fineflow.adapters.lookahead import UNKNOWN, Stop
from fineflow.adapters.lookahead.values import FOUND, HELD, unknown
from fineflow.ir import Effect, Primitive
from fineflow.runtime.queues.in_vain import bounded

_NUMBERS = (int, float, bool)
_READING = frozenset({Effect.PURE, Effect.READ, Effect.EXTERNAL})
_MADE = frozenset({*composition.MADE, Fresh})
_ANSWERS = (BaseLanguageModel, BaseOutputParser, BasePromptTemplate, Embeddings)  # with something new
_SEARCHES = (BaseRetriever, VectorStore, BaseDocumentCompressor)  # with a new list of what they may hold


@functools.lru_cache(1024)
def _is_runnable(kind: Hashable) -> bool:
    return isinstance(kind, type) and issubclass(kind, Runnable)


class Runnables(Components):
    """LangChain's ``Components``.

    ahead_of: returns the proxy of a component that may run ahead. trusting: believes what interfaces of the user's own
    classes say. streams_models: stock streams chat models.
    """

    composite, parts, made = staticmethod(composite), staticmethod(composition.parts_of), staticmethod(made)
    composed, embedded, same = staticmethod(composition.composed), staticmethod(embedded), staticmethod(same)
    alike, joined = staticmethod(alike), staticmethod(composition.joined)
    handed_on = staticmethod(composition.handed_on)

    def __init__(
        self,
        ahead_of: Callable[[Any], Planned | None] = lambda obj: None,
        *,
        trusting: bool = False,
        streams_models: Streams = "",
    ) -> None:
        self._ahead_of = ahead_of
        self._trusting = trusting
        self._streams_models = streams_models

    def part(self, obj: Any) -> Planned | None:
        return self._ahead_of(obj)

    def knows(self, obj: Any) -> bool:
        return self._of_runnable(obj) or methods_of(obj) is not None

    def judges(self, obj: Any, name: str) -> bool:
        if type(obj) in _MADE:
            return True
        defined = inspect.getattr_static(type(obj), name, None)
        if name in getattr(obj, "__dict__", {}) or not isinstance(defined, FunctionType):
            return False
        return (
            name in ENTRIES | BATCHES | STREAMS or name in (methods_of(obj) or ()) or of_packages_class(type(obj), name)
        )

    def _of_runnable(self, obj: Any) -> bool:
        kind = type(obj)
        return kind in _MADE or _is_runnable(cast(Hashable, type(merged(obj))))

    def fresh(self, kind: Any) -> bool:
        return isinstance(kind, type) and issubclass(kind, BaseLanguageModel) and of_package(kind.__module__)

    def steps(self, obj: Any) -> Sequence[Any] | None:
        if type(obj) is composition.MadeSequence:
            return obj.steps
        # Functions that may do anything are looked through; other sequences run ahead as a whole.
        opaque = type(obj) is RunnableSequence and any(map(_is_opaque, obj.steps))
        return obj.steps if opaque else None

    def key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if not self._of_runnable(obj):
            return self._method_key(obj, name, args, named)
        made_here = type(obj) in _MADE
        if not made_here and name in getattr(obj, "__dict__", {}):
            raise Stop(f"calls .{name}() of a runnable")
        if name in ASKED and not made_here:
            return _messages(name, *args, **named)
        if name in BATCHES and not made_here:
            return self._batch_key(name, args, named)
        if name not in ENTRIES | STREAMS:
            raise Stop(f"calls .{name}() of a runnable")
        given = dict(zip(("input", "config"), args, strict=False)) | dict(named)
        if "input" not in given or len(args) > 2 or not given.keys() <= {"input", "config"}:
            raise Stop(f"calls .{name}() with arguments of its own")
        config = given.get("config")
        if config is not None and not unknown(config) and not isinstance(config, dict):
            raise Stop(f"calls .{name}() with something else than a config")
        return given["input"]

    def compared(self, obj: Any, key: Any) -> Arguments:
        return Arguments(key)

    def told_apart(self, obj: Any, one: Given, other: Given) -> bool:
        if not isinstance(obj, Runnable):
            return False
        left, right = _configurable(*one), _configurable(*other)
        names = {name for name in left.keys() | right.keys() if not _alike(left.get(name), right.get(name))}
        return bool(names) and any(spec.id in names for spec in obj.config_specs)

    def _batch_key(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        given = dict(zip(("inputs", "config"), args, strict=False)) | dict(named)
        inputs = given.get("inputs", UNKNOWN)
        if len(args) > 2 or not given.keys() <= {"inputs", "config", "return_exceptions"}:
            raise Stop(f"calls .{name}() with arguments of its own")
        if not unknown(inputs) and not (type(inputs) is list and inputs):
            raise Stop(f"calls .{name}() with something else than a list of inputs")
        return (inputs, bool(given.get("return_exceptions")))

    def _method_key(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if name not in (methods_of(obj) or ()) or named.get("callbacks") is not None:
            raise Stop(f"calls .{name}() of a {type(obj).__name__}")
        believed = self._trusting or of_packages_class(type(obj), name)
        if not believed or name in getattr(obj, "__dict__", {}):
            raise Stop(f"calls .{name}() of a {type(obj).__name__}, a class of the user's own")
        return (*args, *named, *named.values())

    def reads_only(self, part: Planned, name: str, key: Any) -> bool:
        if name in BATCHES and key is not UNKNOWN:
            key = key[0][0]
        plan = part._self_current(key is not UNKNOWN and is_constant(key))
        return plan is not None and plan.all_are(reads)

    def computes(self, obj: Any, name: str) -> bool:
        return name in ENTRIES and computes(obj)

    def computed(self, part: Planned, key: Any) -> Any:
        if not self.reads_only(part, "invoke", key):
            return UNKNOWN
        obj: Any = part.__wrapped__
        if isinstance(obj, RunnableLambda | RunnableGenerator):
            return value_of(obj, key, sync=getattr(obj, "_transform", None) is not None or "func" in vars(obj))
        if isinstance(obj, BasePromptTemplate):
            return obj._format_prompt_with_error_handling(plain(key))
        message = isinstance(key, BaseMessage)
        made: Any = ChatGeneration(message=key) if message else Generation(text=plain(key))
        return obj.parse_result([made])

    def invocation(self, part: Any, name: str, args: Any, named: Any, limit: asyncio.Semaphore | None) -> Any:
        def one(input: Any, config: Any, limit: asyncio.Semaphore | None) -> Any:
            sync = name in ("invoke", "batch")
            return part._self_chain_call("invoke" if sync else "ainvoke", input, config, {}, sync=sync, limit=limit)

        if name in BATCHES:
            return batch_of(name, args, named, limit, one)
        if name in ASKED:
            return _asked(part.__wrapped__, name, args, named, limit, streams_models=self._streams_models)
        given = dict(zip(("input", "config"), args, strict=False)) | dict(named)
        return one(given["input"], given.get("config"), limit)

    def ahead(self, part: Planned, name: str, invocation: Any) -> CallAhead | None:
        if name not in BATCHES:
            return graph_ahead(part, invocation)
        # Stock's batch begins no step of any input behind one that has failed.
        return None if bounded() and not invocation.return_exceptions else BatchAhead(part, invocation)

    def method(self, obj: Any, name: str, args: Any, named: Any, limit: asyncio.Semaphore | None) -> CallAhead:
        return MethodAhead(getattr(obj, name), args, named, limit)

    def streams(self, name: str) -> bool:
        return name in STREAMS

    def awaits(self, name: str) -> bool:
        return is_async(name) and name not in STREAMS

    def result(self, obj: Any, name: str) -> Any:
        while isinstance(obj, RunnableSequence | RunnableBindingBase | composition.MadeSequence):
            obj = obj.bound if isinstance(obj, RunnableBindingBase) else obj.steps[-1]
        kind = obj.kind if isinstance(obj, Fresh) else type(obj)
        if not of_package(kind.__module__):
            return HELD
        return UNKNOWN if issubclass(kind, _ANSWERS) else FOUND if issubclass(kind, _SEARCHES) else HELD

    def seen(self, name: str, value: Any) -> Any:
        return value.generations[0].message if name in ASKED and value.generations else value

    def limit(self) -> int | None:
        return (var_child_runnable_config.get() or {}).get("max_concurrency")

    def inner(self, obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if type(obj) is composition.MadeFunction:
            if name in STREAMS:  # it runs while the stream is read
                raise Stop(f"calls .{name}() of a chain with a function")
            return composition.function_in(obj, name, args[0])
        if type(obj) in _MADE or _is_packaged(obj):
            return None
        return inner_of(obj, name, args, named)

    def makes(self, obj: Any, name: str) -> bool:
        if type(obj) in composition.MADE:
            return name in composition.COMPOSES
        return makes(obj.kind if isinstance(obj, Fresh) else obj, name)


def _is_opaque(step: Any) -> bool:
    if isinstance(step, BaseTool):
        return True
    if type(step) is not RunnableLambda or _is_packaged(step):
        return False
    return not judged(step.__dict__.get("func")).pure


def _is_packaged(step: Any) -> bool:
    """Returns True for a step over a package's function that changes nothing."""
    return type(step) is RunnableLambda and "afunc" not in vars(step) and reads_only(step.func)


def reads(p: Primitive) -> bool:
    """Returns True for steps that change nothing: by their effects, or as what stock runs of packages."""
    if p.effects.kind in _READING or p.meta.get("reads_only"):
        return True
    kind = type(p.component)
    return issubclass(kind, BaseOutputParser) and of_package(kind.__module__)


def _messages(name: str, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
    """Returns what requests to a chat model are compared by. Raises Stop."""
    if stop is not None or options:
        raise Stop(f"calls .{name}() with settings")
    if type(messages) is list and any(type(each.content) is not str for each in messages if not unknown(each)):
        raise Stop(f"calls .{name}() with more than text")
    return messages


def _asked(model: Any, name: str, args: Any, named: Any, limit: Any, *, streams_models: Streams) -> ChainCall:
    """Returns the call that ``generate`` or ``agenerate`` of a chat model makes for one of its prompts."""
    sync = name == ASKED[0]
    return ChainCall(
        "invoke" if sync else "ainvoke",
        model,
        args[0],
        None,
        lambda runs: getattr(runs, name)(*args, **named),
        sync=sync,
        streams_models=streams_models,
        limit=limit,
    )


def _configurable(args: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what chooses between variants of a runnable: of the config that a call gets, and of the run around it."""
    config = named.get("config", args[1] if len(args) > 1 else None)
    around = var_child_runnable_config.get() or {}
    own = config.get("configurable") if type(config) is dict else None
    return {**(around.get("configurable") or {}), **(own if type(own) is dict else {})}


def _alike(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):  # a text that was generated may be of a subclass
        return str.__eq__(left, right)
    return left is right or (type(left) is type(right) and type(left) in _NUMBERS and bool(left == right))
