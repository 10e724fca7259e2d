"""LLMs: the method that an LLM's answers come from, requests ahead of stock, and shadows."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import PromptTemplate

from fineflow.adapters.core.builder import TEXT, VALUE, Builder, Leaf
from fineflow.adapters.core.devices import engine_on
from fineflow.adapters.core.installers import foreign, module_of
from fineflow.adapters.core.invocation import is_async, sync_name
from fineflow.adapters.core.own_state import keeps_state, known_class
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, believed, put_on
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.components.llm import EngineLLM
from fineflow.adapters.llamaindex.methods import believed_class, exactly, instead, method, quiet, same
from fineflow.adapters.llamaindex.models import servers
from fineflow.adapters.llamaindex.models.local import one_at_a_time
from fineflow.adapters.llamaindex.thread_affinity import blocks, claiming, may_leave, unblocked
from fineflow.ir import PURE, Effect, Effects, Op, Primitive, Ref
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.loop.workers import in_thread

ASKING = ("chat", "complete", "achat", "acomplete")
_STREAMING = ("astream_chat", "astream_complete")
_PREDICTING = ("predict", "apredict", "_get_messages", "_get_prompt", "_extend_messages", "_extend_prompt")
_END: Any = object()


@dataclass(frozen=True, slots=True)
class Request:
    """One call of an LLM: of ``chat`` with messages or of ``complete`` with a text, as stock will make it."""

    family: str
    prompt: Any
    formatted: bool = True
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Any:
        """Key for comparison with stock's call; messages are copied, as they may be changed later."""
        prompt = self.prompt
        if self.family == "chat":
            return "chat", [message.model_copy(deep=True) for message in prompt], dict(self.kwargs)
        return "complete", prompt, self.formatted, dict(self.kwargs)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = {"formatted": True} if self.family == "complete" and self.formatted else {}
        return (self.prompt,), {**named, **self.kwargs}


def asked(kind: type, name: str) -> str | None:
    """Returns the method that does the work when ``name`` of an LLM is called, and opens no spans itself.

    Methods of ``CustomLLM`` lead to ``complete``. None if the method is not known.
    """
    if issubclass(kind, CustomLLM):
        if name in ("achat", "acomplete") and same(kind, CustomLLM, name):
            name = sync_name(name)
        if name == "chat" and same(kind, CustomLLM, name):
            name = "complete"
    return name if kind is EngineLLM or quiet(kind, name) else None


def request(llm: LLM, template: Any, arguments: Mapping[str, Any]) -> Request:
    """Returns the request of ``llm.predict(template, **arguments)``. Raises what formatting the template raises."""
    if not llm.metadata.is_chat_model:
        return Request("complete", llm._get_prompt(template, **arguments))
    messages = llm._get_messages(template, **arguments)
    if asked(type(llm), "chat") == "complete":
        assert llm.messages_to_prompt is not None  # set by LLM's own validator
        return Request("complete", llm.messages_to_prompt(messages))
    return Request("chat", messages)


def completion(llm: LLM, prompt: str) -> Request:
    """Returns the request of ``llm.complete(prompt)``."""
    if servers.speaks(llm):
        return Request(*servers.completion(llm, prompt))
    return Request("complete", prompt, formatted=False)


def lane(llm: Any) -> str:
    """Returns the engine name of an LLM in plans and timelines."""
    return str(llm.engine.name) if type(llm) is EngineLLM else servers.lane(llm)


def lower_answer(llm: Any, prompt: Leaf, b: Builder, effects: Effects) -> Leaf:
    """Appends PREFILL and DECODE for a rendered prompt. effects: from ``model_effects``."""
    ours, engine = type(llm) is EngineLLM, lane(llm)
    device = engine_on(llm.engine) if ours else {}
    cache = b.add(Op.PREFILL, {"prompt": prompt.ref}, component=llm, engine=engine, effects=effects, **device)
    return b.add(
        Op.DECODE,
        {"cache": cache.ref},
        component=llm,
        engine=engine,
        effects=effects,
        kind=TEXT,
        foreign=not ours,
        pieces=ours,
        **device,
    )


def lower_asking(
    holder: Any, name: str, kernel: Any, parser: type, query: Leaf, obj: Any, b: IndexBuilder, whose: str = "its"
) -> Leaf:
    """Appends the one request of an object's part that needs only the query, and its answer. Raises NotLowered.

    name: attribute of ``obj`` with the part (``holder``). kernel: makes the request. parser: of the part's prompt.
    """
    prompt, llm = holder._prompt, holder._llm
    if not exactly(prompt, PromptTemplate) or type(prompt.output_parser) is not parser:
        raise NotLowered(f"{whose} prompt has a parser of its own")
    if prompt.function_mappings or prompt.template_var_mappings:
        raise NotLowered(f"{whose} prompt has mappings of its own")
    effects = model_effects(llm, b, "predict")
    with b.inside(name):
        b.objects[b.leaf] = holder
        made = b.add(Op.RENDER, {"key:query_str": query.ref}, component=obj, kind=VALUE, kernel=kernel)
        written = lower_answer(llm, made, b, effects)
        b.at(b.under("llm"))
    return written


def lower_requests(
    component: Any, llm: Any, given: Mapping[str, Ref], b: IndexBuilder, name: str, effects: Effects, **more: Any
) -> Leaf:
    """Appends one step for all answers of a component's model. given: what its prompts are made of."""
    foreign, more = type(llm) is not EngineLLM, {"kind": TEXT, **more}
    made = b.add(
        Op.DECODE,
        given,
        name=name,
        component=component,
        engine=lane(llm),
        effects=effects,
        foreign=foreign,
        pieces=False,
        **more,
    )
    b.at(b.under("llm"))
    return made


def model_effects(llm: Any, b: Builder, name: str) -> Effects:
    """Returns the effects of calling the model ahead. name: ``predict`` or ``complete``, which stock calls.

    Raises NotLowered for models whose answers may depend on more than the arguments of the call.
    """
    kind = type(llm)
    if not isinstance(llm, LLM) or not same(kind, LLM, *_PREDICTING):
        raise NotLowered(f"{kind.__name__} overrides predict")
    if put_on(llm, (*ASKING, *_PREDICTING)):
        raise NotLowered("a method has been put on the model")
    if getattr(llm, "rate_limiter", None) is not None:  # models of older releases have none
        raise NotLowered("the model has a rate limiter, which counts calls when they are made")
    if llm.output_parser is not None or llm.query_wrapper_prompt is not None:
        raise NotLowered("the model has an output parser or a wrapper of its own around prompts")
    if not all(map(_ours, (llm.messages_to_prompt, llm.completion_to_prompt))):
        raise NotLowered("how the model writes prompts is user code")
    if why := one_at_a_time(llm):
        raise NotLowered(why)
    if type(llm) is EngineLLM:
        return Effects(PURE.kind, "", "model in this process")
    believed_class(llm, b)
    if keeps_state(kind):
        raise NotLowered(f"calls of {kind.__name__} change its attributes")
    believed(llm, ASKING, b)
    if servers.speaks(llm):
        believed(llm, servers.INNER, b)
        if servers.speaks_aloud(llm):
            raise NotLowered("the model answers with audio")
        return Effects(Effect.EXTERNAL, "", f"{kind.__name__} calls out")
    called = name if name != "predict" else "chat" if llm.metadata.is_chat_model else "complete"
    found = {asked(kind, prefix + called) for prefix in ("", "a")}
    if None in found or len({sync_name(each) for each in found if each}) != 1:
        raise NotLowered(f"it is not known that {kind.__name__}.{called} does no more than answer")
    return Effects(Effect.EXTERNAL, "", f"{kind.__name__} calls out")


def _ours(function: Any) -> bool:
    return function is None or module_of(function).partition(".")[0] in ("llama_index", "fineflow")


def text_of(family: str, response: Any) -> str:
    """Returns the text of a response, as ``predict`` does."""
    return (response.message.content or "") if family == "chat" else str(response.text)


async def ask(llm: Any, wanted: Request, *, sync: bool) -> Any:
    """Returns the response of the LLM's own method without its wrappers: no events. Raises what the LLM raises."""
    if servers.speaks(llm):
        return await servers.ask(llm, wanted.family, wanted.prompt, wanted.kwargs, sync=sync)
    args, kwargs = wanted.arguments
    if type(llm) is EngineLLM:
        sync = False  # its async methods work on any loop
    name = asked(type(llm), wanted.family if sync else f"a{wanted.family}") or wanted.family
    found = method(type(llm), name)
    if found is None:  # a mock has been put on the class since
        raise LeftToStock(f"{type(llm).__name__}.{name} is no longer a function")
    function = found.function
    if not is_async(name):
        return await in_thread(lambda: function(llm, *args, **kwargs))
    if blocks(type(llm), name):
        return await unblocked(function, llm, *args, **kwargs)
    return await function(llm, *args, **kwargs)


def requested(p: Primitive, llm: Any, wanted: Request, run: Execution, *, sync: bool) -> Entry:
    """Sends a request ahead of stock, unless stock already has. Returns its entry."""

    async def start(entry: Entry) -> Any:
        entry.running()
        return await ask(llm, wanted, sync=sync)

    return run.work(p, wanted.key, start)


def shadow_llm(llm: Any, site: Site) -> Any:
    """Returns a copy of an LLM whose methods claim; its async methods do not block the event loop.

    Returns the LLM itself if it takes one call at a time: blocking the loop is what serializes its calls. Likewise if
    its class is not known, or calls may change it.
    """
    trusting = site.options.trusting
    if one_at_a_time(llm) or keeps_state(type(llm)) or not (trusting or known_class(type(llm))):
        return llm
    leaves = not site.sync and may_leave(llm, trusting)
    site.reads(llm)
    if servers.speaks(llm):
        return servers.shadow(llm, site)
    made, kind = llm.model_copy(), type(llm)
    site.calls(kind, *ASKING, *_STREAMING)
    for name in ASKING:
        found = method(kind, name)
        if found is None or name in vars(llm):
            continue
        if asked(kind, name) == name:
            claiming(made, name, site, partial(_key, name), llm, leaves=leaves)
        elif leaves and blocks(kind, name):
            instead(made, name, lambda own: partial(unblocked, own))
    for name in _STREAMING:
        if leaves and issubclass(kind, CustomLLM) and same(kind, CustomLLM, name):
            instead(made, name, partial(_streaming, made, name[1:]))
    return made


def _key(name: str, /, *args: Any, **kwargs: Any) -> Any:
    family = name.removeprefix("a")
    rest = dict(kwargs)
    names = ("messages",) if family == "chat" else ("prompt", "formatted")
    given = dict(zip(names, args, strict=False))
    given.update({each: rest.pop(each) for each in names if each in rest})
    if family == "chat":
        return "chat", given.get("messages"), rest
    return "complete", given.get("prompt"), given.get("formatted", False), rest


def _streaming(llm: Any, name: str, own: Any) -> Callable[..., Any]:
    """Returns an async stream that reads the sync one in threads; ``CustomLLM`` reads it on the event loop."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        async def pieces() -> AsyncIterator[Any]:
            source = None
            try:
                source = await in_thread(lambda: iter(getattr(llm, name)(*args, **kwargs)))
                while (piece := await in_thread(lambda: next(source, _END))) is not _END:
                    yield piece
            finally:
                if inspect.isgenerator(source):
                    source.close()

        return pieces()

    return call


def in_turn(holder: Any, site: Site) -> Any:
    """Returns a copy of an object that calls a model, whose requests queue for the limit of the model's server.

    Returns the object itself if the server has no limit, or the object's class is not LlamaIndex's.
    """
    known = getattr(holder, "__dict__", {})
    name = next((each for each in ("_llm", "llm") if isinstance(known.get(each), LLM)), "")
    if not name or servers.bound(known[name]) is None or not all(map(foreign, type(holder).__mro__)):
        return holder
    site.reads(holder)
    made = copy.copy(holder)
    made.__dict__[name] = shadow_llm(known[name], site.part("llm"))
    return made


def model_known(llm: Any) -> bool:
    """Returns True if an LLM can be copied for a call: a pydantic model like LlamaIndex's."""
    return hasattr(llm, "model_copy") and hasattr(type(llm), "predict")
