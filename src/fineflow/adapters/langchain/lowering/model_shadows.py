"""Shadows of chat models and LLMs, whose inner methods claim what the graph has computed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from types import MethodType
from typing import Any

from langchain_core.language_models import BaseLLM

from fineflow.adapters.core.claiming import never
from fineflow.adapters.core.paced_streams import apaced, paced
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import keeps_promise
from fineflow.adapters.langchain.arguments import settings
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.components.completion import EngineLLM
from fineflow.adapters.langchain.models.aggregating import aggregating, aresult_of, result_of
from fineflow.adapters.langchain.models.offline_vllm import together
from fineflow.adapters.langchain.models.streamed_answers import summed, sums_up
from fineflow.adapters.langchain.resources import streamed
from fineflow.adapters.langchain.run_recorder import clean
from fineflow.runtime.call.entry import Entry, raise_stop
from fineflow.runtime.loop.bridge import Bridge
from fineflow.runtime.loop.scopes import check
from fineflow.runtime.loop.submission import Unreachable
from fineflow.runtime.queues.own_requests import told

try:
    from langchain_core.utils._signature import _signature_parameters
except ImportError:  # langchain-core before 1.6 inspects signatures like this

    def _signature_parameters(obj: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(obj).parameters


def assembles(model: Any, *, answers: bool = False) -> bool:
    """Returns True if what the model generates without streaming is known from its stream.

    answers: the user has said that answers are to be made of streams.
    """
    return _promises(model) or aggregating(model) is not None or (answers and sums_up(model))


def _promises(model: Any) -> bool:
    """Returns True if ``model.assemble(chunks)`` equals what the model generates without streaming."""
    return keeps_promise(model, "assemble", ("_generate", "_agenerate", "_stream", "_astream"))


def assembled(model: Any, entry: Entry, pieces: Sequence[Any]) -> Any:
    """Returns the result made of an entry's pieces: one object, which stock and the graph share."""
    if entry.whole is None:
        entry.whole = model.assemble(list(pieces)) if _promises(model) else _made_of(model, pieces)
    return entry.whole


def _made_of(model: Any, pieces: Sequence[Any]) -> Any:
    return summed(pieces) if aggregating(model) is None else result_of(model, pieces)


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


class _ChatShadow:
    """Inner methods of a chat model's shadow. Each claims the call that stock makes, or calls the user's model."""

    def __init__(self, model: Any, site: Site) -> None:
        self._model = model
        self._site = site
        self._answers = site.shadows.options.stream_answers

    def claimable(self, entry: Entry) -> bool:
        """Returns True if the entry has, or can be made into, one result."""
        return clean(entry) and (not entry.in_pieces or assembles(self._model, answers=self._answers))

    def generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        model = self._model

        def own() -> Any:
            return model._generate(messages, stop=stop, **_manager(model._generate, run_manager), **kwargs)

        entry, result = claim(self._site, call_of(model, messages, stop, kwargs), own, self.claimable)
        if entry.reports is not None:
            entry.reports.replay(run_manager)
        if entry.in_pieces and run_manager is not None and aggregating(model) is not None:
            result_of(model, result, run_manager)  # reports the tokens, as the model does when it generates
        return assembled(model, entry, result) if entry.in_pieces else result

    async def agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        model = self._model

        def own() -> Any:
            return model._agenerate(messages, stop=stop, **_manager(model._agenerate, run_manager), **kwargs)

        entry, result = await aclaim(self._site, call_of(model, messages, stop, kwargs), own, self.claimable)
        if entry.reports is not None:
            await entry.reports.areplay(run_manager)
        if entry.in_pieces and run_manager is not None and aggregating(model) is not None:
            await aresult_of(model, result, run_manager)
        return assembled(model, entry, result) if entry.in_pieces else result

    def stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        model, leaf, here = self._model, self._site.leaf, self._site.here
        given_to_model = kwargs if run_manager is None else {"run_manager": run_manager, **kwargs}
        if here is None:
            yield from model._stream(messages, stop=stop, **given_to_model)
            return
        key = call_of(model, messages, stop, kwargs)
        entry, mine = here.claim_stream(leaf, key, _in_chunks if run_manager is None else _told)
        given = 0
        if not mine:
            for chunk in _live(entry, here.bridge):
                if run_manager is not None:
                    entry.reports.replay(run_manager, given)
                given += 1
                yield chunk
            if _whole_stream(entry):
                if run_manager is not None:
                    entry.reports.replay(run_manager, given)
                return
            entry, _ = here.claim_stream(leaf, key, never)
        pieces = []
        with streamed(model, leaf) as counted:
            make = partial(model._stream, messages, stop=stop, **given_to_model)
            for chunk in paced(here, leaf, key, make, counted):
                pieces.append(chunk)
                if len(pieces) > given:
                    yield chunk
        entry.in_pieces = True
        told(model, pieces, None)
        here.bridge.post(entry.finish, pieces)

    async def astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        model, leaf, here = self._model, self._site.leaf, self._site.here
        given_to_model = kwargs if run_manager is None else {"run_manager": run_manager, **kwargs}
        if here is None:
            async for chunk in model._astream(messages, stop=stop, **given_to_model):
                yield chunk
            return
        key = call_of(model, messages, stop, kwargs)
        entry, mine = here.aclaim_stream(leaf, key, _in_chunks if run_manager is None else _told)
        given = 0
        if not mine:
            async with aclosing(_alive(entry)) as chunks:
                async for chunk in chunks:
                    if run_manager is not None:
                        await entry.reports.areplay(run_manager, given)
                    given += 1
                    yield chunk
            if _whole_stream(entry):
                if run_manager is not None:
                    await entry.reports.areplay(run_manager, given)
                return
            entry = here.own_entry(leaf, key)
        pieces = []
        with streamed(model, leaf) as counted:
            make = partial(model._astream, messages, stop=stop, **given_to_model)
            source = apaced(here, leaf, key, make, counted)
            async with aclosing(source) as own:
                async for chunk in own:
                    pieces.append(chunk)
                    if len(pieces) > given:
                        yield chunk
        entry.in_pieces = True
        told(model, pieces, None)
        entry.finish(pieces)


def shadow_chat(model: Any, site: Site) -> Any:
    """Returns a copy of a chat model whose inner methods claim."""
    model._serialized  # noqa: B018 - computed and kept on the user's model, as in stock, not once per call on the copy
    copy, own = model.model_copy(), _ChatShadow(model, site)
    copy.__dict__.update(_generate=own.generate, _agenerate=own.agenerate, _stream=own.stream, _astream=own.astream)
    return copy


def _in_chunks(entry: Entry) -> bool:
    return clean(entry) and entry.stream is not None


def _told(entry: Entry) -> bool:
    """Returns True if the stream is there, with what the model reports of it to a run manager."""
    return _in_chunks(entry) and entry.reports is not None and entry.reports.told is not None


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
    except asyncio.CancelledError:
        check()
        if bridge.over:  # a stream that stock left behind and that Python collects now: nobody reads it
            raise GeneratorExit from None
        if _whole_stream(entry):
            raise
    except BaseException as error:
        if _whole_stream(entry):
            raise_stop(error)
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


def shadow_llm(model: BaseLLM, site: Site) -> Any:
    """Returns a copy of an LLM whose inner methods claim."""
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
