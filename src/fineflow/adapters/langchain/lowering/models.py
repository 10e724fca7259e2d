"""Lowers chat models and LLMs to PREFILL and DECODE primitives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM

from fineflow.adapters.core.builder import MESSAGE, TEXT, Leaf, Symbol
from fineflow.adapters.core.devices import engine_on
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.trust import NotLowered, believed, plain, same_method
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.components.chat import TOOLS, ChatEngine
from fineflow.adapters.langchain.components.completion import EngineLLM
from fineflow.adapters.langchain.lowering.model_shadows import assembles, shadow_chat, shadow_llm
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.langchain.models.offline_vllm import engine_of, is_offline, one_at_a_time
from fineflow.adapters.langchain.models.servers import lane, served, warmed
from fineflow.adapters.langchain.models.streamed_answers import sums_up
from fineflow.adapters.langchain.run_recorder import starts_runs
from fineflow.adapters.python.bytecode import assigned, decode
from fineflow.ir import PURE, Effect, Effects, Op

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
    if why := _counts(kind):
        raise NotLowered(f"{type(model).__name__} {why}, so its answers may depend on the order of calls")
    return Effects(Effect.EXTERNAL, "", f"{type(model).__name__} calls out")


@lru_cache(maxsize=512)
def _counts(kind: Any) -> str:
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
            own = (code.co_varnames or ("self",))[0]
            for attribute in assigned(code, own):
                return f"stores {attribute!r} in {name}"
            if any(each.name == "LOAD_GLOBAL" and each.value == "next" for each in decode(code)):
                return f"calls next() in {name}"
    return ""


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
    known = {**_prefix_cache(model, options), **(engine_on(model.engine) if ours else {})}
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
        only_streamed=_only_streamed(model, options, answers=b.stream_answers),
        streamed_answer=b.stream_answers and sums_up(model),
        pieces=isinstance(model, BaseChatModel),
        **(engine_on(model.engine) if ours else {}),
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
        return {"block": engine.block_size, "options": tools} if engine.can_prefill else {}
    server = served(model, options)
    if server is None:
        return {}
    if why := warmed(server):
        return {"whole_prompts": why}
    return {"block": server.server.block_size, "remote": True, "options": options}


def _only_streamed(model: Any, options: Mapping[str, Any], *, answers: bool) -> str:
    """Returns why a decode can be consumed in pieces only if stock streams it; "" if it always can.

    LangChain streams a model with ``streaming=True`` in all calls. For any other one a stream ahead of stock would be
    a second request, unless the whole answer is known from the stream.
    """
    if not isinstance(model, BaseChatModel) or assembles(model, answers=answers):
        return ""
    if all(model._should_stream(async_api=on, **options) for on in (True, False)):
        return ""
    why = f"the message that {type(model).__name__} generates may differ from the sum of its stream"
    if sums_up(model):
        return f"{why}; with stream_answers=True it is made of that"
    return f"{why}; in all calls with streaming=True" if "streaming" in type(model).model_fields else why


class _ModelRow(Row):
    """Row of models, also of those whose package wraps an entry method: it hands its input on to the base class's.

    What it changes of the other arguments shows when stock claims: requests are compared by them.
    """

    def has(self, kind: type, name: str) -> bool:
        return same_method(kind, self.base, name) or _hands_on(plain(kind, name), name)


@lru_cache(maxsize=512)
def _hands_on(method: Any, name: str) -> bool:
    """Returns True if a package's method, which overrides an inherited one, calls that with its own input."""
    code = getattr(method, "__code__", None)
    if code is None or name not in RUN or not of_package(method.__module__):
        return False
    given = code.co_varnames[1:2]
    steps = [(each.name.partition("_")[0], each.value) for each in decode(code)]
    called = any(one[1] == name and other == ("LOAD", *given) for one, other in pairwise(steps))
    return "super" in code.co_names and called and ("STORE", *given) not in steps


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
_READ = ("rate_limiter", "engine", "streaming", "disable_streaming")

ROWS = (
    _ModelRow(BaseChatModel, _CHAT, _lower_model, shadow_chat, "llm", _READ, calls=_INNER),
    Row(BaseLLM, _LLM, _lower_model, shadow_llm, "llm", ("rate_limiter", "engine"), calls=_INNER),
)
