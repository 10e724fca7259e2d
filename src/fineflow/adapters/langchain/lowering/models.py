"""Lowers chat models and LLMs to PREFILL and DECODE primitives, and claims their inner methods."""

from __future__ import annotations

import asyncio
import dis
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from types import MethodType
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.utils._signature import _signature_parameters  # private, guarded by the pinned major version

from fineflow.adapters.core.builder import MESSAGE, TEXT, Leaf, Symbol
from fineflow.adapters.core.claiming import never
from fineflow.adapters.core.recognition import NotLowered, Row, believed, keeps_promise
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain.arguments import settings
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.components.chat import TOOLS, ChatEngine
from fineflow.adapters.langchain.components.completion import EngineLLM
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.langchain.models.offline_vllm import engine_of, is_offline, one_at_a_time, together
from fineflow.adapters.langchain.models.servers import lane, served, warmed
from fineflow.adapters.langchain.resources import streamed
from fineflow.adapters.langchain.run_recorder import clean, starts_runs
from fineflow.ir import PURE, Effect, Effects, Op
from fineflow.runtime.call.claims import Entry
from fineflow.runtime.loop.bridge import Bridge
from fineflow.runtime.loop.submission import Unreachable

_INNER = ("_generate", "_agenerate", "_stream", "_astream", "_call", "_acall")


def model_effects(model: Any, b: ChainBuilder) -> Effects:
    """Returns the effects of calling the model.

    Raises NotLowered for models whose answers may depend on more than the arguments of the call.
    """
    if getattr(model, "rate_limiter", None) is not None:
        raise NotLowered("the model has a rate limiter, which counts calls when they are made")
    if isinstance(model, EngineLLM) or (isinstance(model, ChatEngine) and assembles(model)):
        return Effects(PURE.kind, "", "model in this process")
    if why := one_at_a_time(model):
        raise NotLowered(why)
    if starts_runs(model):
        raise NotLowered(f"{type(model).__name__} started a run of its own inside a call, which only stock can place")
    believed(model, _INNER, b)
    kind: Any = type(model)
    if why := keeps_state(kind):
        raise NotLowered(f"{type(model).__name__} {why}, so its answers may depend on the order of calls")
    return Effects(Effect.EXTERNAL, "", f"{type(model).__name__} calls out")


@lru_cache(maxsize=512)
def keeps_state(kind: Any) -> str:
    """Returns why a model class looks as if calls changed the model; "" if it does not.

    Looks for stores to attributes and for ``next()`` in the bytecode of the class's own inner methods.
    """
    for owner in kind.__mro__:
        if owner in (BaseChatModel, BaseLLM) or not owner.__module__:
            continue
        for name in _INNER:
            function = vars(owner).get(name)
            code = getattr(function, "__code__", None)
            if code is None:
                continue
            for instruction in dis.get_instructions(code):
                if instruction.opname == "STORE_ATTR" and _on_self(code, instruction):
                    return f"stores {instruction.argval!r} in {name}"
                if instruction.opname == "LOAD_GLOBAL" and instruction.argval == "next":
                    return f"calls next() in {name}"
    return ""


def _on_self(code: Any, store: Any) -> bool:
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.offset == store.offset:
            break
        before = instruction
    return before is not None and before.argval == (code.co_varnames or ("self",))[0]


def _lower_model(model: Any, value: Symbol, b: ChainBuilder) -> Symbol:
    if not isinstance(value, Leaf):
        raise NotLowered("its input is a dict, not a prompt")
    if value.kind == MESSAGE:
        raise NotLowered("it reads another model's message, to which stock adds an id later")
    effects = model_effects(model, b)
    options = {k: v for k, v in b.options.items() if not k.endswith("structured_output_format")}
    ours = isinstance(model, (ChatEngine, EngineLLM))
    queued = is_offline(model)
    engine = model.engine.name if ours else engine_of(model).name if queued else lane(model, options)
    inside = b.invoked or "llm_chain" in b.path  # stock invokes the model here even when the chain streams
    known = _prefix_cache(model, options)
    prompt = b.add(Op.PREFILL, {"prompt": value.ref}, component=model, engine=engine, effects=effects, **known)
    return b.add(
        Op.DECODE,
        {"cache": prompt.ref},
        component=model,
        engine=engine,
        effects=effects,
        kind=MESSAGE if isinstance(model, BaseChatModel) else TEXT,
        options=options,
        invoked=inside,
        foreign=not (ours or queued),
        **_order(model, options),
        only_streamed=_only_streamed(model),
        pieces=isinstance(model, BaseChatModel),
    )


def _order(model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metadata that lets requests send their priority to the server."""
    server = served(model, options)
    return {"urgent": True} if server is not None and server.server.priority else {}


def _prefix_cache(model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metadata that passes need of the prefix cache of the model's prompts, if they may use it."""
    if isinstance(model, (ChatEngine, EngineLLM)):
        engine: Any = model.engine
        tools = {name: options[name] for name in TOOLS if name in options}
        # Chat templates show tools before the messages: other tools make another beginning.
        cache = (id(engine), repr(tools)) if tools else id(engine)
        return {"block": engine.block_size, "cache": cache, "options": tools} if engine.can_prefill else {}
    server = served(model, options)
    if server is None:
        return {}
    if why := warmed(server):
        return {"whole_prompts": why}
    return {"block": server.server.block_size, "cache": id(server.server), "remote": True, "options": options}


def _only_streamed(model: Any) -> str:
    """Returns why a decode can be consumed in pieces only if stock streams it; "" if it always can."""
    if not assembles(model):
        name = type(model).__name__
        return f"the message that {name} generates may differ from the sum of its stream"
    return ""


def assembles(model: Any) -> bool:
    """Returns True if ``model.assemble(chunks)`` equals what the model generates without streaming."""
    return keeps_promise(model, "assemble", ("_generate", "_agenerate", "_stream", "_astream"))


def assembled(model: Any, entry: Entry, pieces: Sequence[Any]) -> Any:
    """Returns the result made of an entry's pieces: one object, which stock and the graph share."""
    if entry.whole is None:
        entry.whole = model.assemble(list(pieces))
    return entry.whole


def call_of(model: Any, prompt: Any, stop: Any, options: Any) -> tuple[Any, ...]:
    """Returns what calls of the model are compared by.

    Includes the settings of a model in this process: it may run before an earlier opaque step, which could change them.
    """
    ours = isinstance(model, (ChatEngine, EngineLLM))
    return prompt, stop, options, settings(model) if ours else None


def takes_manager(method: Any) -> bool:
    """Returns True if a method of a model takes a run manager."""
    if type(method) is MethodType:
        return _takes_manager(method.__func__)
    return "run_manager" in _signature_parameters(method)


@lru_cache(maxsize=512)
def _takes_manager(function: Any) -> bool:
    return "run_manager" in _signature_parameters(function)


def _manager(method: Any, run_manager: Any) -> dict[str, Any]:
    return {"run_manager": run_manager} if takes_manager(method) else {}


def _shadow_chat(model: Any, site: Site) -> Any:
    leaf = site.leaf
    model._serialized  # noqa: B018 - computed and kept on the user's model, as in stock, not once per call on the copy
    copy = model.model_copy()

    def as_result(entry: Entry) -> bool:
        return clean(entry) and (not entry.in_pieces or assembles(model))

    def as_chunks(entry: Entry) -> bool:
        return clean(entry) and entry.stream is not None

    def result_of(entry: Entry, result: Any) -> Any:
        return assembled(model, entry, result) if entry.in_pieces else result

    def _generate(messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        def own() -> Any:
            return model._generate(messages, stop=stop, **_manager(model._generate, run_manager), **kwargs)

        entry, result = claim(site, call_of(model, messages, stop, kwargs), own, as_result)
        if entry.reports is not None:
            entry.reports.replay(run_manager)
        return result_of(entry, result)

    async def _agenerate(messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        def own() -> Any:
            return model._agenerate(messages, stop=stop, **_manager(model._agenerate, run_manager), **kwargs)

        entry, result = await aclaim(site, call_of(model, messages, stop, kwargs), own, as_result)
        if entry.reports is not None:
            await entry.reports.areplay(run_manager)
        return result_of(entry, result)

    def _stream(messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        here, manager = site.here, {} if run_manager is None else {"run_manager": run_manager}
        if here is None:
            yield from model._stream(messages, stop=stop, **manager, **kwargs)
            return
        key = call_of(model, messages, stop, kwargs)
        entry, mine = here.claim_stream(leaf, key, as_chunks)
        given = 0
        if not mine:
            for chunk in _live(entry, here.bridge):
                given += 1
                yield chunk
            if _whole_stream(entry):
                return
            entry, _ = here.claim_stream(leaf, key, never)
        pieces = []
        with streamed(model, leaf) as counted:
            for chunk in here.paced(model._stream(messages, stop=stop, **manager, **kwargs), counted):
                pieces.append(chunk)
                if len(pieces) > given:
                    yield chunk
        entry.in_pieces = True
        here.bridge.post(entry.finish, pieces)

    async def _astream(messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        here, manager = site.here, {} if run_manager is None else {"run_manager": run_manager}
        if here is None:
            async for chunk in model._astream(messages, stop=stop, **manager, **kwargs):
                yield chunk
            return
        key = call_of(model, messages, stop, kwargs)
        entry, mine = here.aclaim_stream(leaf, key, as_chunks)
        given = 0
        if not mine:
            async with aclosing(_alive(entry)) as chunks:
                async for chunk in chunks:
                    given += 1
                    yield chunk
            if _whole_stream(entry):
                return
            entry = here.own_entry(leaf, key)
        pieces = []
        with streamed(model, leaf) as counted:
            source = here.apaced(model._astream(messages, stop=stop, **manager, **kwargs), counted)
            async with aclosing(source) as own:
                async for chunk in own:
                    pieces.append(chunk)
                    if len(pieces) > given:
                        yield chunk
        entry.in_pieces = True
        entry.finish(pieces)

    copy.__dict__.update(_generate=_generate, _agenerate=_agenerate, _stream=_stream, _astream=_astream)
    return copy


def _whole_stream(entry: Entry) -> bool:
    """Returns True if a stream that has ended was the component's from beginning to end."""
    return entry.for_claims and clean(entry)


def _live(entry: Entry, bridge: Bridge) -> Iterator[Any]:
    """Yields the graph's pieces as they arrive, up to a failure that is not the component's."""
    assert entry.stream is not None
    try:
        yield from bridge.items(entry.stream.read)
    except (GeneratorExit, KeyboardInterrupt, SystemExit):  # of this thread, not of the graph
        raise
    except Unreachable:
        entry.disown()
    except BaseException:
        if _whole_stream(entry):
            raise


async def _alive(entry: Entry) -> AsyncGenerator[Any, None]:
    """Async version of ``_live``, on the query's event loop."""
    assert entry.stream is not None
    try:
        async for chunk in entry.stream.read():  # needs no closing
            yield chunk
    except (GeneratorExit, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        if _whole_stream(entry):
            raise


def _shadow_llm(model: BaseLLM, site: Site) -> Any:
    model._serialized  # noqa: B018 - as above
    copy = model.model_copy()

    def whole(entry: Entry) -> bool:
        return clean(entry) and not entry.in_pieces

    def _generate(prompts: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        entry, result = claim(
            site,
            call_of(model, prompts, stop, kwargs),
            lambda: together(model)._generate(prompts, stop=stop, run_manager=run_manager, **kwargs),
            whole,
        )
        if entry.reports is not None:
            entry.reports.replay(run_manager)
        return result

    async def _agenerate(prompts: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        entry, result = await aclaim(
            site,
            call_of(model, prompts, stop, kwargs),
            lambda: together(model)._agenerate(prompts, stop=stop, run_manager=run_manager, **kwargs),
            whole,
        )
        if entry.reports is not None:
            await entry.reports.areplay(run_manager)
        return result

    copy.__dict__.update(_generate=_generate, _agenerate=_agenerate)
    return copy


_CHAT = (
    *RUN,
    "generate",
    "agenerate",
    "generate_prompt",
    "agenerate_prompt",
    "_generate_with_cache",
    "_agenerate_with_cache",
    "_convert_input",
)
_LLM = (*RUN, "generate", "agenerate", "generate_prompt", "agenerate_prompt", "_generate_helper", "_agenerate_helper")

ROWS = (
    Row(BaseChatModel, _CHAT, _lower_model, _shadow_chat, "llm", ("rate_limiter", "engine"), calls=_INNER),
    Row(BaseLLM, _LLM, _lower_model, _shadow_llm, "llm", ("rate_limiter", "engine"), calls=_INNER),
)
